"""Shared by the human-readable reports: measured figures, selected and formatted."""

from __future__ import annotations

from collections.abc import Iterable

from distcheck.collectives.plan import label
from distcheck.facts.job import Job
from distcheck.facts.quantities import count, size
from distcheck.report.schema.document import Document
from distcheck.report.schema.figures import Bandwidth, Model

GROUPS = "Groups of the mesh, bus bandwidth: the first group alone, and all groups of a dimension at the same time"


def shared_groups(measured: Iterable[Bandwidth]) -> bool:
    """Return whether every row was measured over the whole world."""
    return all(row.group == "world" for row in measured)


def largest(report: Document) -> list[Bandwidth]:
    """Return the measurement at the largest size of each operation over the whole world."""
    by_op: dict[tuple[str, str], Bandwidth] = {}
    for row in report.bandwidth:
        key = row.op, row.dtype
        if row.group == "world" and (key not in by_op or row.bytes > by_op[key].bytes):
            by_op[key] = row
    return list(by_op.values())


def uncertain(row: Bandwidth) -> str:
    """Return the uncertainty of a figure, empty if unknown; ``*`` if its time ran out before it was steady."""
    if row.uncertainty is None:
        return ""
    return f"{row.uncertainty:.1%}{'' if row.ended == 'steady' else '*'}"


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


def slowest(row: Bandwidth) -> str:
    """Return the slowest rank; outside the world group, its position in the group."""
    if row.ranks < 2 or row.seconds.max is None:
        return "-"
    place = row.seconds.by_rank.index(row.seconds.max)
    return str(place) if row.group == "world" else f"#{place}"


def figure(number: float | None, scale: float = 1.0) -> str:
    """Return a measured quantity with three digits or more; n/a for None."""
    if number is None:
        return "n/a"
    number *= scale
    return f"{number:.1f}" if abs(number) >= 100 else f"{number:.2f}" if abs(number) >= 1 else f"{number:#.3g}"
