"""Finds which nodes work together, and which failures a partition explains as well.

Passing tests join nodes into parts. In a partitioned network, a healthy node works with every node on its own side and
with none beyond. So a node is bad only if no side is left on which it could be healthy: it failed with every part, and
it failed with other nodes that never passed. For two sides of any size this is a proof, however early the search ends:
if no node of a side was seen to work, the side's healthy nodes are all among those that never passed, so any two of
them would have worked together.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from distcheck.isolation.state import State
from distcheck.isolation.tally import Tally

WITNESSES = 2
"""Partners that work with others and fail with a node before it is convicted."""
MANY = 10
"""If more than one node in this many does not work with the others, the search for sides takes all rounds."""
SMALL = 8
"""Up to this many nodes, every pair is tested."""
TRIED = 3
"""Nodes that never passed and fail with a part before the part is ruled out for the others."""
MEETINGS, MORE_MEETINGS = 1, 3
"""Other nodes that never passed with which such a node fails before it is convicted; more if there are many."""


class Together(msgspec.Struct, frozen=True):
    """The passes and failures between nodes in all tests so far."""

    part: dict[str, int]
    """The part number of each node that passed with others."""
    parts: tuple[tuple[str, ...], ...]
    """The nodes of each part, in order."""
    failed_with: dict[str, set[str]]
    """Each node's partners in failed pairs."""
    never: tuple[str, ...]
    """Nodes that passed with no other so far, tested or not, in order."""
    settled: frozenset[str]
    """Those of them that failed with every part in which they could be healthy."""
    many: bool
    """Whether more than a few nodes are outside the largest part."""

    def met(self, node: str) -> set[int]:
        """Return the parts with whose nodes it failed."""
        return {self.part[n] for n in self.failed_with.get(node, ()) if n in self.part}

    def strangers(self, node: str) -> frozenset[str]:
        """Return the other nodes that failed with every part and with this node."""
        return self.settled.intersection(self.failed_with.get(node, ()))

    @property
    def meetings(self) -> int:
        """How many others that never passed such a node must fail with before it is convicted.

        One is enough for two sides. With more sides, each may have a few healthy nodes among these.
        """
        others = max(0, len(self.never) - 1)
        if self.many and len(self.never) <= SMALL:
            return others
        return min(others, MORE_MEETINGS if self.many else MEETINGS)

    def excused(self, node: str) -> bool:
        """Whether a partition explains a node's failures as well as its own fault does."""
        own = self.part.get(node)
        if own is not None:
            return sum(self.part.get(n) == own for n in self.failed_with.get(node, ())) < WITNESSES
        if node not in self.settled:
            return True
        if len(self.strangers(node)) >= self.meetings:
            return False
        # With an odd number one node has no partner left; the failures among the others count for it too.
        alone = [n for n in self.settled if not self.strangers(n)]
        return self.many or alone != [node] or len(self.settled) < 1 + WITNESSES


def together(state: State, known: Tally) -> Together:
    """Return the nodes of the tally joined into parts by the tests that passed."""
    up = {n: n for n in known.order}

    def top(node: str) -> str:
        while up[node] != node:
            up[node] = node = up[up[node]]
        return node

    for test in state.tests:
        if len(test.nodes) > 1 and test.outcome == "passed":
            here = [n for n in test.nodes if n in up]
            for node in here[1:]:
                if up[node] != up[here[0]]:
                    up[top(node)] = top(here[0])
    failed: dict[str, set[str]] = {}
    for a, b in known.failing:
        failed.setdefault(a, set()).add(b)
        failed.setdefault(b, set()).add(a)
    members: dict[str, list[str]] = {}
    for node in up:
        members.setdefault(top(node), []).append(node)
    parts = tuple(tuple(its) for its in members.values() if len(its) > 1)
    part = {n: i for i, its in enumerate(parts) for n in its}
    never = tuple(n for n in up if n not in part)
    met = {n: {part[p] for p in failed.get(n, ()) if p in part} for n in never}
    largest = max(parts, key=len, default=())
    many = MANY * (len(up) - len(largest)) > len(up)
    # Among many nodes a few flaky ones pass with each other, and not every node can be tested with these few.
    tried = Counter(i for its in met.values() for i in its)
    likely = {i for i, its in enumerate(parts) if many or its is largest or tried[i] < TRIED}
    settled = frozenset(n for n in never if n in failed and likely <= met[n])
    return Together(part, parts, failed, never, settled, many)
