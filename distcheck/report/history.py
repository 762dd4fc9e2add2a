"""The report of a history: the nodes by how often they failed, worst first."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from distcheck import __version__
from distcheck.facts.history import NodeTotal, Totals
from distcheck.facts.quantities import count
from distcheck.report import Format
from distcheck.report.figures import percent
from distcheck.report.harmless import harmless
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.history import HistoryDocument, LastFailure, NodeHistory, WouldRow
from distcheck.report.schema.part import part_of
from distcheck.report.tables import Column, Grid, grid

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
        would=tuple(_would(totals)),
    )


def _would(totals: Totals) -> Iterator[WouldRow]:
    times = Counter[str]()
    for node in totals.nodes:
        times.update(node.spared)
    for rule, number in times.most_common():
        on = tuple(sorted(node.node for node in totals.nodes if rule in node.spared))
        yield WouldRow(rule, on, number, number / totals.lines)


def _node(node: NodeTotal) -> NodeHistory:
    failure = node.last_failure and part_of(LastFailure, node.last_failure, time=_iso(node.last_failure.time))
    return part_of(NodeHistory, node, first=_iso(node.first), last=_iso(node.last), last_failure=failure)


def render(
    format: Format,  # noqa: A002 as `--format`
    report: HistoryDocument,
    *,
    everything: bool = False,
    would: bool = False,
) -> str:
    """Return the report in one of `FORMATS`; with `everything`, nodes that never failed have a row, too.

    With `would` it is the table of the rules for which nodes would have been excluded.
    """
    if format == "json":
        return msgspec.json.encode(report).decode() + "\n"
    table = _rules(report.would) if would else _nodes(report.nodes, everything=everything)
    found = importlib.import_module(f"distcheck.report.{format}")
    if format == "html":
        page: str = found.page("history.html.j2").render(report=report, lines=_lines(report), table=table)
        return page
    title = f"history of {report.history}"
    if format == "markdown":
        blocks = [f"## {found.escaped(title)}", *map(found.escaped, _lines(report)), found.drawn(table)]
    else:
        blocks = ["\n".join(map(harmless, (title, *_lines(report)))), "\n".join(found.drawn(table))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _nodes(nodes: Sequence[NodeHistory], *, everything: bool) -> Grid:
    """Return the table of nodes by how often they failed; those that never did only with everything."""
    shown = [node for node in nodes if node.failed or everything]
    left_out = len(nodes) - len(shown)
    note = f"{count(left_out, 'node')} never failed (-v shows {'it' if left_out == 1 else 'them'})" if left_out else ""
    columns = (
        Column("node", lambda node: node.node),
        Column("failed", lambda node: node.failed, "number"),
        Column("of runs", lambda node: node.runs, "number"),
        Column("share", lambda node: percent(node.failed / node.runs), "number"),
        Column("last failure (UTC)", lambda node: node.last_failure and _minute(node.last_failure.time)),
        Column("rule", lambda node: node.last_failure and ", ".join(node.last_failure.rules), "prose"),
        Column("last run (UTC)", lambda node: _minute(node.last), spare=1),
    )
    return grid(columns, shown, note)


def _rules(rows: Sequence[WouldRow]) -> Grid:
    """Return the table of rules that were only observed."""
    columns = (
        Column("rule", lambda row: row.rule),
        Column("nodes", lambda row: fold_nodes(row.nodes), "prose"),
        Column("times", lambda row: row.times, "number"),
        Column("share of runs", lambda row: percent(row.share), "number"),
    )
    return grid(columns, rows, "" if rows else "no run would have excluded a node in mode observe")


def _minute(time: str) -> str:
    """Return a time without its seconds: 2026-11-22 14:03."""
    return time[:16].replace("T", " ")


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
