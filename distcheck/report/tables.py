"""The tables of the human-readable reports, described once; each format only draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from distcheck.collectives.plan import label
from distcheck.facts.quantities import count, size
from distcheck.facts.ranges import fold
from distcheck.report.devices import figures
from distcheck.report.expected import any_expected, percent
from distcheck.report.gpus import IdleGpu, RankGpu
from distcheck.report.harmless import harmless
from distcheck.report.measured import figure, largest, shared_groups, slowest, uncertain
from distcheck.report.mesh_groups import lowest, middle
from distcheck.report.rank_rows import FoldedRanks, rank_rows
from distcheck.report.schema.comparison import Comparison
from distcheck.report.schema.document import Document, PathStep, RankRow
from distcheck.report.schema.figures import Bandwidth
from distcheck.report.schema.history import NodeHistory
from distcheck.report.schema.mesh import DimensionRow, Range
from distcheck.report.sections import Gap

_GPUS = 32
"""Most GPUs of nodes without ranks."""
_EXAMPLE = 4
"""Ranges of ranks that the example of a group shows."""
SIDE_BY_SIDE = 16
"""Up to this many ranks, each rank's times are shown."""
_GROUP_PIECES = 4
"""Most ranges of a group's ranks."""
Kind = Literal["text", "number", "prose", "status"]


class Column(NamedTuple):
    """A column and how its cells are made of an item."""

    name: str
    cell: Callable[[Any], object]
    """None is shown as -."""
    kind: Kind = "text"
    """Numbers are aligned right; prose may be wrapped; a status may be coloured."""
    shown: bool = True
    spare: int = 0
    """Not 0: where the terminal is too narrow, it is left out; the largest number first."""


class Grid(NamedTuple):
    """A table with all its text; nothing in it is escaped."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[int, ...]
    """When a column is left out for lack of width; 0 is never."""


def _table(columns: Iterable[Column], items: Sequence[Any]) -> Grid:
    shown = [column for column in columns if column.shown]
    cells = (tuple("-" if (cell := c.cell(item)) is None else str(cell) for c in shown) for item in items)
    return Grid(tuple(c.name for c in shown), tuple(c.kind for c in shown), tuple(cells), tuple(c.spare for c in shown))


def ranks(report: Document, *, everything: bool, whole_uuids: bool) -> tuple[Grid, str]:
    """Return the table of the ranks, and a line if some are folded.

    A column about GPUs without any known value is left out.
    """
    shown = rank_rows(report, everything=everything)
    others = "ranks are folded; --all-ranks shows a row for each" if len(shown) < len(report.ranks) else ""
    gpus = [row.gpu for row in shown if row.gpu is not None]
    numa = any(gpu.numa_node is not None for gpu in gpus)
    return _table(
        (
            Column("rank", lambda row: row.rank, "number"),
            Column("node", lambda row: row.node),
            Column("local", lambda row: row.local_rank, "number"),
            *_coordinates(report),
            Column(
                "GPU",
                partial(_gpu, whole_uuids=whole_uuids),
                shown=any(row.gpu is not None for row in report.ranks),
            ),
            Column("NUMA", lambda row: row.gpu and row.gpu.numa_node, "number", numa, spare=3),
            Column("NIC", lambda row: _nic(row.gpu), shown=any(gpu.nic is not None for gpu in gpus), spare=4),
            Column("master", lambda row: row.master, spare=1),
            Column("stage", lambda row: row.stage, spare=2),
            Column("status", lambda row: row.status, "status"),
        ),
        shown,
    ), others


def _coordinates(report: Document) -> Iterator[Column]:
    """Yield a column for each dimension of the mesh."""
    for row in _dimensions(report):
        name = f"mesh {row.name}" if row.name in {"rank", "node", "local", "master", "stage", "status"} else row.name
        yield Column(harmless(name), partial(_coordinate, name=row.name), "number")


def _coordinate(row: RankRow, name: str) -> int | None:
    return row.mesh[name].rank if row.mesh else None


def _dimensions(report: Document) -> tuple[DimensionRow, ...]:
    return report.mesh.dimensions if report.mesh else ()


def dimensions(report: Document) -> Grid:
    """Return the table of the mesh's dimensions; no rows without a mesh."""
    rows = _dimensions(report)
    columns = (
        Column("dimension", lambda row: row.name),
        Column("size", lambda row: row.size, "number"),
        Column("groups", lambda row: row.groups, "number"),
        Column("first group", lambda row: f"rank{'s' if row.size > 1 else ''} {fold(row.example, _EXAMPLE)}"),
        Column("nodes per group", lambda row: _range(row.nodes), "number"),
        Column("NVLink domains per group", lambda row: _range(row.domains), "number", any(row.domains for row in rows)),
    )
    return _table(columns, rows)


