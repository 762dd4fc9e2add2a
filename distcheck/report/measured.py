"""What the reports for people share of what was measured: figures chosen and written."""

from __future__ import annotations

from collections.abc import Iterable

from distcheck.collectives.plan import label
from distcheck.facts import Job
from distcheck.report.document import Bandwidth, Document

SIDE_BY_SIDE = 16
"""Up to this many ranks, each rank's times are shown."""


def shared_groups(measured: Iterable[Bandwidth]) -> bool:
    """Tell whether everything was measured over the whole world."""
    return all(row.group == "world" for row in measured)


def largest(report: Document) -> list[Bandwidth]:
    """Return the measurement at the largest size of each operation over the whole world."""
    by_op: dict[tuple[str, str], Bandwidth] = {}
    for row in report.bandwidth:
        key = row.op, row.dtype
        if row.group == "world" and (key not in by_op or row.bytes > by_op[key].bytes):
            by_op[key] = row
    return list(by_op.values())


def side_by_side(report: Document, *, everything: bool) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of each rank's time at the largest sizes, in ms; none for one rank or many."""
    measured = [row for row in largest(report) if row.ranks > 1 and (row.ranks <= SIDE_BY_SIDE or everything)]
    times = zip(*(row.seconds.by_rank for row in measured), strict=False)
    return (
        ["rank", *(f"{label(row.op, row.dtype)} {size(row.bytes)}" for row in measured)],
        [[str(rank), *(figure(second, 1e3) for second in each)] for rank, each in enumerate(times)],
    )


def uncertain(row: Bandwidth) -> str:
    """Return by how much a figure may be off, and with ``*`` that its time was over before it was steady."""
    if row.uncertainty is None:
        return "?" if row.bursts > 1 else "-"
    return f"{row.uncertainty:.1%}{'' if row.ended == 'steady' else '*'}"


def first_calls(job: Job) -> list[str]:
    """Say how long the beginning took, of the slowest rank each: it is no part of the figures."""
    runs = [rank.run for rank in job.ranks if rank.run is not None]
    joined = [run.joined_seconds for run in runs if run.joined_seconds is not None]
    if not joined:
        return []
    operations = dict.fromkeys(op for run in runs for op in run.first_call_seconds)
    slow = {op: max(run.first_call_seconds.get(op, 0.0) for run in runs) for op in operations}
    parts = [f"process group {max(joined):.3g} s", *(f"first {op} {seconds:.3g} s" for op, seconds in slow.items())]
    return [f"until then, on the slowest rank: {', '.join(parts)}"]


def models(report: Document) -> list[str]:
    """Say what the sizes of each operation come to: a latency, and the bandwidth that large sizes near."""
    return [
        f"{label(m.op, m.dtype)}: {figure(m.latency_seconds, 1e3)} ms + size / {figure(m.algbw_GBps)} GB/s"
        f"{'' if m.busbw_GBps is None else f', busbw {figure(m.busbw_GBps)} GB/s at large sizes'}; half of it at "
        f"{_roughly(m.half_bytes)} (within {m.error:.0%})"
        for m in report.models
    ]


def _roughly(size_bytes: float) -> str:
    """Write a size of which two digits are known: 69 KiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")):
        if size_bytes >= 1 << power or not power:
            return f"{float(f'{size_bytes / (1 << power):.2g}'):g} {unit}"
    return "0 B"


def slowest(row: Bandwidth) -> str:
    """Return the rank with the longest time; outside the world group, its place in the group."""
    times = [-1.0 if second is None else second for second in row.seconds.by_rank]
    if len(times) < 2 or max(times) < 0:
        return "-"
    place = times.index(max(times))
    return str(place) if row.group == "world" else f"#{place}"


def size(quantity: int) -> str:
    """Write a number of bytes in binary units: 1 MiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if quantity >= 1 << power:
            return f"{quantity / (1 << power):.5g} {unit}"
    return f"{quantity} B"


def figure(number: float | None, scale: float = 1.0) -> str:
    """Write a measured quantity with three digits or more; n/a where there is none."""
    if number is None:
        return "n/a"
    number *= scale
    return f"{number:.1f}" if abs(number) >= 100 else f"{number:.2f}" if abs(number) >= 1 else f"{number:#.3g}"
