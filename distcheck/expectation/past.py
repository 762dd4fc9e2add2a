"""The figures of a job for its nodes' history: their names, and whether one is lower than it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from statistics import fmean, median
from typing import NamedTuple

from distcheck.collectives.plan import bus_factor, label
from distcheck.expectation.baseline import of
from distcheck.facts.history import FEWEST_EARLIER, LATEST
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import size

DEVIATIONS = 4.0
_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
_DIGITS = 5


class NodeFigure(NamedTuple):
    """A figure of which a higher value is better."""

    node: str
    """The node in whose history it stands; for a figure of several nodes, rank 0's."""
    name: str
    """What was measured under which conditions."""
    label: str
    """What was measured, for a message."""
    value: float
    unit: str
    nodes: tuple[str, ...]
    """The nodes that it is about."""


def figures(job: Job) -> list[NodeFigure]:
    """Return the job's figures, the largest sizes first.

    The bus bandwidth of a collective is comparable between runs on the same nodes in the same order, with the same
    ranks on each, models of GPU, backend and root of a broadcast.
    """
    ran = job.collectives
    if not isinstance(ran, Collectives) or not job.ranks:
        return []
    order = dict.fromkeys(job.node_of(rank).name for rank in job.ranks)
    setting = _setting(job, tuple(order))
    return [
        NodeFigure(
            node=next(iter(order)),
            name=f"{m.op} {m.dtype} {m.bytes} {m.group} {setting}",
            label=f"{label(m.op, m.dtype)} of {size(m.bytes)}",
            value=float(f"{m.bytes / 1e9 / fmean(m.seconds_by_rank) * factor:.{_DIGITS}g}"),
            unit="GB/s",
            nodes=tuple(order),
        )
        for m in sorted(ran.measurements, key=lambda m: -m.bytes)
        if m.group == "world" and m.bytes and (factor := bus_factor(m.op, len(m.seconds_by_rank))) is not None
    ]


def _setting(job: Job, nodes: tuple[str, ...]) -> str:
    """Return a short name of what must be equal for figures to be comparable."""
    now = of(job, "")
    same = (nodes, now.ranks_by_node, tuple(now.gpus.items()), now.backend, now.rotate_root)
    return blake2b(repr(same).encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


def fell(values: Sequence[float], now: float, least: float) -> bool:
    """Whether a figure, and the newest of its earlier values, are lower than usual by more than noise."""
    earlier, newest = values[: 1 - LATEST], (*values[1 - LATEST :], now)
    if len(earlier) < FEWEST_EARLIER or min(*earlier, *newest) <= 0:
        return False
    logs = [math.log(value) for value in earlier]
    middle = median(logs)
    noise = DEVIATIONS * _SIGMA * median(abs(value - middle) for value in logs)
    limit = middle - max(noise, -math.log(least))
    return median(math.log(value) for value in newest) < limit and math.log(now) < limit


def usual(values: Sequence[float]) -> float:
    """Return the median of a figure's earlier values, without the newest."""
    return median(values[: 1 - LATEST])