def critical_path(report: Document) -> Grid:
    """Return the table of the run's stages and their sum; no rows without stages."""
    columns = (
        Column("stage", lambda step: step.stage),
        Column("seconds", lambda step: f"{step.seconds:.2f}", "number"),
        Column("waited for", _process),
        Column("because", lambda step: step.why or None),
    )
    table, steps = _table(columns, report.critical_path), report.critical_path
    total = ("total", f"{sum(step.seconds for step in steps):.2f}", "", "")
    return table._replace(rows=(*table.rows, *([total] if steps else [])))


def _process(step: PathStep) -> str | None:
    """Return the process that a stage waited for: node3 (ranks 4-5)."""
    if not step.nodes:
        return None
    numbers = f" (rank{'s' * (len(step.ranks) > 1)} {fold(step.ranks, _GROUP_PIECES)})" if step.ranks else ""
    return step.nodes[0] + numbers


def _range(numbers: Range | None) -> str | None:
    if numbers is None:
        return None
    return str(numbers.min) if numbers.min == numbers.max else f"{numbers.min}-{numbers.max}"


def sweep(report: Document, bar: Callable[[float], str] | None = None) -> Grid:
    """Return the table of measurements; groups, expectations and uncertainties only if there are any.

    `bar` draws a share of the highest bandwidth.
    """
    expected = any_expected(report.bandwidth)
    top = max((row.busbw_GBps or 0.0 for row in report.bandwidth), default=0.0)
    columns: tuple[Column, ...] = (
        Column("operation", lambda row: label(row.op, row.dtype)),
        Column("group", lambda row: row.group, shown=not shared_groups(report.bandwidth)),
        Column("size", lambda row: size(row.bytes), "number"),
        Column("algbw GB/s", lambda row: figure(row.algbw_GBps), "number", spare=3),
        Column("busbw GB/s", lambda row: figure(row.busbw_GBps), "number"),
        Column("", lambda row: bar and bar((row.busbw_GBps or 0.0) / top), shown=bar is not None and top > 0, spare=2),
        Column("expected", lambda row: figure(row.expected_GBps.value), "number", expected),
        Column("share", lambda row: percent(row.share_of_expected), "number", expected),
        Column("mean ms", lambda row: figure(row.seconds.mean, 1e3), "number"),
        Column("±", uncertain, "number", any(row.bursts > 1 for row in report.bandwidth)),
        Column("min ms", lambda row: figure(row.seconds.min, 1e3), "number", spare=5),
        Column("max ms", lambda row: figure(row.seconds.max, 1e3), "number", spare=4),
        Column("slowest rank", slowest, "number", spare=1),
        Column("wrong", lambda row: row.wrong, "number"),
    )
    return _table(columns, report.bandwidth)


def times(report: Document, *, everything: bool) -> Grid:
    """Return the table of each rank's time at the largest sizes, in ms; no rows for one or many ranks."""
    measured = [row for row in largest(report) if row.ranks > 1 and (row.ranks <= SIDE_BY_SIDE or everything)]

    def column(row: Bandwidth) -> Column:
        name = f"{label(row.op, row.dtype)} {size(row.bytes)}"
        return Column(name, lambda rank: figure(row.seconds.by_rank[rank], 1e3), "number", spare=measured.index(row))

    fewest = min((len(row.seconds.by_rank) for row in measured), default=0)
    return _table((Column("rank", lambda rank: rank, "number"), *map(column, measured)), range(fewest))


def groups(report: Document) -> Grid:
    """Return the table of the groups of the mesh, one row for each operation; no rows without figures."""
    columns = (
        Column("dimension", lambda row: row.dimension),
        Column("groups", lambda row: row.groups, "number", spare=2),
        Column("ranks each", lambda row: row.ranks, "number", spare=1),
        Column("operation", lambda row: label(row.op, row.dtype)),
        Column("size", lambda row: size(row.bytes), "number"),
        Column("alone GB/s", lambda row: figure(row.alone_busbw_GBps), "number"),
        Column("together GB/s", lambda row: figure(middle(row)), "number"),
        Column("kept", lambda row: percent(row.share_of_alone), "number"),
        Column("slowest", lambda row: figure(lowest(row)), "number"),
        Column("its ranks", lambda row: fold(row.slowest, _GROUP_PIECES) or None),
        Column("wrong", lambda row: row.wrong, "number"),
    )
    return _table(columns, [row for row in report.groups if row.busbw_GBps])


