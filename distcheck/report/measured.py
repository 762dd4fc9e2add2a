"""What was measured, as the human-readable reports show it: tables, and lines below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from distcheck.collectives.plan import label
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import count, size
from distcheck.report import tables
from distcheck.report.figures import figure
from distcheck.report.schema.document import Document
from distcheck.report.schema.figures import Bandwidth, Model

GROUPS = "Groups of the mesh, bus bandwidth: the first group alone, and all groups of a dimension at the same time"


class Measured(NamedTuple):
    """What was measured in one way."""

    caption: str = ""
    table: tables.Grid | None = None
    lines: Sequence[str] = ()
    """Below the table."""


def measured(
    job: Job, report: Document, *, everything: bool, bar: Callable[[float], str] | None = None
) -> list[Measured]:
    """Return what was measured, without what is empty."""
    ended = job.collectives.ended if isinstance(job.collectives, Collectives) else ""
    early = [f"Collectives ended early: {ended}"] if ended else []
    found = (
        ("", tables.sweep(report, bar), [*provenance(job, report.bandwidth), *early]),
        ("", None, [*models(report), *first_calls(job), *training_lines(report)]),
        ("Time per operation on each rank, ms", tables.times(report, everything=everything), ()),
        (GROUPS, tables.groups(report), ()),
        ("What each device reached by itself", tables.devices(report), ()),
    )
    return [Measured(*block) for block in found if any(block[1:])]


def provenance(job: Job, measured: Iterable[Bandwidth]) -> list[str]:
    """Return one line per source: its operations, and what smaller sizes expect."""
    baseline = job.asked.baseline
    operations: dict[str, dict[str, set[float]]] = {}
    for row in measured:
        if row.expected_GBps.value is not None:
            of = operations.setdefault(row.expected_GBps.source, {}).setdefault(label(row.op, row.dtype), set())
            of.add(row.expected_GBps.value)
    lines = []
    for source, values in operations.items():
        each = "; each size as in that run"
        if baseline is None or source != baseline.file:
            each = "; smaller sizes: the usual share of it" if any(len(v) > 1 for v in values.values()) else ""
        lines.append(f"expected for {' and '.join(values)}: {source}{each}")
    return lines


def first_calls(job: Job) -> list[str]:
    """Return the start-up times of the slowest rank, which the figures do not include."""
    runs = [rank.run for rank in job.ranks if rank.run is not None]
    joined = [run.joined_seconds for run in runs if run.joined_seconds is not None]
    if not joined:
        return []
    slow: dict[str, float] = {}
    for run in runs:
        for op, seconds in run.first_call_seconds.items():
            if seconds > slow.get(op, -1.0):
                slow[op] = seconds
    parts = [f"process group {_duration(max(joined))}", *(f"first {op} {_duration(s)}" for op, s in slow.items())]
    return [f"start-up, slowest rank: {', '.join(parts)}"]


def training_lines(report: Document) -> list[str]:
    """Return what the steps covered, one line for each way."""
    return [
        f"training with {row.way}: {count(row.steps, 'step')} on {count(row.ranks, 'rank')}, "
        f"{count(row.tensors, 'tensor')} in {row.dtype} compared with exact results"
        for row in report.training
        if row.ranks
    ]


def models(report: Document) -> list[str]:
    """Return the fitted latency and bandwidth of each operation, one line each."""
    return [f"{label(m.op, m.dtype)}: {_model(m)}; fit error {m.error:.0%}" for m in report.models]


def _model(m: Model) -> str:
    speed = f"size / {figure(m.algbw_GBps)} GB/s"
    if m.busbw_GBps is not None:
        speed += f", busbw {figure(m.busbw_GBps)} GB/s at large sizes"
    if not m.latency_seconds:  # the times are in proportion to the sizes
        return speed
    return f"{figure(m.latency_seconds, 1e3)} ms + {speed}; half of peak at {size(m.half_bytes, 2)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
