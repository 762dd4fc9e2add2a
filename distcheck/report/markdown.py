"""The report as Markdown, for a CI job summary or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from distcheck.collectives.plan import label
from distcheck.facts.job import Collectives, Job
from distcheck.report import Detail
from distcheck.report.document import Document, document
from distcheck.report.expected import any_expected, percent, provenance
from distcheck.report.harmless import harmless
from distcheck.report.measured import figure, size, slowest
from distcheck.report.sections import (
    DETAILED,
    Problem,
    conclusion,
    evidence_lines,
    gaps,
    headline,
    neighbours,
    outcome_of,
    problems,
    rows,
)
from distcheck.rules.diagnose import Diagnosis

_MARKUP = re.compile(r"([\\`*_\[\]<>#~&$|])")


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the report as Markdown."""
    report = document(job, diagnosis)
    title = escaped(f"distcheck {report.command}: {outcome_of(report)}")
    blocks = [f"## {title}", escaped(conclusion(report, diagnosis))]
    if not options.quiet:
        blocks += [escaped(line) for line in headline(job, report)]
    for problem in problems(diagnosis.findings, everything=options.verbose):
        blocks += _problem(problem, options)
    if not options.quiet:
        blocks += [*_bandwidth(job, report), *_gaps(diagnosis), *_ranks(report, options)]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown shows literally, without markup, HTML or table separators."""
    return _MARKUP.sub(r"\\\1", harmless(text))


def _prose(text: str) -> str:
    """Return a docstring's text escaped, except for code in backticks."""
    pieces = text.split("`")
    return "`".join(piece if n % 2 else escaped(piece) for n, piece in enumerate(pieces))


def _fenced(lines: Sequence[str], language: str = "") -> str:
    """Return code in a fence longer than any run of backticks in it."""
    clean = [harmless(line) for line in lines]
    runs = [len(run) for line in clean for run in re.findall(r"`+", line)]
    fence = "`" * max(3, 1 + max(runs, default=0))
    return "\n".join([fence + language, *clean, fence])


def _table(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return "\n".join(lines + ["| " + " | ".join(map(escaped, row)) + " |" for row in cells])


def _problem(problem: Problem, options: Detail) -> Iterator[str]:
    doubt = "" if problem.confirmed else " (not confirmed)"
    place = f", {escaped(problem.where)}" if problem.where else ""
    yield f"### {problem.severity}: {escaped(problem.rule)}{doubt}{place}"
    yield "\n".join(f"- {escaped(case.message)}" for case in problem.cases)
    if problem.more:
        yield f"… and {problem.more} more like these"
    lines = [
        line
        for case in problem.cases[: None if options.verbose else DETAILED]
        for line in evidence_lines(case.evidence, everything=options.verbose)
    ]
    if lines:
        yield _fenced(lines)
    if problem.why:
        yield _prose(problem.why)
    for fix in problem.fixes:
        yield f"**Fix:** {escaped(fix.text)}"
        if fix.commands:
            yield _fenced(fix.commands, "sh")


def _bandwidth(job: Job, report: Document) -> Iterator[str]:
    if report.bandwidth:
        yield "### bandwidth"
        expected = any_expected(report.bandwidth)
        yield _table(
            [
                "operation", "group", "size", "algbw GB/s", "busbw GB/s", *(["expected", "share"] if expected else []),
                "mean ms", "max ms", "slowest rank", "wrong",
            ],
            [
                [
                    label(row.op, row.dtype), row.group, size(row.bytes),
                    figure(row.algbw_GBps), figure(row.busbw_GBps),
                    *([figure(row.expected_GBps.value), percent(row.share_of_expected)] if expected else []),
                    figure(row.seconds.mean, 1e3), figure(row.seconds.max, 1e3), slowest(row),
                    "-" if row.wrong is None else str(row.wrong),
                ]
                for row in report.bandwidth
            ],
        )  # fmt: skip
        yield from map(escaped, provenance(report.bandwidth))
    if isinstance(job.collectives, Collectives) and job.collectives.ended:
        yield f"Collectives ended early: {escaped(job.collectives.ended)}"


def _gaps(diagnosis: Diagnosis) -> Iterator[str]:
    found = gaps(diagnosis.not_checked)
    if found:
        yield "### not checked"
        yield _table(
            ["reason", "required", "rules", "where"],
            [[gap.reason, "yes" if gap.required else "no", ", ".join(gap.rules), gap.where] for gap in found],
        )


def _ranks(report: Document, options: Detail) -> Iterator[str]:
    shown, others = rows(report, everything=options.all_ranks)
    if shown:
        near, beside = neighbours(shown)
        yield f"<details><summary>{len(report.ranks)} ranks</summary>"
        yield _table(
            ["rank", "node", "local", "GPU", *near, "master", "stage", "status"],
            [
                [
                    "-" if row.rank is None else str(row.rank),
                    row.node or "-",
                    "-" if row.local_rank is None else str(row.local_rank),
                    f"{row.gpu.pci} {row.gpu.uuid}" if row.gpu else "-",
                    *cells,
                    row.master,
                    row.stage or "-",
                    row.status,
                ]
                for row, cells in zip(shown, beside, strict=True)
            ],
        )
        if others:
            yield escaped(others)
        yield "</details>"
