"""The report as Markdown, for a CI job summary or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.report import Detail, tables
from distcheck.report.comparison import lines, title
from distcheck.report.document import document
from distcheck.report.harmless import harmless
from distcheck.report.legend import LEGEND
from distcheck.report.measured import measured
from distcheck.report.schema.comparison import Comparison
from distcheck.report.schema.document import Document
from distcheck.report.sections import DETAILED, Problem, evidence_lines, problems, shown_gaps
from distcheck.report.summary import checked, counts
from distcheck.rules.diagnose import Diagnosis

_MARKUP = re.compile(r"([\\`*_\[\]<>#~&$|])")
_BLOCK = re.compile(r"^(\d+(?=[.)])|(?=[-+=]))(.)(?=[-=\s]|$)")
"""What begins a list, a rule or an underline, at the start of a line."""


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the report as Markdown."""
    report = document(job, diagnosis)
    blocks = [f"## {escaped(report.headline)}"]
    if not options.quiet:
        blocks += [escaped(line) for line in (*checked(job, report), counts(report, diagnosis))]
        if gpus := tables.gpus(report, everything=options.verbose, whole_uuids=True):
            blocks.append(drawn(gpus))
        if job.hang is not None:
            from distcheck.report.hang import hang_table  # only for `distcheck hang`

            blocks.append(drawn(hang_table(job, everything=options.all_ranks)))
    for problem in problems(diagnosis.findings, everything=options.verbose):
        blocks += _problem(problem, options)
    if options.comparison is not None:
        blocks += _compared(options.comparison, options)
    if not options.quiet:
        blocks += _bandwidth(job, report, options)
    blocks += _gaps(diagnosis, options)
    if not options.quiet:
        blocks += _ranks(report, options)
        if options.legend:
            meanings = [f"- **{escaped(name)}**: {escaped(meaning)}" for name, meaning in LEGEND.items()]
            blocks += ["### columns", "\n".join(meanings)]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown shows literally, without markup, HTML or table separators."""
    return _BLOCK.sub(r"\1\\\2", _inline(text).lstrip(" "))


def _inline(text: str) -> str:
    """Return the same for text that does not begin a line."""
    return _MARKUP.sub(r"\\\1", harmless(text))


def _prose(text: str) -> str:
    """Return a docstring's text escaped, except for code in backticks."""
    pieces = text.split("`")
    return "`".join(piece if n % 2 else _inline(piece) for n, piece in enumerate(pieces))


def _fenced(lines: Sequence[str], language: str = "") -> str:
    """Return code in a fence longer than any run of backticks in it."""
    clean = [harmless(line) for line in lines]
    runs = [len(run) for line in clean for run in re.findall(r"`+", line)]
    fence = "`" * max(3, 1 + max(runs, default=0))
    return "\n".join([fence + language, *clean, fence])


def drawn(table: tables.Grid) -> str:
    """Return a table and its note."""
    rules = ("---:" if kind == "number" else "---" for kind in table.kinds)
    first, *others = ("| " + " | ".join(map(escaped, row)) + " |" for row in (table.names, *table.rows))
    rows = ["\n".join([first, f"|{'|'.join(rules)}|", *others])] if others else []
    return "\n\n".join([*rows, *([escaped(table.note)] if table.note else [])])


def _problem(problem: Problem, options: Detail) -> Iterator[str]:
    place = f", {problem.where}" if problem.where else ""
    yield f"### {escaped(problem.title + place)}"
    yield "\n".join(f"- {escaped(case.message)}" for case in problem.cases)
    if problem.more:
        yield f"… and {problem.more} more like these"
    lines = [
        line
        for case in problem.cases[: None if options.verbose else DETAILED]
        for line in evidence_lines(case.evidence, everything=options.verbose, said=case.message)
    ]
    if lines:
        yield _fenced(lines)
    if problem.why:
        yield _prose(problem.why)
    for fix in problem.fixes:
        yield f"**Fix:** {escaped(fix.text)}"
        if fix.commands:
            yield _fenced(fix.commands, "sh")


def _bandwidth(job: Job, report: Document, options: Detail) -> Iterator[str]:
    blocks = measured(job, report, everything=options.all_ranks)
    if any(block.table for block in blocks):
        yield "### bandwidth"
    for block in blocks:
        if block.caption:
            yield f"{block.caption}:"
        if block.table:
            yield drawn(block.table)
        yield from map(escaped, block.lines)


def _compared(compared: Comparison, options: Detail) -> Iterator[str]:
    yield "### comparison"
    yield escaped(title(compared))
    found = lines(compared, everything=options.verbose)
    if found:
        yield "\n".join(f"- {escaped(line)}" for line in found)
    if compared.figures:
        yield drawn(tables.changes(compared))
    if compared.facts:
        yield drawn(tables.differing(compared))


def _gaps(diagnosis: Diagnosis, options: Detail) -> Iterator[str]:
    found = shown_gaps(diagnosis, quiet=options.quiet)
    if found:
        yield "### not checked"
        yield drawn(tables.not_checked(found))


def _ranks(report: Document, options: Detail) -> Iterator[str]:
    table = tables.ranks(report, everything=options.all_ranks, whole_uuids=True)
    if report.hang is not None:
        return
    if table:
        yield f"<details><summary>{count(len(report.ranks), 'rank')}</summary>"
        yield drawn(table)
        yield "</details>"
    dimensions = tables.dimensions(report)
    if dimensions:
        yield "### dimensions"
        yield drawn(dimensions)
