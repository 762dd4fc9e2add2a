"""The report of a history: the nodes by how often they failed, worst first."""

from __future__ import annotations

import importlib
import time

import msgspec

from distcheck import __version__
from distcheck.facts.past_run import NodeTotal, Totals
from distcheck.facts.quantities import count
from distcheck.report import Format, tables
from distcheck.report.harmless import harmless
from distcheck.report.schema.history import HistoryDocument, LastFailure, NodeHistory
from distcheck.report.schema.part import part_of

FORMATS: tuple[Format, ...] = ("text", "json", "html", "markdown")


def document(folder: str, totals: Totals) -> HistoryDocument:
    """Return the totals as data."""
    return part_of(
        HistoryDocument,
        totals,
        schema=1,
        distcheck=__version__,
        history=folder,
        nodes=tuple(map(_node, totals.nodes)),
    )


def _node(node: NodeTotal) -> NodeHistory:
    failure = node.last_failure and part_of(LastFailure, node.last_failure, time=_iso(node.last_failure.time))
    return part_of(NodeHistory, node, first=_iso(node.first), last=_iso(node.last), last_failure=failure)


def render(format: Format, report: HistoryDocument, *, everything: bool = False) -> str:  # noqa: A002 as `--format`
    """Return the report in one of `FORMATS`; with `everything`, nodes that never failed have a row, too."""
    if format == "json":
        return msgspec.json.encode(report).decode() + "\n"
    shown = [node for node in report.nodes if node.failed or everything]
    table, hidden = tables.histories(shown), len(report.nodes) - len(shown)
    others = f"{count(hidden, 'node')} never failed (-v shows {'it' if hidden == 1 else 'them'})" if hidden else ""
    found = importlib.import_module(f"distcheck.report.{format}")
    if format == "html":
        page: str = found.page("history.html.j2").render(
            report=report, lines=_lines(report), table=table, others=others
        )
        return page
    title = f"history of {report.history}"
    if format == "markdown":
        blocks = [f"## {found.escaped(title)}", *map(found.escaped, _lines(report))]
        blocks += [found.drawn(table)] * bool(shown) + [found.escaped(others)] * bool(others)
        return "\n\n".join(blocks) + "\n"
    rows = [*found.drawn(table)] if shown else []
    parts = [[harmless(line) for line in (title, *_lines(report))], rows, [others] * bool(others)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _lines(report: HistoryDocument) -> list[str]:
    """Return what there is in the history, and what could not be read of it."""
    found = [f"{count(report.lines, 'run')} of {count(len(report.nodes), 'node')}"]
    if report.unreadable:
        found.append(f"{count(report.unreadable, 'line')} could not be read")
    if report.newer:
        found.append(
            f"not checked: {count(report.newer, 'line')} of a newer distcheck; install its version to read them"
        )
    return found + [f"not checked: {reason}" for reason in report.unread]


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
