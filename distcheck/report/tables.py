"""The tables of the human-readable reports, described once; each format only draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from distcheck.collectives.plan import label
from distcheck.facts.quantities import count, size
from distcheck.facts.ranges import fold, numbered
from distcheck.report.devices import figures
from distcheck.report.figures import figure, largest, percent, slowest, uncertain
from distcheck.report.gpus import IdleGpu, RankGpu
from distcheck.report.harmless import harmless
from distcheck.report.mesh_groups import lowest, middle
from distcheck.report.rank_rows import FoldedRanks, rank_rows
from distcheck.report.schema.comparison import Comparison
from distcheck.report.schema.document import Document, PathStep, RankRow
from distcheck.report.schema.figures import Bandwidth
from distcheck.report.schema.mesh import DimensionRow, Range
from distcheck.report.sections import Gap

_GPUS = 32
"""Most GPUs of nodes without ranks."""
SIDE_BY_SIDE = 16
"""Up to this many ranks, each rank's times are shown."""
_PIECES = 4
"""Most ranges of ranks in a cell."""
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
    note: str = ""
    """A line below the table, about rows that are left out."""

    def __bool__(self) -> bool:
        """Whether there is something to draw."""
        return bool(self.rows or self.note)


def _bytes(number: int | None) -> str | None:
    return None if number is None else size(number, 3)


def grid(columns: Iterable[Column], items: Sequence[Any], note: str = "") -> Grid:
    """Return the table of items."""
    shown = [column for column in columns if column.shown]
    cells = (tuple("-" if (cell := c.cell(item)) is None else str(cell) for c in shown) for item in items)
    names, _, kinds, _, spare = zip(*shown, strict=True)
    return Grid(names, kinds, tuple(cells), spare, note)


def ranks(report: Document, *, everything: bool, whole_uuids: bool) -> Grid:
    """Return the table of the ranks.

    A column about GPUs without any known value is left out.
    """
    shown = rank_rows(report, everything=everything)
    note = "ranks are folded; --all-ranks shows a row for each" if len(shown) < len(report.ranks) else ""
    gpus = [row.gpu for row in shown if row.gpu is not None]
    numa = any(gpu.numa_node is not None for gpu in gpus)
    any_gpu = any(row.gpu is not None for row in report.ranks)
    columns = (
        Column("rank", lambda row: row.rank, "number"),
        Column("node", lambda row: row.node),
        Column("local", lambda row: row.local_rank, "number"),
        *map(_coordinate, report.mesh.dimensions if report.mesh else ()),
        Column("GPU", partial(_gpu, whole_uuids=whole_uuids), shown=any_gpu),
        Column("NUMA", lambda row: row.gpu and row.gpu.numa_node, "number", numa, spare=3),
        Column("NIC", lambda row: _nic(row.gpu), shown=any(gpu.nic is not None for gpu in gpus), spare=4),
        Column("master", lambda row: row.master, spare=1),
        Column("stage", lambda row: row.stage, spare=2),
        Column("status", lambda row: row.status, "status"),
    )
    return grid(columns, shown, note)


def _coordinate(dimension: DimensionRow) -> Column:
    """Return the column of a dimension of the mesh."""
    name = dimension.name
    shown = f"mesh {name}" if name in {"rank", "node", "local", "master", "stage", "status"} else name
    return Column(harmless(shown), lambda row: row.mesh[name].rank if row.mesh else None, "number")


def dimensions(report: Document) -> Grid:
    """Return the table of the mesh's dimensions; no rows without a mesh."""
    rows = report.mesh.dimensions if report.mesh else ()
    columns = (
        Column("dimension", lambda row: row.name),
        Column("size", lambda row: row.size, "number"),
        Column("groups", lambda row: row.groups, "number"),
        Column("first group", lambda row: numbered(row.example, _PIECES)),
        Column("nodes per group", lambda row: _range(row.nodes), "number"),
        Column("NVLink domains per group", lambda row: _range(row.domains), "number", any(row.domains for row in rows)),
    )
    return grid(columns, rows)


