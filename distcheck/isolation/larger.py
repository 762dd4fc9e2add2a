"""Tests larger groups of the remaining nodes, for faults that only appear there.

A failing group is halved until its smallest failing part is found. If both halves pass, the group is tested once more,
and then pieces of one half with pieces of the other, which separates a bad path from a fault of scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from distcheck.isolation.round import GROUPED, PAIRED, NodeGroup, Purpose, Trial
from distcheck.isolation.state import State

FIRST, GROWTH = 8, 4
Side = tuple[str, ...]
Cause = Literal["boundary", "scale", "flaky", "link"]


class Boundary(msgspec.Struct, frozen=True):
    """Two sides that each work alone but not together; no node is to blame."""

    sides: tuple[Side, Side]
    cause: Cause
    """boundary: every piece of one side fails with every piece of the other; scale: only the whole fails;
    flaky: they failed and passed at different times; link: two nodes."""
    tests: tuple[Trial, ...]


class Search(msgspec.Struct, frozen=True):
    """What to test next, and what was found so far."""

    wanted: tuple[NodeGroup, ...]
    found: tuple[Boundary, ...]


def sizes(nodes: int) -> list[int]:
    """Return the group sizes to test in turn: 8, 32, 128, ... and all."""
    found: list[int] = []
    size = FIRST
    while size < nodes:
        found.append(size)
        size *= GROWTH
    return [*found, nodes] if nodes > 1 else []


def search(state: State, nodes: Sequence[str], sides: tuple[Side, Side] | None = None) -> Search:
    """Return the next tests among these nodes; `sides` if pairs already showed a boundary."""
    known: dict[Side, list[Trial]] = {}
    for test in state.tests:
        if test.purpose in GROUPED:
            known.setdefault(test.nodes, []).append(test)
    before = {t.nodes for t in state.tests if t.purpose in PAIRED and t.outcome == "passed"}
    walk = _Walk(known, {n: i for i, n in enumerate(state.nodes)}, before)
    if sides is not None:
        walk.sides(*sides)
    else:
        for size in sizes(len(nodes)):
            groups = split(nodes, size)
            missing = [g for g in groups if g not in known]
            if missing:
                walk.wanted += [NodeGroup(g, "group") for g in missing]
                break
            failing = [g for g in groups if walk.bad(g)]
            for group in failing:
                walk.halve(group)
            if failing:
                walk.controls([g for g in groups if g not in failing])
                break
    return Search(disjoint(walk.wanted), tuple(walk.found))


def split(nodes: Sequence[str], size: int) -> list[Side]:
    """Return the nodes in the fewest groups of at most this size, as equal as possible."""
    number = -(-len(nodes) // size)
    bounds = [len(nodes) * i // number for i in range(number + 1)]
    return [tuple(nodes[a:b]) for a, b in pairwise(bounds)]


def disjoint(groups: Iterable[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Return the first groups that share no node; the others follow in a later round."""
    used: set[str] = set()
    chosen: list[NodeGroup] = []
    for group in groups:
        if used.isdisjoint(group.nodes):
            used.update(group.nodes)
            chosen.append(group)
    return tuple(chosen)


class _Walk:
    """One pass over the known tests: it collects what to test next and what is certain."""

    def __init__(self, known: dict[Side, list[Trial]], order: dict[str, int], passed_before: set[Side]) -> None:
        self.known = known
        self.passed_before = passed_before
        self.order = order
        self.wanted: list[NodeGroup] = []
        self.found: list[Boundary] = []
        self.slow = False

    def bad(self, nodes: Side) -> bool:
        """Whether these nodes failed together in a test; a single node has passed before."""
        tests = self.known.get(nodes, [])
        self.slow = self.slow or any(t.outcome == "slow" for t in tests)
        return any(t.bad for t in tests)

    def missing(self, groups: Iterable[Side], purpose: Purpose) -> bool:
        """Request tests of the groups without one; return whether there are any."""
        new = [NodeGroup(g, purpose) for g in groups if len(g) > 1 and g not in self.known]
        self.wanted += new
        return bool(new)

    def together(self, *parts: Side) -> Side:
        return tuple(sorted((n for part in parts for n in part), key=self.order.__getitem__))

    def halve(self, group: Side) -> None:
        middle = len(group) // 2
        if len(group) == 2:
            self.pair(group)
        else:
            self.sides(group[:middle], group[middle:])

    def sides(self, left: Side, right: Side) -> None:
        if self.missing((left, right), "half"):
            return
        bad = [half for half in (left, right) if self.bad(half)]
        for half in bad:
            self.halve(half)
        whole = self.together(left, right)
        if bad or (len(self.known.get(whole, ())) == 0 and self.missing([whole], "group")):
            return
        tests = self.known[whole]
        if len(tests) == 1 and tests[0].bad:
            self.wanted.append(NodeGroup(whole, "again"))
        elif not all(t.bad for t in tests):
            if any(t.hard for t in tests):
                self.conclude(left, right, "flaky")
        else:
            self.across(left, right)

    def pair(self, pair: Side) -> None:
        if len(self.known[pair]) == 1:
            self.wanted.append(NodeGroup(pair, "again"))
        elif all(t.bad for t in self.known[pair]):
            self.conclude_pair(pair)
        elif any(t.hard for t in self.known[pair]):
            self.conclude(pair[:1], pair[1:], "flaky")

    def conclude_pair(self, pair: Side) -> None:
        self.conclude(pair[:1], pair[1:], "flaky" if pair in self.passed_before else "link")

    def across(self, left: Side, right: Side) -> None:
        """Test pieces of two sides together: both sides pass, the whole does not."""
        if len(left) == len(right) == 1:
            self.conclude_pair(self.together(left, right))
            return
        one, other = _halves(left), _halves(right)
        quarters = [(a, b) for shift in (0, 1) for i, a in enumerate(one) for b in other[(i + shift) % 2 :][:1]]
        crossings = list(dict.fromkeys(q for q in (*quarters, *((a, b) for a in one for b in other)) if all(q)))
        if self.missing([self.together(*q) for q in crossings], "across"):
            return
        bad = [q for q in crossings if self.bad(self.together(*q))]
        if len(bad) == len(crossings):
            self.conclude(left, right, "boundary")
        elif not bad:
            self.conclude(left, right, "scale")
        for a, b in bad if len(bad) < len(crossings) else ():
            self.across(a, b)

    def conclude(self, left: Side, right: Side, cause: Cause) -> None:
        self.found.append(Boundary((left, right), cause, tuple(self.known.get(self.together(left, right), ()))))

    def controls(self, passing: Sequence[Side]) -> None:
        """Add pieces of healthy groups beside those of slow ones, as a reference for that size."""
        sizes_wanted = {len(g.nodes) for g in self.wanted if g.purpose != "again"}
        if not self.slow or not sizes_wanted:
            return
        size = max(sizes_wanted)
        self.wanted += [NodeGroup(g[:size], "half") for g in passing[:4] if len(g) >= size]


def _halves(side: Side) -> tuple[Side, Side]:
    middle = (len(side) + 1) // 2
    return side[:middle], side[middle:]
