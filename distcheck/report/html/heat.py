"""The heat map: nodes by local ranks, coloured by status or by one figure of each rank."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from distcheck.collectives.plan import label
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Job
from distcheck.facts.quantities import count, size
from distcheck.facts.ranges import fold
from distcheck.report.figures import figure, largest
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.document import STATUSES, Document, RankRow, Status
from distcheck.report.sections import PIECES
from distcheck.rules.wording import grouped

ROWS = 48
"""With more nodes than this, healthy ones are folded into one row, and a small map shows all."""
MAPPED = 20_000
"""With more ranks than this, there is no map of all nodes."""
_MAP_PIXELS, _CELL_PIXELS, _GAP_PIXELS = 940, 5, 6
"""Width of a row of the small map, of a rank in it, and between two nodes."""
_OPERATIONS = 4
"""Most operations to choose from."""
_RANGES = 4
"""Most ranges of ranks beside a node."""
_SLOWER = (1.05, 1.1, 1.25, 1.5)
_HOTTER = (60.0, 70.0, 80.0, 85.0)
"""Degrees Celsius: data-centre GPUs lower their clocks near 85 to 90."""
_ODD = 3
"""From this level on, a figure makes a node stand out."""
SIGNS: dict[Status, str] = {"ok": "✓", "warning": "!", "error": "✗", "unknown": "?", "missing": "-"}
"""What a cell shows beside its colour."""
_WORST: tuple[Status, ...] = ("error", "missing", "unknown", "warning", "ok")


class Scale(NamedTuple):
    """One figure of each rank, and when it is how bad."""

    name: str
    figures: dict[int, float]
    """By rank."""
    steps: tuple[float, ...]
    """Where levels 1 to 4 begin."""
    legend: tuple[str, ...]
    """What levels 0 to 4 mean."""
    low_is_bad: bool = False

    def level(self, number: float) -> int:
        """Return how bad a figure is: 0 to 4."""
        return sum(number < step if self.low_is_bad else number >= step for step in self.steps)


class HeatCell(NamedTuple):
    """One rank, or the ranks of one local rank on folded nodes."""

    status: Status
    levels: tuple[int | None, ...]
    """One per scale; None without a figure."""
    texts: tuple[str, ...]
    """What it shows: its status' sign, then a figure for each scale."""
    rank: str

    @property
    def classes(self) -> str:
        """The cell's CSS classes: its status, and letter and level of each scale."""
        return " ".join(
            [self.status, *(f"{'ABCDEF'[n]}{level}" for n, level in enumerate(self.levels) if level is not None)]
        )

    @property
    def odd(self) -> bool:
        """Whether it stands out."""
        return self.status != "ok" or any(level is not None and level >= _ODD for level in self.levels)


class HeatRow(NamedTuple):
    """One node, or several healthy ones."""

    name: str
    ranks: str
    cells: tuple[HeatCell, ...]

    @property
    def odd(self) -> bool:
        """Whether one of its cells stands out."""
        return any(cell.odd for cell in self.cells)


class HeatMap(NamedTuple):
    """The rows to show, all nodes for the small map, and what is in neither."""

    scales: tuple[Scale, ...]
    rows: tuple[HeatRow, ...]
    every: tuple[HeatRow, ...]
    """All nodes; empty if `rows` has them all, or if they are too many."""
    widest: int
    summary: str
    notes: tuple[str, ...]

    @property
    def per_line(self) -> int:
        """How many nodes a row of the small map has: a multiple of ten if so many fit."""
        fitting = _MAP_PIXELS // (self.widest * _CELL_PIXELS + _GAP_PIXELS)
        return fitting // 10 * 10 or max(1, fitting)


def heat_map(job: Job, report: Document) -> HeatMap | None:
    """Return the map; None without ranks on nodes."""
    by_node = grouped((row for row in report.ranks if row.node is not None), lambda row: row.node or "")
    if not by_node:
        return None
    scales = tuple(_scales(job, report))
    every = [_row(name, ranks, scales) for name, ranks in by_node.items()]
    rows, notes = (every, []) if len(every) <= ROWS else _folded(every)
    homeless = [row.rank for row in report.ranks if row.node is None and row.rank is not None]
    if homeless:
        notes.append(f"{count(len(homeless), 'missing rank')} without a known node: {fold(homeless, PIECES)}")
    tally = [(status, sum(row.status == status for row in report.ranks)) for status in STATUSES]
    return HeatMap(
        scales=scales,
        rows=tuple(rows),
        every=tuple(every) if len(every) > ROWS and len(report.ranks) <= MAPPED else (),
        widest=max(len(row.cells) for row in rows),
        summary=f"{count(len(report.ranks), 'rank')} on {count(len(every), 'node')}: "
        + ", ".join(f"{number} {status}" for status, number in tally if number),
        notes=tuple(notes),
    )


