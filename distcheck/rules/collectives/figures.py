"""The collectives' figures: which are missing, and their bus bandwidth."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from distcheck.collectives.plan import OPERATIONS, bus_factor, label, moved_bytes, usual_sizes
from distcheck.facts.quantities import size
from distcheck.rules.wording import listed

if TYPE_CHECKING:
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
