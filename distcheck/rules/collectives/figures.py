"""The collectives' figures: which are missing, and their bus bandwidth."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from distcheck.collectives.plan import OPERATIONS, bus_factor, label, moved_bytes, usual_sizes
from distcheck.facts.base import Missing
from distcheck.facts.quantities import size
from distcheck.rules.collectives.endings import endings, why_ended
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Collectives, Job, Measurement


def busbw(row: Measurement) -> float | None:
    """Return the bus bandwidth in GB/s (1e9 bytes) from the ranks' mean time, as nccl-tests."""
    factor = bus_factor(row.op, len(row.seconds_by_rank))
    if factor is None:
        return None
    mean = sum(row.seconds_by_rank) / len(row.seconds_by_rank)
    return None if mean <= 0 else row.bytes / mean / 1e9 * factor


def missing_figures(job: Job, collectives: Collectives) -> list[str]:
    """Return the requested figures that are missing, operation by operation."""
    ranks = job.world_size or 1
    there = {(m.op, m.dtype, m.bytes) for m in collectives.measurements}
    gaps = []
    asked = job.asked.sizes_bytes or usual_sizes(collectives.backend)
    for op, dtype in product(job.asked.operations or OPERATIONS, job.asked.dtypes or ("float32",)):
        sizes = dict.fromkeys(moved_bytes(op, b, ranks, dtype) for b in asked)
        absent = [size(b) for b in sizes if (op, dtype, b) not in there]
        if absent:
            gaps.append(f"{label(op, dtype)} of {listed(absent)}")
    return gaps


def unmeasured(job: Job) -> Iterator[NotChecked]:
    """Yield the missing figures, where no finding of this family explains them."""
    collectives = job.collectives
    if collectives is None or isinstance(collectives, Missing):
        reason = collectives.reason if collectives else "the collectives were not run"
        yield NotChecked(reason=reason)
        return
    if any(endings(job).values()):
        return
    gaps = missing_figures(job, collectives)
    if gaps:
        yield NotChecked(reason=f"no figure for {listed(gaps)}{why_ended(job)}")