def _scales(job: Job, report: Document) -> list[Scale]:
    """Return the figures that at least one rank has."""
    found = []
    for row in largest(report)[:_OPERATIONS]:
        times = {rank: second * 1e3 for rank, second in enumerate(row.seconds.by_rank) if second is not None}
        found.append(_relative(f"{label(row.op, row.dtype)} {size(row.bytes)}", "ms", times))
    rates = {row.rank: row.matmul_TFLOPS for row in report.devices if row.rank is not None}
    found.append(_relative("matrix speed", "TFLOPS", rates, low_is_bad=True))
    legend = (f"below {_HOTTER[0]:g} °C", *(f"from {step:g} °C" for step in _HOTTER))
    found.append(Scale("GPU temperature", _temperatures(job), _HOTTER, legend))
    return [scale for scale in found if scale.figures]


def _relative(name: str, unit: str, figures: dict[int, float], *, low_is_bad: bool = False) -> Scale:
    """Return a scale around the median of the ranks."""
    usual = median(figures.values()) if figures else 0.0
    steps = tuple(usual / step if low_is_bad else usual * step for step in _SLOWER)
    apart = [f"over {1 - 1 / step:.0%} lower" if low_is_bad else f"over {step - 1:.0%} longer" for step in _SLOWER]
    return Scale(name, figures, steps, (f"usual ({figure(usual)} {unit})", *apart), low_is_bad)


def _temperatures(job: Job) -> dict[int, float]:
    """Return each rank's GPU temperature: the highest during the collectives, else that of the probe."""
    found = {}
    for node in job.nodes:
        devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
        known = {
            name: heat for gpu in devices if (heat := _heat(gpu)) is not None for name in (gpu.uuid, *gpu.mig_uuids)
        }
        for rank in job.ranks_on(node):
            if rank.gpu in known and rank.placement.rank is not None:
                found[rank.placement.rank] = known[rank.gpu]
    return found


def _heat(gpu: Gpu) -> float | None:
    readings = (gpu.load and gpu.load.temperature_celsius, gpu.health and gpu.health.temperature_celsius)
    return next((float(reading) for reading in readings if isinstance(reading, int)), None)


def _row(name: str, ranks: list[RankRow], scales: tuple[Scale, ...]) -> HeatRow:
    ranks = _by_column(ranks)
    numbers = fold((row.rank for row in ranks if row.rank is not None), _RANGES)
    return HeatRow(name, numbers, tuple(_cell(row, scales) for row in ranks))


def _by_column(ranks: list[RankRow]) -> list[RankRow]:
    """Return the ranks of a node by local rank; ranks without one, as missing ones, fill the gaps."""
    ordered = sorted(ranks, key=lambda row: row.rank or 0)
    places: list[RankRow | None] = [None] * len(ranks)
    others = []
    for row in ordered:
        if row.local_rank is not None and 0 <= row.local_rank < len(ranks) and places[row.local_rank] is None:
            places[row.local_rank] = row
        else:
            others.append(row)
    rest = iter(others)
    return [next(rest) if row is None else row for row in places]


def _cell(row: RankRow, scales: tuple[Scale, ...]) -> HeatCell:
    known = [None if row.rank is None else scale.figures.get(row.rank) for scale in scales]
    return HeatCell(
        row.status,
        tuple(None if number is None else scale.level(number) for number, scale in zip(known, scales, strict=True)),
        (SIGNS[row.status], *("-" if number is None else _short(number) for number in known)),
        "?" if row.rank is None else str(row.rank),
    )


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def _folded(every: list[HeatRow]) -> tuple[list[HeatRow], list[str]]:
    """Return the nodes that stand out, worst first, and one row for the others."""
    odd = sorted(
        (row for row in every if row.odd), key=lambda row: min(_WORST.index(cell.status) for cell in row.cells)
    )
    shown, rest = odd[:ROWS], odd[ROWS:]
    notes = [f"{count(len(rest), 'more node')} with problems: {fold_nodes(row.name for row in rest)}"] if rest else []
    names = {row.name for row in odd}
    plain = grouped((row for row in every if row.name not in names), lambda row: len(row.cells))
    return [*shown, *(_one(rows) for rows in plain.values())], notes


def _one(rows: list[HeatRow]) -> HeatRow:
    """Return several healthy nodes as one row: each cell has the range of its figures, and their worst level."""
    if len(rows) == 1:
        return rows[0]
    cells = []
    for column in zip(*(row.cells for row in rows), strict=True):
        levels = tuple(
            max((v for v in level if v is not None), default=None)
            for level in zip(*(c.levels for c in column), strict=True)
        )
        texts = [_range(text) for text in zip(*(c.texts[1:] for c in column), strict=True)]
        cells.append(HeatCell("ok", levels, (SIGNS["ok"], *texts), count(len(column), "rank")))
    name = fold_nodes(row.name for row in rows)
    ranks = count(sum(len(row.cells) for row in rows), "rank")
    return HeatRow(f"{name} ({count(len(rows), 'node')})", ranks, tuple(cells))


def _range(texts: tuple[str, ...]) -> str:
    known = sorted({text for text in texts if text != "-"}, key=float)
    return "-" if not known else known[0] if len(known) == 1 else f"{known[0]}-{known[-1]}"
