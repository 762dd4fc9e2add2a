"""Rules about the results of isolation: the search for a bad node, link or rank."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.isolation import CulpritFacts, GroupTest, Isolation
from distcheck.facts.job import Job
from distcheck.facts.members import Members
from distcheck.facts.quantities import count
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.collectives.endings import short_of_time
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.same_ranks import on_hosts
from distcheck.rules.wording import brief, listed, numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MOST = 8
_COMPARABLE = 3
"""From this many nodes on there are several pairs to compare."""


def _searched(job: Job) -> Isolation | None:
    return job.isolation if isinstance(job.isolation, Isolation) else None


def _on(job: Job, names: Sequence[str], local_ranks: Sequence[int] = ()) -> list[RankFacts]:
    """Return the ranks on these nodes, limited to these local ranks if given."""
    return [
        rank
        for node in job.nodes
        if job.node_names[node.key] in names
        for rank in job.ranks_on(node)
        if not local_ranks or rank.placement.local_rank in local_ranks
    ]


def _hosts(job: Job, names: Sequence[str]) -> tuple[str, ...]:
    """Return the host names of nodes, without the suffix that makes equal names unique."""
    plain = {job.node_names[node.key]: node.name for node in job.nodes}
    return tuple(plain.get(name, name) for name in names)


def _evidence(tests: Sequence[GroupTest]) -> dict[str, Any]:
    lines = {}
    for test in tests[:_MOST]:
        result = test.outcome if test.ratio is None else f"{test.outcome}, {test.ratio:.0%} of the others"
        detail = f" ({brief(test.said[0], 100)})" if test.said else ""
        lines[f"round {test.round}, {test.purpose} {listed(test.nodes, most=4)}"] = result + detail
    return lines


def each_culprit(job: Job, judge: Callable[[CulpritFacts], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of each culprit (``of=each_culprit``): with what shows it, its ranks and nodes.

    Where most nodes or links show faults, none of them is one. A search that could not decide is not checked here too:
    isolation-undecided, which reports it, may not be selected.
    """
    searched = _searched(job)
    if searched and searched.kind in {"shared", "undecided"}:
        yield NotChecked(reason="the search could not decide which node or link is at fault")
    for culprit in searched.culprits if searched and searched.kind != "shared" else ():
        fault = judge(culprit)
        if isinstance(fault, Fault):
            link = culprit.part == "link"
            # A scheduler cannot exclude the right one of two nodes with the same name.
            nameless = not {node.name for node in job.nodes}.issuperset(culprit.nodes)
            yield msgspec.structs.replace(
                fault,
                message=brief(fault.message, 300),
                evidence=_evidence(culprit.evidence),
                scope="link" if link else "gpu" if culprit.part == "rail" else "node",
                confirmed=culprit.certain and not link and not nameless,
                ranks=numbers_of(_on(job, culprit.nodes, culprit.local_ranks)),
                nodes=culprit.nodes,
            )


@rule("isolation", scope=("node", "gpu"), unless=("sw-torch-missing",), owner="admin", of=each_culprit)
def isolation_bad_node(job: Job, culprit: CulpritFacts) -> Answer:
    """A node fails by itself or with several nodes that work with others.

    One such node stops the whole job: its ranks fail, hang or return wrong numbers, and the others wait for it.

    Found by repeating the collectives in small groups, each in new processes: every node alone, then pairs of nodes in
    which each suspect meets nodes that worked with others. A node is confirmed bad if it fails alone, or with at least
    two such partners, unless the network may be partitioned with the node on another side. A node that sometimes passes
    is named as flaky. When only ranks with the same local rank fail on it, these are named.

    Fix: Exclude the node and restart; then check its GPUs, its network interface and its kernel log.

        distcheck node  # on {host}
        sudo dmesg -T | tail -n 50
    """
    if culprit.part not in {"node", "rail"} or culprit.fault == "slow":
        return None
    return Fault(culprit.sentence, values={"host": _hosts(job, culprit.nodes)[:1]})


@rule("isolation", scope="node", owner="admin", of=each_culprit)
def isolation_slow_node(job: Job, culprit: CulpritFacts) -> Answer:
    """A node, or a rank on it, is far slower than the others.

    Every collective runs at the pace of the slowest rank, and so does the whole job.

    Found by the time each rank needs for local work (multiplying matrices, copying memory), and by the bandwidth that a
    node reaches with several others, compared with the median of similar groups. Both are measured again before a node
    or rank is named. The time a rank spends in a collective never counts, because the late rank shows the shortest
    time.

    Fix: Exclude the node; check for other processes, throttled clocks, a CPU limit, or a link at a lower rate.

        ssh {host} 'uptime; {clocks|nvidia-smi -q -d PERFORMANCE}'
        distcheck net
    """
    if culprit.part != "rank" and (culprit.part == "link" or culprit.fault != "slow"):
        return None
    nvidia = any(n.accelerator == "nvidia" for n in job.nodes if job.node_names[n.key] in culprit.nodes)
    clocks = () if nvidia else ("lscpu --extended",)
    host = quote(_hosts(job, culprit.nodes)[0])
    return Fault(culprit.sentence, values={"host": (host,), "clocks": clocks})


