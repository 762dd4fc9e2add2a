"""The states of a job's hosts, and their ranks, as several rules look at them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.host import CgroupLimit, HostFacts, Limits
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import grouped, listed, merged, once, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts
    from distcheck.rules import Outcome


class HostSeen(NamedTuple):
    """A node whose state is known, with it."""

    node: NodeFacts
    facts: HostFacts


class Limited(NamedTuple):
    """A rank, its node, and what its process may use."""

    rank: RankFacts
    node: NodeFacts
    limits: Limits


@once
def hosts(job: Job) -> tuple[HostSeen, ...]:
    """Return the nodes whose state is known."""
    return tuple(HostSeen(node, node.host) for node in job.nodes if isinstance(node.host, HostFacts))


@once
def limited(job: Job) -> tuple[Limited, ...]:
    """Return the ranks whose limits are known."""
    return tuple([Limited(rank, node, process.limits) for rank, process, node in job.placed if process.limits])


def by_cgroup(job: Job, of: Callable[[Limits], CgroupLimit | None]) -> Iterator[tuple[list[RankFacts], CgroupLimit]]:
    """Yield the ranks of a node that share a cgroup's limit, as it was when it left them the least."""
    pairs = [(its, limit) for its in limited(job) if (limit := of(its.limits)) is not None]
    for alike in grouped(pairs, lambda pair: (pair[0].node.key, pair[1].cgroup, pair[1].limit)).values():
        yield [its.rank for its, _ in alike], min((limit for _, limit in alike), key=lambda limit: limit.left)


def each_host(job: Job, judge: Callable[[HostSeen], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of hosts (``of=each_host``), once for all nodes of which it says the same.

    A state that could not be read never fails a run.
    """
    answers = ((host.node, judge(host)) for host in hosts(job))
    yield from _of_nodes(answers, required=False)
    yield from unread(job)


def each_node(job: Job, judge: Callable[[NodeFacts], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of nodes (``of=each_node``), as `each_host`; ``distcheck node`` needs all facts."""
    yield from _of_nodes(((node, judge(node)) for node in job.nodes), required="node" in job.asked.looks)


def each_limited(job: Job, judge: Callable[[Limited], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of ranks whose limits are known, once for all of which it says the same."""
    return merged(job, (([its.rank], judge(its)) for its in limited(job)))


def _of_nodes(answers: Iterable[tuple[NodeFacts, Fault | Missing | None]], *, required: bool) -> Iterator[Outcome]:
    given = [(node, answer) for node, answer in answers if answer is not None]
    for several in grouped(given, lambda pair: same(pair[1])).values():
        names, answer = tuple(node.name for node, _ in several), several[0][1]
        if isinstance(answer, Missing):
            yield NotChecked(reason=answer.reason, nodes=names, required=required)
            continue
        ranks = tuple(sorted({rank for _, fault in several if isinstance(fault, Fault) for rank in fault.ranks}))
        yield msgspec.structs.replace(answer, message=f"{listed(names)}: {answer.message}", nodes=names, ranks=ranks)


def unread(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes whose state could not be read; this never fails a run."""
    silent = [(node.name, node.host.reason) for node in job.nodes if isinstance(node.host, Missing)]
    for reason, pairs in grouped(silent, lambda pair: pair[1]).items():
        yield NotChecked(nodes=tuple(name for name, _ in pairs), reason=reason, required=False)


def beside(job: Job, figure: Callable[[HostSeen], float | None]) -> Iterator[tuple[HostSeen, float, float, str]]:
    """Yield each host with a known figure, that figure, and what is usual; and whose that is: half of the nodes have.

    Usual is the median of all nodes, which one bad node does not change; of two nodes it is the other one's.
    """
    known = [(host, value) for host in hosts(job) if (value := figure(host)) is not None]
    values = [value for _, value in known]
    usual = values[::-1] if len(values) <= 2 else [median(values)] * len(values)
    whose = "the other node has" if len(values) == 2 else "half of the nodes have"
    for (host, value), other in zip(known, usual, strict=True):
        yield host, value, other, whose
