"""Rules about what the search for a bad node, link or rank came to: `distcheck isolate`, and a gate that went wrong."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from distcheck.facts import Culprit, GroupTest, Isolation, Job, Missing, Pci, RankFacts
from distcheck.facts.members import Members
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix, NotChecked
from distcheck.rules.wording import brief, listed, numbers_of
from distcheck.selection.adapters import served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SPEEDS = frozenset({"slow"})
_MOST = 8
_NEAR = 0.05
"""So close to what it would have without one of its adapters."""


def _searched(job: Job) -> Isolation | None:
    return job.isolation if isinstance(job.isolation, Isolation) else None


def _on(job: Job, names: Sequence[str], local_ranks: Sequence[int] = ()) -> list[RankFacts]:
    """Return the ranks on nodes, of these local ranks where any are named."""
    return [
        rank
        for node in job.nodes
        if job.node_names[node.key] in names
        for rank in job.ranks_on(node)
        if not local_ranks or rank.placement.local_rank in local_ranks
    ]


def _hosts(job: Job, names: Sequence[str]) -> list[str]:
    """Return what nodes are reached by, without what tells them from others of the same name."""
    plain = {job.node_names[node.key]: node.name for node in job.nodes}
    return [plain.get(name, name) for name in names]


def _evidence(tests: Sequence[GroupTest]) -> dict[str, Any]:
    lines = {}
    for test in tests[:_MOST]:
        told = test.outcome if test.ratio is None else f"{test.outcome}, {test.ratio:.0%} of what others showed"
        said = f" ({brief(test.said[0], 100)})" if test.said else ""
        lines[f"round {test.round}, {test.purpose} {listed(test.nodes, most=4)}"] = told + said
    return lines


def _one_rail(job: Job, culprit: Culprit) -> dict[str, Any]:
    """Return a hint at a single adapter, where a node has as much as it would have without one of them."""
    rails = max(
        (sum(served(nic) for nic in node.pci.nics) for node in job.nodes if isinstance(node.pci, Pci)), default=0
    )
    ratios = [test.ratio for test in culprit.evidence if test.ratio is not None]
    if culprit.part != "node" or rails < 2 or not ratios:
        return {}
    left = (rails - 1) / rails
    near = abs(median(ratios) - left) <= _NEAR
    return {"adapters": f"without one of {rails} it would be at {left:.0%}: look at each of them"} if near else {}


def _found(job: Job, culprit: Culprit, fix: Fix, **evidence: Any) -> Finding:
    ranks = _on(job, culprit.nodes, culprit.local_ranks)
    link = culprit.part == "link"
    # Of two nodes with one name no scheduler can leave out the right one.
    nameless = not {node.name for node in job.nodes}.issuperset(culprit.nodes)
    return Finding(
        scope="link" if link else "gpu" if culprit.part == "rail" else "node",
        owner="admin",
        confirmed=culprit.certain and not link and not nameless,
        ranks=numbers_of(ranks),
        nodes=culprit.nodes,
        message=brief(culprit.sentence, 300),
        evidence=_evidence(culprit.evidence) | evidence,
        fix=fix,
    )


@rule("isolation")
def isolation_bad_node(job: Job) -> Iterator[Outcome]:
    """A node fails by itself or with several nodes that work with others.

    One such node stops the whole job: its ranks fail, hang or deliver wrong numbers, and the others wait for it.

    Found by the collectives once more in small groups, each in fresh processes: every node alone, then pairs of
    nodes in which each suspect meets nodes that were seen to work with others. A node is convicted by failing alone,
    or with two such partners at least, unless the network may be parted with the node on another side. One that passes
    now and then is named as flaky. When ranks of one number fail on it and the others do not, these are named.

    Fix: leave the node out and start again; look at its GPUs, its network interface and its kernel's log.
    """
    searched = _searched(job)
    for culprit in searched.culprits if searched else ():
        if culprit.part in {"node", "rail"} and culprit.fault not in _SPEEDS:
            yield _found(
                job,
                culprit,
                Fix(
                    "Leave the node out and start again; then look at its devices and its kernel's log.",
                    (f"distcheck node  # on {_hosts(job, culprit.nodes)[0]}", "sudo dmesg -T | tail -n 50"),
                ),
            )


@rule("isolation")
def isolation_slow_node(job: Job) -> Iterator[Outcome]:
    """A node, or a rank on it, is far slower than the others.

    Every collective runs at the pace of the slowest, so the whole job does.

    Found by what each rank takes for work of its own (multiplying matrices, copying memory), and by the bandwidth that
    a node reaches with several others, held against the median of groups like it, and measured again before anybody
    is named. What a node would have without one of its network adapters is recognised. How long a rank is in a
    collective never counts: the late one shows the shortest time.

    Fix: leave the node out; look for other processes, throttled clocks, a CPU limit, or a link at a lower rate.
    """
    searched = _searched(job)
    for culprit in searched.culprits if searched else ():
        if culprit.part in {"node", "rail", "rank"} and (culprit.fault in _SPEEDS or culprit.part == "rank"):
            yield _found(
                job,
                culprit,
                Fix(
                    "Leave the node out; look for other processes, throttled clocks, limits, and the link's rate.",
                    (f"ssh {_hosts(job, culprit.nodes)[0]} 'uptime; nvidia-smi -q -d PERFORMANCE'", "distcheck net"),
                ),
                **_one_rail(job, culprit),
            )


@rule("isolation")
def isolation_bad_link(job: Job) -> Iterator[Outcome]:
    """Two nodes do not work with each other, although each of them works with others.

    The way between them is at fault: a cable, a switch port, a route, a firewall between two racks. No node is to
    blame, and either may stay as long as the other does not.

    Found by the collectives in pairs of nodes, in several rounds with other partners.

    Fix: look at the path between the two; to start at once, leave one of them out.
    """
    searched = _searched(job)
    for culprit in searched.culprits if searched else ():
        hosts = _hosts(job, culprit.nodes)
        if culprit.part == "link" and len(hosts) > 1:
            a, *_, b = hosts
            yield _found(
                job,
                culprit,
                Fix(
                    "Look at the path between the two nodes; to start at once, leave one of them out.",
                    (f"distcheck net --hosts {a},{b} --nproc 1", f"ssh {a} tracepath -n {b}"),
                ),
            )


@rule("isolation")
def isolation_boundary(job: Job) -> Iterator[Outcome]:
    """Two sides each work by themselves, and not together.

    What connects them is at fault, or something that shows only at that size: an uplink, a spine switch, a route
    between two racks, a limit. Nobody on either side is to blame.

    Found by groups of nodes that grow until one fails, which is then halved until both halves pass.

    Fix: look at what lies between the two sides; to start at once, use one of them.
    """
    searched = _searched(job)
    for found in searched.boundaries if searched else ():
        one, other = found.sides
        words = {
            "boundary": "every part of one side fails with every part of the other",
            "scale": "only all of them together fail",
            "flaky": "together they failed once and passed once",
        }.get(found.cause, "the search ended before it could tell what lies between them")
        sides = f"one side ({listed(one)}) and the other ({listed(other)})"
        yield Finding(
            scope="link",
            owner="admin",
            confirmed=False,
            message=brief(f"{sides} each work among themselves, and not together: {words}", 300),
            evidence={"one side": listed(one, most=len(one)), "the other": listed(other, most=len(other))},
            fix=Fix(
                "Look at what lies between the two sides; to start at once, use one of them.",
                ("distcheck net", "ibnetdiscover | less"),
            ),
        )


@rule("isolation")
def isolation_undecided(job: Job) -> Iterator[Outcome]:
    """Something failed, and nothing tells which of a few nodes is at fault.

    Of two nodes that fail only together either may be bad, and with nobody else to try them with it cannot be said
    which. The same holds for nodes that may be on another side of what parts the network, and where most nodes show the
    same: then what they share is likelier.

    Found by the rounds that the finding lists; both ends of every failure are named, since either may be at fault.

    Fix: give it one more node that works, and it can tell; ``distcheck isolate`` with a spare node.
    """
    searched = _searched(job)
    if searched is None:
        if isinstance(job.isolation, Missing):
            yield NotChecked(reason=job.isolation.reason)
        return
    for suspects in searched.undecided:
        ranks = _on(job, suspects.nodes)
        yield Finding(
            scope="link",
            owner="unknown",
            confirmed=False,
            ranks=numbers_of(ranks),
            nodes=suspects.nodes,
            message=brief(suspects.sentence, 300),
            evidence=_evidence(suspects.evidence),
            fix=Fix("Try them with a node that works.", ("distcheck isolate --hosts <these nodes and a spare one>",)),
        )
    if searched.kind == "shared":
        yield Finding(
            scope="system",
            owner="unknown",
            confirmed=False,
            message=brief(searched.sentence, 300),
            fix=Fix("Look at what the nodes share: software, settings, the network.", ("distcheck gate -v",)),
        )
    if searched.kind == "healthy" and len(job.nodes) == 2:
        yield NotChecked(
            required=False,
            reason="how fast two nodes are together was held against nothing: a third node tells, or gate --min-busbw",
        )
    elif searched.kind == "healthy" and (odd := Members(job).without_like()):
        how_fast = f"how fast {listed(odd)} {'is' if len(odd) == 1 else 'are'} beside the others"
        yield NotChecked(
            required=False,
            nodes=odd,
            ranks=numbers_of(_on(job, odd)),
            reason=f"{how_fast} was held against nothing: no pair of other nodes has as many ranks on the same GPUs, "
            "on as many machines; gate --min-busbw tells",
        )
    named = searched.culprits or searched.boundaries or searched.undecided or searched.kind == "shared"
    if searched.kind in {"unmeasured", "ended"} or searched.untested or (searched.kind != "healthy" and not named):
        where = f" ({listed(searched.untested)})" if searched.untested else ""
        yield NotChecked(reason=f"the search for a bad node came to no end{where}: {brief(searched.sentence, 200)}")
