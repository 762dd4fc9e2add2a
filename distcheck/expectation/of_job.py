"""The expectation for each operation that a job measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.collectives.plan import bus_factor, label
from distcheck.expectation.baseline import differences, of
from distcheck.expectation.hardware import Hardware
from distcheck.expectation.ladder import Figure, expect
from distcheck.expectation.models import NETWORK_SHARE
from distcheck.expectation.observed import hardware
from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives
from distcheck.facts.nccl import NcclLog
from distcheck.facts.policy import matching

if TYPE_CHECKING:
    from distcheck.expectation.judge import Expectation
    from distcheck.facts.job import Job, Measurement

GIVEN, SITE = "--min-busbw", "the site's policy"
_GRAPH_SHARE = 0.97
"""Share of the total of NCCL's graph that a ring on one node reaches (232 of 240 GB/s on A100)."""
_NVLINK = ("NVL", "NVB")
_TREES = ("NVLS", "TREE", "COLLNET")


def expectations(job: Job) -> dict[str, Expectation]:
    """Return the expectation for each operation measured over the whole world, by label."""
    if not isinstance(job.collectives, Collectives):
        return {}
    largest: dict[str, Measurement] = {}
    for row in job.collectives.measurements:
        name = label(row.op, row.dtype)
        if row.group == "world" and (name not in largest or row.bytes > largest[name].bytes):
            largest[name] = row
    if not largest:
        return {}
    where, log, earlier = hardware(job), log_of(job), saved(job)
    return {
        name: expect(
            row.op,
            where,
            ranks=len(row.seconds_by_rank),
            algorithm=None if log is None else algorithm(log, row.op, row.bytes),
            given=given(job, row.op, len(row.seconds_by_rank)),
            baseline=_at(earlier.get(name), row.bytes),
            nccl=None if log is None else _of_graph(log, where),
        )
        for name, row in largest.items()
    }


def given(job: Job, op: str, ranks: int) -> Figure | None:
    """Return the lowest accepted bus bandwidth between so many ranks: of --min-busbw, else of the site's policy."""
    if job.asked.min_busbw_GBps is not None:
        return Figure(job.asked.min_busbw_GBps, GIVEN)
    floors = job.asked.site().busbw
    models = of(job, "").gpus if floors else {}
    fitting = [
        floor.GBps
        for floor in floors
        if floor.ranks in {None, ranks}
        and matching(op, floor.op)
        and all(matching(name, floor.gpu) for name in models or [""])
    ]
    return Figure(fitting[-1], SITE) if fitting else None


def _at(figure: Figure | None, size_bytes: int) -> Figure | None:
    """Return the saved figure if it covers this size, else None."""
    return figure if figure and (figure.by_size is None or size_bytes in figure.by_size) else None


def saved(job: Job) -> dict[str, Figure]:
    """Return the bus bandwidths of the --baseline run if it is comparable, else nothing."""
    before = job.asked.baseline
    if before is None:
        return {}
    if differences(before, of(job, "")):
        return {}
    found: dict[str, dict[int, float]] = {}
    for row in before.rows:
        factor = bus_factor(row.op, sum(before.ranks_by_node)) if row.group == "world" else None
        if factor is not None and row.seconds > 0:
            found.setdefault(label(row.op, row.dtype), {})[row.bytes] = row.bytes / row.seconds / 1e9 * factor
    return {name: Figure(by_size[max(by_size)], before.file, by_size) for name, by_size in found.items()}


def algorithm(log: NcclLog, op: str, size_bytes: int) -> str | None:
    """Return the algorithm in NCCL's log for an operation at a size, None if not logged.

    Before 2.22 NCCL did not log the operation. Then only algorithms that are exclusive to all_reduce count.
    """
    used = log.algorithms.get(f"{op} {size_bytes}")
    if used is None and op == "all_reduce":
        nameless = log.algorithms.get(str(size_bytes), "")
        used = nameless if nameless.startswith(_TREES) else None
    return used.partition("/")[0] if used else None


def log_of(job: Job) -> NcclLog | None:
    """Return the most informative NCCL log: the first one with algorithms, usually rank 0's."""
    logs = (rank.run.nccl for rank in job.ranks if rank.run and isinstance(rank.run.nccl, NcclLog))
    first = next(logs, None)
    return first if first is None or first.algorithms else next((log for log in logs if log.algorithms), first)


def _of_graph(log: NcclLog, where: Hardware | Missing) -> Figure | None:
    """Return the total rate of NCCL's rings, None where it does not reflect the hardware.

    With sockets NCCL does not know the speed of virtual links, with PCIe it assumes more than the link has, and in a
    multi-node NVLink domain its rings are not meaningful.
    """
    graph = next((graph for graph in log.graphs if graph.pattern == "ring"), None)
    if graph is None or isinstance(where, Missing) or log.mnnvl or graph.intra_path not in _NVLINK:
        return None
    if where.nodes == 1:
        total = graph.channels * graph.intra_GBps
        words = f"{graph.channels} rings x {graph.intra_GBps:g} GB/s in NCCL's own graph = {total:.1f} GB/s"
        return Figure(_GRAPH_SHARE * total, f"{words}; {_GRAPH_SHARE:g} of it is usual") if total > 0 else None
    slower = min(graph.intra_GBps, graph.inter_GBps)
    total = graph.channels * slower
    if log.network == "Socket" or total <= 0:
        return None
    words = f"{graph.channels} rings x {slower:g} GB/s in NCCL's own graph = {total:.1f} GB/s"
    return Figure(NETWORK_SHARE * total, f"{words}; {NETWORK_SHARE:g} of it is usual")
