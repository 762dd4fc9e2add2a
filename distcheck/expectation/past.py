"""The figures of a job for its nodes' history: their names, and whether one is lower than it was."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from statistics import fmean, median
from typing import NamedTuple

from distcheck.collectives.plan import bus_factor, label
from distcheck.expectation.baseline import of
from distcheck.facts.device import DeviceTest
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
    kind: str
    """What was measured, for a message: all_reduce, copies from the host."""
    of: str
    """Of what: 16 MiB, rank 3."""
    value: float
    unit: str
    nodes: tuple[str, ...]
    """The nodes that it is about."""
    ranks: tuple[int, ...] = ()
    """The ranks that it is about; empty for a collective."""

    @property
    def label(self) -> str:
        """What was measured, for a message."""
        return f"{self.kind} of {self.of}"


def figures(job: Job) -> list[NodeFigure]:
    """Return the job's figures, those of single GPUs first, which do not depend on the other nodes of the job."""
    return [*_devices(job), *_collectives(job)]


def _collectives(job: Job) -> list[NodeFigure]:
    """Return the bus bandwidths, the largest sizes first.

    They are comparable between runs on the same nodes in the same order, with the same ranks on each, models of GPU,
    backend and root of a broadcast.
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
            kind=label(m.op, m.dtype),
            of=size(m.bytes),
            value=_rounded(m.bytes / 1e9 / fmean(m.seconds_by_rank) * factor),
            unit="GB/s busbw",
            nodes=tuple(order),
        )
        for m in sorted(ran.measurements, key=lambda m: -m.bytes)
        if m.group == "world" and m.bytes and (factor := bus_factor(m.op, len(m.seconds_by_rank))) is not None
    ]


def _devices(job: Job) -> Iterator[NodeFigure]:
    """Yield what each GPU reached by itself, while as many others of the node worked; CPUs vary too much."""
    users = Counter(rank.gpu for rank in job.ranks if rank.gpu is not None)
    for rank in job.ranks:
        test = rank.run.device_test if rank.run is not None else None
        if not isinstance(test, DeviceTest) or rank.gpu is None or rank.placement.rank is None or users[rank.gpu] > 1:
            continue
        node = job.node_of(rank)
        for kind, what, value, unit in (
            ("matrix speed", f"matmul {test.dtype} {test.order}", test.matmul_TFLOPS, "TFLOPS"),
            ("copies in GPU memory", "memory", test.memory_GBps, "GB/s"),
            ("copies from the host", "h2d", test.h2d_GBps, "GB/s"),
            ("copies to the host", "d2h", test.d2h_GBps, "GB/s"),
        ):
            if value is not None:
                number = rank.placement.rank
                yield NodeFigure(
                    node=node.name,
                    name=f"{what} {rank.gpu} {len(job.ranks_on(node))}",
                    kind=kind,
                    of=f"rank {number} ({rank.gpu[:12]})",
                    value=_rounded(value),
                    unit=unit,
                    nodes=(node.name,),
                    ranks=(number,),
                )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _setting(job: Job, nodes: tuple[str, ...]) -> str:
    """Return a short name of what must be equal for figures to be comparable."""
    now = of(job, "")
    same = (nodes, now.ranks_by_node, tuple(now.gpus.items()), now.backend)
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
