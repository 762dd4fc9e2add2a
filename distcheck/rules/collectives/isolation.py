"""Rules about the results of isolation: the search for a bad node, link or rank."""

from __future__ import annotations

from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any

from distcheck.facts.base import Missing
from distcheck.facts.isolation import CulpritFacts, GroupTest, Isolation
from distcheck.facts.job import Job
from distcheck.facts.members import Members
from distcheck.facts.pci import Pci
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.endings import short_of_time
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.same_ranks import on_hosts
from distcheck.rules.wording import brief, listed, numbers_of
from distcheck.selection.adapters import served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SPEEDS = frozenset({"slow"})
_MOST = 8
_COMPARABLE = 3
"""From this many nodes on there are several pairs to compare."""
_NEAR = 0.05
"""Tolerance for the share that a node has without one of its adapters."""


def _searched(job: Job) -> Isolation | None:
    return job.isolation if isinstance(job.isolation, Isolation) else None


def _culprits(job: Job) -> tuple[CulpritFacts, ...]:
    """Return what is at fault; nothing where most nodes or ways show faults, for which what they share stands."""
    searched = _searched(job)
    return searched.culprits if searched and searched.kind != "shared" else ()


def _untold(job: Job) -> Iterator[NotChecked]:
    """Yield that the search did not decide: what isolation-undecided says of it may not be selected."""
    searched = _searched(job)
    if searched and searched.kind in {"shared", "undecided"}:
        yield NotChecked(reason="the search could not decide which node or link is at fault")


def _on(job: Job, names: Sequence[str], local_ranks: Sequence[int] = ()) -> list[RankFacts]:
    """Return the ranks on these nodes, limited to these local ranks if given."""
    return [
        rank
        for node in job.nodes
        if job.node_names[node.key] in names
        for rank in job.ranks_on(node)
        if not local_ranks or rank.placement.local_rank in local_ranks
    ]


def _hosts(job: Job, names: Sequence[str]) -> list[str]:
    """Return the host names of nodes, without the suffix that makes equal names unique."""
    plain = {job.node_names[node.key]: node.name for node in job.nodes}
    return [plain.get(name, name) for name in names]


def _evidence(tests: Sequence[GroupTest]) -> dict[str, Any]:
    lines = {}
    for test in tests[:_MOST]:
        result = test.outcome if test.ratio is None else f"{test.outcome}, {test.ratio:.0%} of the others"
        detail = f" ({brief(test.said[0], 100)})" if test.said else ""
        lines[f"round {test.round}, {test.purpose} {listed(test.nodes, most=4)}"] = result + detail
    return lines


def _one_rail(job: Job, culprit: CulpritFacts) -> dict[str, Any]:
    """Return a hint at one bad adapter, if the node is as slow as without one of them."""
    rails = max(
        (sum(served(nic) for nic in node.pci.nics) for node in job.nodes if isinstance(node.pci, Pci)), default=0
    )
    ratios = [test.ratio for test in culprit.evidence if test.ratio is not None]
    if culprit.part != "node" or rails < 2 or not ratios:
        return {}
    left = (rails - 1) / rails
    near = abs(median(ratios) - left) <= _NEAR
    return {"adapters": f"without one of its {rails} it would reach {left:.0%}: check each of them"} if near else {}


def _found(job: Job, culprit: CulpritFacts, fix: Fix, **evidence: Any) -> Fault:
    ranks = _on(job, culprit.nodes, culprit.local_ranks)
    link = culprit.part == "link"
    # A scheduler cannot exclude the right one of two nodes with the same name.
    nameless = not {node.name for node in job.nodes}.issuperset(culprit.nodes)
    return Fault(
        scope="link" if link else "gpu" if culprit.part == "rail" else "node",
        confirmed=culprit.certain and not link and not nameless,
        ranks=numbers_of(ranks),
        nodes=culprit.nodes,
        message=brief(culprit.sentence, 300),
        evidence=_evidence(culprit.evidence) | evidence,
        fix=fix,
    )


@rule("isolation", scope=("node", "gpu"), unless=("sw-torch-missing",), owner="admin")
def isolation_bad_node(job: Job) -> Iterator[Outcome]:
    """A node fails by itself or with several nodes that work with others.

    One such node stops the whole job: its ranks fail, hang or return wrong numbers, and the others wait for it.

    Found by repeating the collectives in small groups, each in new processes: every node alone, then pairs of nodes in
    which each suspect meets nodes that worked with others. A node is confirmed bad if it fails alone, or with at least
    two such partners, unless the network may be partitioned with the node on another side. A node that sometimes passes
    is named as flaky. When only ranks with the same local rank fail on it, these are named.

    Fix: exclude the node and restart; check its GPUs, its network interface and its kernel log.
    """
    yield from _untold(job)
    for culprit in _culprits(job):
        if culprit.part in {"node", "rail"} and culprit.fault not in _SPEEDS:
            yield _found(
                job,
                culprit,
                Fix(
                    "Exclude the node and restart; then check its devices and its kernel log.",
                    (f"distcheck node  # on {_hosts(job, culprit.nodes)[0]}", "sudo dmesg -T | tail -n 50"),
                ),
            )


