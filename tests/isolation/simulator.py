"""A cluster with injected faults, tested by the real scheduler: no processes, a round takes no time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from random import Random
from typing import TYPE_CHECKING

from distcheck.isolation import alone, larger, pairing
from distcheck.isolation.pairing import rounds_of_pairs
from distcheck.isolation.round import Compute, NodeGroup, Rail, Result, Round
from distcheck.isolation.schedule import next_round, take
from distcheck.isolation.state import Settings, State, start

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts.isolation import Isolation
    from distcheck.isolation.round import Ended

BUSBW = 40.0


def names(number: int) -> list[str]:
    return [f"node{i}" for i in range(1, number + 1)]


def convicted(verdict: Isolation, *, certain: bool = True) -> tuple[str, ...]:
    """Return the nodes that a verdict convicts, never by link; only the certain ones, unless told otherwise."""
    found = (n for c in verdict.culprits if c.part != "link" and (c.certain or not certain) for n in c.nodes)
    return tuple(dict.fromkeys(found))


def is_certain(verdict: Isolation) -> bool:
    """Whether certain culprits explain every failure."""
    gaps = verdict.undecided or verdict.boundaries or verdict.untested or "with no other node" in verdict.sentence
    return not gaps and all(c.certain for c in verdict.culprits)


def most_rounds(nodes: int) -> int:
    """Return the bound on the rounds of a whole search."""
    doublings = max(1, (nodes - 1).bit_length())
    in_groups = len(larger.sizes(nodes)) + 5 * doublings + 4
    return 1 + alone.RUNS + pairing.ROUNDS + pairing.FURTHER_ROUNDS + in_groups


def link(a: str, b: str) -> frozenset[str]:
    return frozenset({a, b})


@dataclass(frozen=True)
class Cluster:
    """What is wrong with which node or link; everything else is healthy."""

    nodes: list[str]
    bad: dict[str, float] = field(default_factory=dict)
    """Nodes whose network fails, with the share of the tests that it passes nevertheless."""
    bad_alone: dict[str, float] = field(default_factory=dict)
    ended: Ended = "failed"
    links: frozenset[frozenset[str]] = frozenset()
    slow_links: dict[frozenset[str], float] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    """Nodes whose network has this share of its speed."""
    slow_compute: dict[tuple[str, int], float] = field(default_factory=dict)
    rails: dict[str, int] = field(default_factory=dict)
    """Nodes of which one rail fails."""
    slow_rails: dict[str, int] = field(default_factory=dict)
    local_ranks: int = 0
    """How many rails and ranks tell of themselves."""
    side: frozenset[str] = frozenset()
    """Nodes that reach nobody outside of these, nor are reached."""
    part: dict[str, int] = field(default_factory=dict)
    """Of each node, the part of the network in which it reaches others; none of these reaches another."""
    largest: int = 1 << 30
    """Groups of more nodes than this fail."""
    loss: float = 0.0
    """The share of all links that fail, for ever; no node's fault."""
    noise: float = 0.0
    """The standard deviation of the logarithm of every figure."""
    seconds_only: bool = False


def measured(cluster: Cluster, index: int, group: NodeGroup, random: Random) -> Result:
    alone = len(group.nodes) == 1
    if any(random.random() >= passes for passes in _passes(cluster, group.nodes, alone=alone)) or (
        not alone and _path_fails(cluster, group.nodes)
    ):
        said = tuple(f"{n}: timed out" for n in group.nodes)
        return Result(group=index, ended=cluster.ended, said=said)
    speed = BUSBW * _noise(cluster, random)
    if not alone:
        speed *= min(cluster.slow.get(n, 1.0) for n in group.nodes)
        members = set(group.nodes)
        ends = [share for pair, share in cluster.slow_links.items() if pair <= members]
        speed *= min(ends, default=1.0)
    return Result(
        group=index,
        ended="passed",
        busbw_GBps=None if cluster.seconds_only else speed,
        seconds=1 / speed,
        rails=() if alone else tuple(_rail(cluster, group.nodes, r, random) for r in range(cluster.local_ranks)),
        compute=tuple(_compute(cluster, group.nodes[0], r, random) for r in range(cluster.local_ranks))
        if alone
        else (),
    )


def _passes(cluster: Cluster, nodes: Iterable[str], *, alone: bool) -> list[float]:
    bad = {} if alone else cluster.bad
    return [(bad if n in bad else cluster.bad_alone)[n] for n in nodes if n in bad or n in cluster.bad_alone]


def _path_fails(cluster: Cluster, nodes: tuple[str, ...]) -> bool:
    members = set(nodes)
    inside = len(members & cluster.side)
    if (cluster.side and 0 < inside < len(nodes)) or len(nodes) > cluster.largest:
        return True
    if cluster.part and len({cluster.part[n] for n in nodes}) > 1:
        return True
    if cluster.loss and any(
        Random(f"{a} {b}").random() < cluster.loss for i, a in enumerate(nodes) for b in nodes[i + 1 :]
    ):
        return True
    return any(pair <= members for pair in cluster.links)


def _rail(cluster: Cluster, nodes: tuple[str, ...], rail: int, random: Random) -> Rail:
    if any(cluster.rails.get(n) == rail for n in nodes):
        return Rail(rail, cluster.ended)
    slow = any(cluster.slow_rails.get(n) == rail for n in nodes)
    return Rail(rail, "passed", (0.4 if slow else 1) * BUSBW * _noise(cluster, random))


def _noise(cluster: Cluster, random: Random) -> float:
    return exp(random.gauss(0, cluster.noise)) if cluster.noise else 1.0


def _compute(cluster: Cluster, node: str, rank: int, random: Random) -> Compute:
    share = cluster.slow_compute.get((node, rank), 1.0)
    return Compute(node, rank, 0.01 / share / _noise(cluster, random), 0.002, "H200")


@dataclass
class Run:
    """A finished search."""

    verdict: Isolation
    rounds: list[Round]
    state: State

    @property
    def largest_passed(self) -> int:
        """The most nodes that passed together."""
        return max((len(t.nodes) for t in self.state.tests if t.outcome == "passed"), default=0)

    @property
    def pair_rounds(self) -> int:
        """Rounds of pairs; beside larger groups pairs cost no round."""
        return rounds_of_pairs(self.state)


def search(cluster: Cluster, seed: int = 0, settings: Settings | None = None) -> Run:
    random = Random(f"world {seed}")
    state = start(cluster.nodes, seed=seed, settings=settings)
    rounds: list[Round] = []
    while isinstance(now := next_round(state), Round):
        rounds.append(now)
        state = take(state, now, [measured(cluster, i, g, random) for i, g in enumerate(now.groups)])
    return Run(now, rounds, state)