@rule("isolation", "perf-slow-pair", scope="link", owner="admin", of=each_culprit)
def isolation_bad_link(job: Job, culprit: CulpritFacts) -> Answer:
    """Two nodes do not work with each other, although each of them works with others.

    The path between them is at fault: a cable, a switch port, a route, a firewall between two racks. Neither node is to
    blame, and the job can use either of them without the other.

    Found by the collectives in pairs of nodes, in several rounds with different partners.

    Fix: Check the path between the two nodes; to start now, exclude one of them.

        distcheck net {hosts|--hosts HOST,PEER} --nproc 1
        ssh {host} tracepath -n {peer}
    """
    hosts = _hosts(job, culprit.nodes)
    if culprit.part != "link" or len(hosts) < 2:
        return None
    a, *_, b = hosts
    both = on_hosts(job, (a, b)).strip()
    return Fault(culprit.sentence, values={"hosts": (both,), "host": (quote(a),), "peer": (quote(quote(b)),)})


@rule("isolation", scope="link", owner="admin")
def isolation_boundary(job: Job) -> Iterator[Outcome]:
    """Two groups of nodes each work alone but not together.

    The connection between them is at fault, or a limit that shows only at that size: an uplink, a spine switch, a route
    between two racks. No node on either side is to blame.

    Found by growing groups of nodes until one fails, then halving that group until both halves pass.

    Fix: Check the connection between the two sides; to start now, use one of them.

        distcheck net
        ibnetdiscover | less
    """
    searched = _searched(job)
    for found in searched.boundaries if searched else ():
        one, other = found.sides
        detail = {
            "boundary": "every part of one side fails with every part of the other",
            "scale": "only all nodes together fail",
            "flaky": "together they failed once and passed once",
        }.get(found.cause, "isolation ended before it found the cause")
        sides = f"one side ({listed(one)}) and the other ({listed(other)})"
        yield Fault(
            brief(f"{sides} each work alone but not together: {detail}", 300),
            evidence={"one side": listed(one, most=len(one)), "the other": listed(other, most=len(other))},
            confirmed=False,
        )


@rule("isolation", scope=("link", "system"), owner="unknown")
def isolation_undecided(job: Job) -> Iterator[Outcome]:
    """Collectives failed, and isolation could not decide which of a few nodes is at fault.

    If two nodes fail only together, either may be bad, and without another partner isolation cannot decide which. The
    same holds for nodes that may be on another side of a network partition. If most nodes show the same fault, what
    they share is the more likely cause.

    Found by the rounds that the finding lists. Both ends of every failure are named, since either may be at fault.

    Fix: Test them with a working node: add its name to --hosts.

        distcheck isolate {hosts|--hosts HOST,PEER,SPARE}
    """
    searched = _searched(job)
    if searched is None:
        if isinstance(job.isolation, Missing):
            yield NotChecked(reason=job.isolation.reason)
        return
    for suspects in searched.undecided:
        ranks = _on(job, suspects.nodes)
        yield Fault(
            brief(suspects.sentence, 300),
            evidence=_evidence(suspects.evidence),
            confirmed=False,
            ranks=numbers_of(ranks),
            nodes=suspects.nodes,
            values={"hosts": (on_hosts(job, _hosts(job, suspects.nodes)).strip(),)},
        )
    if searched.kind == "shared":
        yield Fault(
            brief(searched.sentence, 300),
            Fix("Check what the nodes share: software, settings, the network.", ("distcheck gate -v",)),
            _evidence([test for culprit in searched.culprits for test in culprit.evidence]),
            scope="system",
            confirmed=False,
        )
    if searched.kind == "healthy" and (lacking := _COMPARABLE - len(job.nodes)) > 0:
        few = f"there is no other node pair to compare with; add {count(lacking, 'node')}"
        yield NotChecked(required=False, reason=f"speed of collectives not judged: {few} or use gate --min-busbw")
    elif searched.kind == "healthy" and (odd := Members(job).without_like()):
        yield NotChecked(
            required=False,
            nodes=odd,
            ranks=numbers_of(_on(job, odd)),
            reason=f"speed of {listed(odd)} not judged: no other node pair has as many ranks on the same GPUs and as "
            "many machines; use gate --min-busbw",
        )
    named = searched.culprits or searched.boundaries or searched.undecided or searched.kind == "shared"
    if searched.kind in {"unmeasured", "ended"} or searched.untested or (searched.kind != "healthy" and not named):
        where = f" ({listed(searched.untested)})" if searched.untested else ""
        short = short_of_time(job, searched.sentence)
        yield NotChecked(reason=short or f"isolation did not finish{where}: {brief(searched.sentence, 200)}")
