"""The states of a job's hosts, and their ranks, as several rules look at them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.host import HostFacts, Limits
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import grouped, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts


@once
def hosts(job: Job) -> tuple[tuple[NodeFacts, HostFacts], ...]:
    """Return the nodes whose state is known, with it."""
    return tuple((node, node.host) for node in job.nodes if isinstance(node.host, HostFacts))


@once
def limited(job: Job) -> tuple[tuple[RankFacts, NodeFacts, Limits], ...]:
    """Return the ranks whose limits are known, each with its node and the limits of its process."""
    return tuple([(rank, node, limits) for rank, process, node in job.placed if (limits := process.limits) is not None])


def unread(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes whose state could not be read; this never fails a run."""
    silent = [node for node in job.nodes if isinstance(node.host, Missing)]
    for reason, nodes in grouped(silent, lambda n: n.host.reason if isinstance(n.host, Missing) else "").items():
        yield NotChecked(nodes=tuple(node.name for node in nodes), reason=reason, required=False)


def elsewhere(values: Sequence[float]) -> Sequence[float]:
    """Return for each node what is usual: the median of all nodes, which one bad node does not change.

    Of two nodes it is the value of the other one.
    """
    return values[::-1] if len(values) <= 2 else [median(values)] * len(values)


def who_else(nodes: Sized) -> str:
    """Return whose value `elsewhere` returns, for a message: the other node has."""
    return "the other node has" if len(nodes) == 2 else "half of the nodes have"
