"""Which nodes were seen to work together, whatever their names, and what a partition explains as well as a bad node.

What passed joins nodes to parts. In a network that is parted, a healthy node works with everybody on its own side and
with nobody beyond. So a node is bad only when no side is left on which it could be healthy: not with any part, because
it failed with each; and not with others that never passed either, because it failed with these too. For two sides of
any size that is a proof, however early the search ends: the healthy of a side that nobody was seen to work on are just
those that never passed, so that any two of them would have worked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from distcheck.isolation.round import PAIRED
from distcheck.isolation.state import State

WITNESSES = 2
"""Partners that work with others and fail with a node, before it is convicted."""
MANY = 10
"""Where more than one node in so many does not work with the others, no round is saved in looking for sides."""
SMALL = 8
"""Of so many every two meet."""
TRIED = 3
"""Nodes that never passed and fail with a part, before it is taken to be no place for others of them."""
MEETINGS, MORE_MEETINGS = 1, 3
"""Others that never passed, with which such a node fails before it is convicted; more where these are more."""


class Together(msgspec.Struct, frozen=True):
    """What passed and what failed between nodes, in all tests so far."""

    nodes: tuple[str, ...]
    """Those that can be partners, in the order of their names."""
    part: dict[str, int]
    """Of each node that passed with others: the number of its part."""
    parts: tuple[tuple[str, ...], ...]
    """The nodes of each part, in order."""
    failed_with: dict[str, frozenset[str]]
    """Of each node: with whom it failed in pairs."""
    never: tuple[str, ...]
    """Who passed with nobody so far, tested or not, in order."""
    settled: frozenset[str]
    """Those of them that failed with every part on which they could be healthy."""
    many: bool
    """Whether more than a few are not of the largest part."""

    def met(self, node: str) -> set[int]:
        """Return the parts with some of which it failed."""
        return {self.part[n] for n in self.failed_with.get(node, frozenset()) if n in self.part}

    def strangers(self, node: str) -> frozenset[str]:
        """Return the others that failed with every part, and with it."""
        return self.failed_with.get(node, frozenset()) & self.settled

    @property
    def meetings(self) -> int:
        """With how many others that never passed each of these has to fail, before it is convicted.

        One is enough against two sides; several sides may each be hidden among these, and a few healthy on each.
        """
        others = max(0, len(self.never) - 1)
        if self.many and len(self.never) <= SMALL:
            return others
        return min(others, MORE_MEETINGS if self.many else MEETINGS)

    def excused(self, node: str) -> bool:
        """Whether a partition explains what a node failed in as well as a fault of its own does."""
        own = self.part.get(node)
        if own is not None:
            return sum(self.part.get(n) == own for n in self.failed_with.get(node, frozenset())) < WITNESSES
        if node not in self.settled:
            return True
        if len(self.strangers(node)) >= self.meetings:
            return False
        # One of an odd number has nobody left to meet; that the others failed among themselves tells of it as well.
        alone = [n for n in self.settled if not self.strangers(n)]
        return self.many or alone != [node] or len(self.settled) < 1 + WITNESSES


def together(state: State, without: Iterable[str] = ()) -> Together:
    """Join the nodes by the tests that passed."""
    away = frozenset(without)
    up = {n: n for n in state.nodes if n not in away}

    def top(node: str) -> str:
        while up[node] != node:
            up[node] = node = up[up[node]]
        return node

    failed: dict[str, set[str]] = {}
    for test in state.tests:
        here = [n for n in test.nodes if n in up]
        if test.outcome == "passed":
            for node in here[1:]:
                up[top(node)] = top(here[0])
        elif test.bad and test.purpose in PAIRED and len(here) == 2:
            for node in here:
                failed.setdefault(node, set()).add(test.other(node))
    members: dict[str, list[str]] = {}
    for node in up:
        members.setdefault(top(node), []).append(node)
    parts = tuple(tuple(its) for its in members.values() if len(its) > 1)
    part = {n: i for i, its in enumerate(parts) for n in its}
    never = tuple(n for n in up if n not in part)
    failed_with = {n: frozenset(its) for n, its in failed.items()}
    met = {n: {part[p] for p in failed.get(n, ()) if p in part} for n in never}
    largest = max(parts, key=len, default=())
    many = MANY * (len(up) - len(largest)) > len(up)
    # Of many nodes a few flaky ones pass with each other, and not everybody can be tested with these few.
    tried = Counter(i for its in met.values() for i in its)
    likely = {i for i, its in enumerate(parts) if many or its is largest or tried[i] < TRIED}
    settled = frozenset(n for n in never if n in failed and likely <= met[n])
    return Together(tuple(up), part, parts, failed_with, never, settled, many)