def critical_path(report: Document) -> Grid:
    """Return the table of the run's stages and their sum; no rows without stages."""
    columns = (
        Column("stage", lambda step: step.stage),
        Column("seconds", lambda step: f"{step.seconds:.2f}", "number"),
        Column("waited for", _process),
        Column("because", lambda step: step.why or None),
    )
    table = grid(columns, report.critical_path)
    total = ("total", f"{sum(step.seconds for step in report.critical_path):.2f}", "", "")
    return table._replace(rows=(*table.rows, total)) if table else table


def _process(step: PathStep) -> str | None:
    """Return the process that a stage waited for: node3 (ranks 4-5)."""
    numbers = f" ({numbered(step.ranks, _PIECES)})" if step.ranks else ""
    return step.nodes[0] + numbers if step.nodes else None


def _range(numbers: Range | None) -> str | None:
    return None if numbers is None else "-".join(dict.fromkeys(map(str, (numbers.min, numbers.max))))


def sweep(report: Document, bar: Callable[[float], str] | None = None) -> Grid:
    """Return the table of measurements; groups, expectations and uncertainties only if there are any.

    `bar` draws a share of the highest bandwidth.
    """
    expected = any(row.expected_GBps.value is not None for row in report.bandwidth)
    top = max((row.busbw_GBps or 0.0 for row in report.bandwidth), default=0.0)
    columns: tuple[Column, ...] = (
        Column("operation", lambda row: label(row.op, row.dtype)),
        Column("group", lambda row: row.group, shown=any(row.group != "world" for row in report.bandwidth)),
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
    return grid(columns, report.bandwidth)


def times(report: Document, *, everything: bool) -> Grid:
    """Return the table of each rank's time at the largest sizes, in ms; no rows for one or many ranks."""
    measured = [row for row in largest(report) if row.ranks > 1 and (row.ranks <= SIDE_BY_SIDE or everything)]

    def column(row: Bandwidth) -> Column:
        name = f"{label(row.op, row.dtype)} {size(row.bytes)}"
        return Column(name, lambda rank: figure(row.seconds.by_rank[rank], 1e3), "number", spare=measured.index(row))

    fewest = min((len(row.seconds.by_rank) for row in measured), default=0)
    return grid((Column("rank", lambda rank: rank, "number"), *map(column, measured)), range(fewest))


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
        Column("its ranks", lambda row: fold(row.slowest, _PIECES) or None),
        Column("wrong", lambda row: row.wrong, "number"),
    )
    return grid(columns, [row for row in report.groups if row.busbw_GBps])


def gpus(report: Document, *, everything: bool, whole_uuids: bool) -> Grid:
    """Return the table of the GPUs of nodes without ranks."""
    shown = report.gpus if everything else report.gpus[:_GPUS]
    left_out = len(report.gpus) - len(shown)
    columns = (
        Column("node", lambda row: row.node),
        Column("GPU", partial(_gpu, whole_uuids=whole_uuids)),
        Column("model", lambda row: row.gpu.name, spare=3),
        Column("NUMA", lambda row: row.gpu.numa_node, "number", spare=4),
        Column("memory", lambda row: _bytes(row.memory_bytes), "number", spare=2),
        Column("in use", lambda row: _bytes(row.memory_used_bytes), "number", spare=1),
        Column("°C", lambda row: row.temperature_celsius, "number", spare=1),
        Column("state", lambda row: "lost" if row.lost else None, shown=any(row.lost for row in shown)),
    )
    return grid(columns, shown, f"{count(left_out, 'more GPU')}; -v shows them" if left_out else "")


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
    return grid(columns, rows)


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
    return grid(columns, compared.figures)


def differing(compared: Comparison) -> Grid:
    """Return the table of the facts that differ between two runs."""
    columns = (
        Column("fact", lambda row: row.name),
        Column("before", lambda row: row.before, "prose"),
        Column("now", lambda row: row.now, "prose"),
    )
    return grid(columns, compared.facts)


def not_checked(gaps: Sequence[Gap]) -> Grid:
    """Return the table of what was not checked."""
    columns = (
        Column("reason", lambda gap: gap.reason, "prose"),
        Column("required", lambda gap: "yes" if gap.required else "no"),
        Column("rules", lambda gap: ", ".join(gap.rules), "prose"),
        Column("where", lambda gap: gap.where or "everywhere", "prose"),
    )
    return grid(columns, gaps)


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