def gpus(report: Document, *, everything: bool, whole_uuids: bool) -> tuple[Grid, str]:
    """Return the table of the GPUs of nodes without ranks, and a line if some are left out."""
    shown = report.gpus if everything else report.gpus[:_GPUS]
    left_out = len(report.gpus) - len(shown)
    columns = (
        Column("node", lambda row: row.node),
        Column("GPU", partial(_gpu, whole_uuids=whole_uuids)),
        Column("model", lambda row: row.gpu.name, spare=3),
        Column("NUMA", lambda row: row.gpu.numa_node, "number", spare=4),
        Column("memory", lambda row: row.memory_bytes and size(row.memory_bytes, 3), "number", spare=2),
        Column("in use", lambda row: _some(row.memory_used_bytes), "number", spare=1),
        Column("°C", lambda row: row.temperature_celsius, "number", spare=1),
        Column("state", lambda row: "lost" if row.lost else None, shown=any(row.lost for row in shown)),
    )
    return _table(columns, shown), f"{count(left_out, 'more GPU')}; -v shows them" if left_out else ""


def _some(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else size(size_bytes, 3)


def devices(report: Document) -> Grid:
    """Return the table of what the devices reached by themselves, over the ranks; no rows without device tests."""
    from distcheck.expectation.devices import SLOW  # only needed for measurements

    rows = figures(report)
    columns = (
        Column("device", lambda row: row.device),
        Column("own work", lambda row: row.figure),
        Column("ranks", lambda row: row.ranks, "number", spare=1),
        Column("lowest", lambda row: figure(row.lowest), "number"),
        Column("median", lambda row: figure(row.median), "number"),
        Column("highest", lambda row: figure(row.highest), "number", spare=2),
        Column("lowest rank", lambda row: row.lowest_rank, "number"),
        Column("of median", lambda row: percent(row.lowest / row.median) if row.median else None, "number", spare=3),
        Column(f"< {SLOW:.0%}", lambda row: row.slow, "number", shown=any(row.slow is not None for row in rows)),
    )
    return _table(columns, rows)


def changes(compared: Comparison) -> Grid:
    """Return the table of the figures of two runs."""
    columns = (
        Column("operation", lambda row: label(row.op, row.dtype)),
        Column("group", lambda row: row.group, shown=any(row.group != "world" for row in compared.figures)),
        Column("size", lambda row: size(row.bytes), "number"),
        Column("before ms", lambda row: figure(row.before_seconds, 1e3), "number"),
        Column("now ms", lambda row: figure(row.now_seconds, 1e3), "number"),
        Column("bandwidth", lambda row: f"{row.share - 1:+.1%}", "number"),
        Column("noise", lambda row: f"{row.noise:.1%}", "number"),
        Column("change", lambda row: row.change),
    )
    return _table(columns, compared.figures)


def differing(compared: Comparison) -> Grid:
    """Return the table of the facts that differ between two runs."""
    columns = (
        Column("fact", lambda row: row.name),
        Column("before", lambda row: row.before, "prose"),
        Column("now", lambda row: row.now, "prose"),
    )
    return _table(columns, compared.facts)


def not_checked(gaps: Sequence[Gap]) -> Grid:
    """Return the table of what was not checked."""
    columns = (
        Column("reason", lambda gap: gap.reason, "prose"),
        Column("required", lambda gap: "yes" if gap.required else "no"),
        Column("rules", lambda gap: ", ".join(gap.rules), "prose"),
        Column("where", lambda gap: gap.where or "everywhere", "prose"),
    )
    return _table(columns, gaps)


def histories(nodes: Sequence[NodeHistory]) -> Grid:
    """Return the table of nodes by how often they failed."""
    columns = (
        Column("node", lambda node: node.node),
        Column("failed", lambda node: node.failed, "number"),
        Column("of runs", lambda node: node.runs, "number"),
        Column("share", lambda node: percent(node.failed / node.runs), "number"),
        Column("last failure (UTC)", lambda node: node.last_failure and _minute(node.last_failure.time)),
        Column("rule", lambda node: node.last_failure and ", ".join(node.last_failure.rules), "prose"),
        Column("last run (UTC)", lambda node: _minute(node.last), spare=1),
    )
    return _table(columns, nodes)


def _minute(time: str) -> str:
    """Return a time without its seconds: 2026-11-22 14:03."""
    return time[:16].replace("T", " ")


def _gpu(row: RankRow | FoldedRanks | IdleGpu, *, whole_uuids: bool) -> str | None:
    """Return index, PCI address and UUID, or the UUID's start, which is unique; of several GPUs their models."""
    gpu = row.gpu
    if gpu is None:
        return row.models or None if isinstance(row, FoldedRanks) else None
    index = "?" if gpu.index is None else str(gpu.index)
    return f"{index} {gpu.pci or '?'} {gpu.uuid if whole_uuids else gpu.uuid[:12]}"


def _nic(gpu: RankGpu | None) -> str | None:
    """Return the adapter with its distance; of more than two at the same distance, the first and their number."""
    if gpu is None or gpu.nic is None:
        return None
    names = gpu.nic.split(",")
    several = ",".join(names) if len(names) <= 2 else f"{names[0]},… ({len(names)})"
    return f"{several} {gpu.nic_distance}"