@rule("isolation", scope="node", owner="admin")
def isolation_slow_node(job: Job) -> Iterator[Outcome]:
    """A node, or a rank on it, is far slower than the others.

    Every collective runs at the pace of the slowest rank, and so does the whole job.

    Found by the time each rank needs for local work (multiplying matrices, copying memory), and by the bandwidth that a
    node reaches with several others, compared with the median of similar groups. Both are measured again before a node
    or rank is named. A node that is as slow as it would be without one of its network adapters gets a hint. The time a
    rank spends in a collective never counts, because the late rank shows the shortest time.

    Fix: exclude the node; check for other processes, throttled clocks, a CPU limit, or a link at a lower rate.
    """
    yield from _untold(job)
    for culprit in _culprits(job):
        if culprit.part in {"node", "rail", "rank"} and (culprit.fault in _SPEEDS or culprit.part == "rank"):
            nvidia = any(n.accelerator == "nvidia" for n in job.nodes if job.node_names[n.key] in culprit.nodes)
            clocks = "nvidia-smi -q -d PERFORMANCE" if nvidia else "lscpu --extended"
            yield _found(
                job,
                culprit,
                Fix(
                    "Exclude the node; check for other processes, throttled clocks, limits, and the link's rate.",
                    (f"ssh {quote(_hosts(job, culprit.nodes)[0])} 'uptime; {clocks}'", "distcheck net"),
                ),
                **_one_rail(job, culprit),
            )


@rule("isolation", "perf-slow-pair", scope="link", owner="admin")
def isolation_bad_link(job: Job) -> Iterator[Outcome]:
    """Two nodes do not work with each other, although each of them works with others.

    The path between them is at fault: a cable, a switch port, a route, a firewall between two racks. Neither node is to
    blame, and the job can use either of them without the other.

    Found by the collectives in pairs of nodes, in several rounds with different partners.

    Fix: check the path between the two nodes; to start now, exclude one of them.
    """
    yield from _untold(job)
    for culprit in _culprits(job):
        hosts = _hosts(job, culprit.nodes)
        if culprit.part == "link" and len(hosts) > 1:
            a, *_, b = hosts
            yield _found(
                job,
                culprit,
                Fix(
                    "Check the path between the two nodes; to start now, exclude one of them.",
                    (
                        f"distcheck net{on_hosts(job, (a, b))} --nproc 1",
                        f"ssh {quote(a)} tracepath -n {quote(quote(b))}",
                    ),
                ),
            )


@rule("isolation", scope="link", owner="admin")
def isolation_boundary(job: Job) -> Iterator[Outcome]:
    """Two groups of nodes each work alone but not together.

    The connection between them is at fault, or a limit that shows only at that size: an uplink, a spine switch, a route
    between two racks. No node on either side is to blame.

    Found by growing groups of nodes until one fails, then halving that group until both halves pass.

    Fix: check the connection between the two sides; to start now, use one of them.
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
            confirmed=False,
            message=brief(f"{sides} each work alone but not together: {detail}", 300),
            evidence={"one side": listed(one, most=len(one)), "the other": listed(other, most=len(other))},
            fix=Fix(
                "Check the connection between the two sides; to start now, use one of them.",
                ("distcheck net", "ibnetdiscover | less"),
            ),
        )


@rule("isolation", scope=("link", "system"), owner="unknown")
def isolation_undecided(job: Job) -> Iterator[Outcome]:
    """Collectives failed, and isolation could not decide which of a few nodes is at fault.

    If two nodes fail only together, either may be bad, and without another partner isolation cannot decide which. The
    same holds for nodes that may be on another side of a network partition. If most nodes show the same fault, what
    they share is the more likely cause.

    Found by the rounds that the finding lists. Both ends of every failure are named, since either may be at fault.

    Fix: add one working node so that isolation can decide: ``distcheck isolate`` with a spare node.
    """
    searched = _searched(job)
    if searched is None:
        if isinstance(job.isolation, Missing):
            yield NotChecked(reason=job.isolation.reason)
        return
    for suspects in searched.undecided:
        ranks = _on(job, suspects.nodes)
        yield Fault(
            confirmed=False,
            ranks=numbers_of(ranks),
            nodes=suspects.nodes,
            message=brief(suspects.sentence, 300),
            evidence=_evidence(suspects.evidence),
            fix=Fix(
                "Test them with a working node: add its name to --hosts.",
                (f"distcheck isolate{on_hosts(job, _hosts(job, suspects.nodes))}",),
            ),
        )
    if searched.kind == "shared":
        yield Fault(
            scope="system",
            confirmed=False,
            message=brief(searched.sentence, 300),
            evidence=_evidence([test for culprit in searched.culprits for test in culprit.evidence]),
            fix=Fix("Check what the nodes share: software, settings, the network.", ("distcheck gate -v",)),
        )
    if searched.kind == "healthy" and len(job.nodes) < _COMPARABLE:
        few = "two nodes have no comparable node pair; add a third"
        if len(job.nodes) == 1:
            few = "one node has no other to compare with; add two more"
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
