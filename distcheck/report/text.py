"""The report as text, for a terminal or a job log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from distcheck.facts.job import Collectives, Job
from distcheck.facts.network import PeerTrial, Resolution
from distcheck.report import Detail, tables
from distcheck.report.document import document
from distcheck.report.harmless import harmless
from distcheck.report.measured import measured
from distcheck.report.plain import bar, drawn
from distcheck.report.schema.comparison import Comparison
from distcheck.report.schema.document import Document
from distcheck.report.sections import DETAILED, Case, Gap, Problem, evidence_lines, problems, shown_gaps
from distcheck.report.summary import checked, counts
from distcheck.rules.diagnose import Diagnosis

WIDTH = 100
"""Most columns of prose; commands are never wrapped."""
_FINDING_LINES = 70
"""With more lines of findings, the last ones are shortened: with a table of 16 ranks, two screens of 50 lines."""
_NAMED_RULES = 12
"""With more unchecked rules than this, only their number is shown."""

_COLORS = {
    "error": 31,
    "job": 31,
    "node": 31,
    "warning": 33,
    "warn": 33,
    "unknown": 33,
    "info": 36,
    "pass": 32,
}


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the report as text."""
    report = document(job, diagnosis)
    word = report.headline.partition(":")[0]
    first, *more = _fitted(report.headline, options, 0, 2)
    headline = [_colored(word, options, _COLORS[report.verdict]) + first.removeprefix(word), *more]
    figures = [*_ranks(report, options), *_measured(job, report, options)] if not options.quiet else []
    found = _findings(diagnosis, options)
    if job.hang is not None:
        found.insert(0, _running(job, options))
    if options.comparison is not None:
        found += _compared(options.comparison, options)
    found.append(list(_gaps(diagnosis, options)))
    about = [line for text in checked(job, report) for line in _fitted(text, options, 0, 2)]
    gpus = tables.gpus(report, everything=options.verbose, whole_uuids=options.verbose)
    found.insert(0, _drawn(gpus, options) * (not options.quiet))
    parts = [*figures, *found] if report.verdict == "pass" else [*found, about * (not options.quiet), *figures]
    if options.timings:
        parts += [list(_timings(job, report, options))]
    if options.legend:
        from distcheck.report.legend import LEGEND

        columns = [line for entry in LEGEND.items() for line in _wrapped(options, ": ".join(entry), 2, 4)]
        parts += [["columns", *columns]]
    if options.quiet and report.verdict == "pass" and not any(parts):
        parts = [headline]
    else:
        beside = about if report.verdict == "pass" and not options.quiet else []
        parts = [[*headline, *beside], *parts, [counts(report, diagnosis), *headline]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _colored(text: str, options: Detail, color: int) -> str:
    return f"\x1b[1;{color}m{text}\x1b[0m" if options.color else text


def _fitted(text: str, options: Detail, first: int, rest: int) -> list[str]:
    """Return a line, wrapped only on a terminal: a log can be searched for it."""
    return _wrapped(options, text, first, rest, options.width) if options.terminal else [" " * first + text]


def _wrapped(options: Detail, prose: str, first: int, rest: int, most: int = WIDTH) -> list[str]:
    return textwrap.wrap(
        prose,
        min(most, options.width),
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines_of(texts: Iterable[str], options: Detail, first: int, rest: int) -> list[str]:
    return [line for text in texts for line in _wrapped(options, harmless(text), first, rest)]


def _drawn(table: tables.Grid | None, options: Detail) -> list[str]:
    return list(drawn(table, 0 if options.verbose else options.width)) if table else []


def _running(job: Job, options: Detail) -> list[str]:
    """Return the ranks of a running job."""
    from distcheck.report.hang import hang_table  # only for `distcheck hang`

    return _drawn(hang_table(job, everything=options.all_ranks), options) * (not options.quiet)


def _ranks(report: Document, options: Detail) -> Iterator[list[str]]:
    if report.hang is not None:
        return
    table = tables.ranks(report, everything=options.all_ranks, whole_uuids=options.verbose)
    one_node = report.command == "node" and len(table.rows) == 1  # its row would repeat the headline and the verdict
    yield [] if one_node else _drawn(table, options)
    yield _drawn(tables.dimensions(report), options)


def _measured(job: Job, report: Document, options: Detail) -> Iterator[list[str]]:
    for block in measured(job, report, everything=options.all_ranks, bar=bar):
        caption = [block.caption] if block.caption else []
        yield [*caption, *_drawn(block.table, options), *_lines_of(block.lines, options, 0, 2)]


def _findings(diagnosis: Diagnosis, options: Detail) -> list[list[str]]:
    """Return the findings as paragraphs: as many from the first one on with all details as fit."""
    found = problems(diagnosis.findings, everything=options.verbose)
    whole = [list(_problem(p, options)) for p in found]
    if options.verbose or len(whole) < 2 or _lines(whole) <= _FINDING_LINES:
        return whole
    short = [list(_short(p, options)) for p in found]
    kept = len(whole) - 1
    while kept and _lines(whole[:kept]) + sum(map(len, short[kept:])) + 1 > _FINDING_LINES:
        kept -= 1
    count = len(short) - kept
    hint = f"{count} {'finding' if count == 1 else 'findings'} shortened: -v shows evidence, reasons and all commands"
    return [*whole[:kept], [*(line for lines in short[kept:] for line in lines), hint]]


def _lines(paragraphs: list[list[str]]) -> int:
    """Return how many lines paragraphs take, each with a blank line after it."""
    return sum(len(lines) + 1 for lines in paragraphs)


def _short(problem: Problem, options: Detail) -> Iterator[str]:
    """Return a problem without evidence and reason, each fix with its first command."""
    more = len(problem.cases) - 1 + problem.more
    text = harmless(problem.cases[0].message) + (f" (and {more} more)" if more else "")
    first, *rest = _wrapped(options, f"{problem.title} - {text}", 0, 2)
    yield _colored(problem.severity, options, _COLORS[problem.severity]) + first.removeprefix(problem.severity)
    yield from rest
    for fix in problem.fixes:
        *lines, last = _wrapped(options, f"fix: {harmless(fix.text)}", 2, 7)
        yield from lines
        beside = "".join(f" `{harmless(command)}`" for command in fix.commands[:1])
        if not beside or len(last + beside) <= WIDTH:
            yield last + beside
        else:
            yield from (last, f"      {harmless(fix.commands[0])}")


def _problem(problem: Problem, options: Detail) -> Iterator[str]:
    place = f" - {problem.where}" if problem.where else ""
    title, *more = _fitted(problem.title + place, options, 0, 2)
    yield _colored(problem.severity, options, _COLORS[problem.severity]) + title.removeprefix(problem.severity)
    yield from more
    if len(problem.cases) == 1 and not problem.more:  # the fix stands before what only some readers need
        yield from _wrapped(options, harmless(problem.cases[0].message), 2, 2)
        yield from _fixes(problem, options)
        yield from _evidence(problem.cases[0], options)
    else:
        for n, case in enumerate(problem.cases):
            place = f" [{case.where}]" if case.where else ""
            yield from _wrapped(options, harmless(case.message) + place, 2, 2)
            yield from _evidence(case, options) if n < DETAILED or options.verbose else ()
        if problem.more:
            yield f"  … and {problem.more} more like these (-v shows them)"
        yield from _fixes(problem, options)
    if problem.why:
        yield from _wrapped(options, f"why: {harmless(problem.why)}", 2, 7)


def _fixes(problem: Problem, options: Detail) -> Iterator[str]:
    for fix in problem.fixes:
        yield from _wrapped(options, f"fix: {harmless(fix.text)}", 2, 7)
        yield from (f"      {harmless(command)}" for command in fix.commands)


def _evidence(case: Case, options: Detail) -> Iterator[str]:
    shown = evidence_lines(case.evidence, everything=options.verbose, said=case.message)
    yield from (part for line in shown for part in _fitted(line, options, 4, 6))


def _compared(compared: Comparison, options: Detail) -> list[list[str]]:
    from distcheck.report.comparison import lines, title

    found = _lines_of(lines(compared, everything=options.verbose), options, 2, 4)
    facts = _lines_of((f"{row.name}: {row.before} -> {row.now}" for row in compared.facts), options, 2, 4)
    return [
        [*_lines_of([title(compared)], options, 0, 2), *found],
        _drawn(tables.changes(compared), options),
        ["what differs", *facts] if facts else [],
    ]


def _gaps(diagnosis: Diagnosis, options: Detail) -> Iterator[str]:
    found = shown_gaps(diagnosis, quiet=options.quiet)
    for required, title in ((True, "not checked (required)"), (False, "not checked")):
        these = [_gap(gap, options) for gap in found if gap.required == required]
        if len(these) == 1:
            yield from _wrapped(options, f"{title}: {these[0]}", 0, 2, options.width)
        elif these:
            yield title
            yield from (line for text in these for line in _wrapped(options, text, 2, 4, options.width))


def _gap(gap: Gap, options: Detail) -> str:
    """Return why rules were not checked, where, and which."""
    many = len(gap.rules) > _NAMED_RULES and not options.verbose
    rules = f"{len(gap.rules)} rules; -v lists them" if many else ", ".join(gap.rules)
    return harmless(f"{gap.reason}{f' - {gap.where}' if gap.where else ''} [{rules}]")


def _timings(job: Job, report: Document, options: Detail) -> Iterator[str]:
    yield "timings"
    yield f"  whole run: {job.seconds:.2f} s"
    stages = _drawn(tables.critical_path(report), options)
    if stages:
        yield "  critical path: what each stage waited for longest"
        yield from (f"    {line}" for line in stages)
    resolved = [p.master_resolution for p in job.processes if isinstance(p.master_resolution, Resolution)]
    if resolved:
        slow = max(resolved, key=lambda r: r.seconds)
        yield f"  slowest resolution of {harmless(slow.name)}: {slow.seconds:.3f} s"
    met: list[PeerTrial] = [trial for trial in job.peers if trial.outcome == "met"]
    if met:
        far = max(met, key=lambda t: t.seconds)
        names = job.node_names
        on = {process.uid: names[process.node] for process in job.processes}
        path = f"{on.get(far.source, far.source)} to {on.get(far.target, far.target)}"
        yield f"  slowest connection between peers: {far.seconds:.3f} s ({harmless(path)})"
    if isinstance(job.collectives, Collectives) and job.collectives.first_figure_seconds is not None:
        yield f"  start to first figure: {job.collectives.first_figure_seconds:.2f} s"
