"""Attributes failing pairs to nodes or links.

A node that never passed is bad if two others that work elsewhere fail with it. A failure between two nodes that both
passed elsewhere counts against the link, unless one of them fails with several: then that node is flaky. If too many
failures remain, no node explains them, and no node is blamed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, chain

import msgspec

from distcheck.isolation.round import Trial
from distcheck.isolation.tally import Edge, Tally
from distcheck.isolation.together import WITNESSES

REPEATS = 3
"""Bad tests before a node is convicted, if there are enough partners."""
TIMES = 2
"""Bad tests of one pair before its link is named."""


class Cut(msgspec.Struct, frozen=True):
    """Two sides, by name: passing pairs lie within one side, failing pairs go across."""

    sides: tuple[tuple[str, ...], tuple[str, ...]]
    failing: int
    """How many failing pairs without a common node go across."""


class Attribution(msgspec.Struct, frozen=True):
    """The explanation of the bad pairs; nodes and pairs in order."""

    never: dict[str, tuple[Trial, ...]]
    """Nodes that never passed, with their failures with a node that works with others."""
    flaky: dict[str, tuple[Trial, ...]]
    """Nodes that passed and failed with several."""
    sometimes_slow: tuple[str, ...]
    left: dict[Edge, list[Trial]]
    """Pairs whose failure no node explains, with all their tests."""
    widespread: bool
    """Whether so many failures are unexplained that the network is the likelier cause."""

    def convicted(self, node: str) -> bool:
        """Whether a node that never passed failed with enough others that work."""
        return len({t.other(node) for t in self.never.get(node, ())}) >= WITNESSES


def attribute(known: Tally) -> Attribution:
    """Return the explanation of the bad pairs by as few nodes as possible."""
    never: dict[str, tuple[Trial, ...]] = {}
    for node in sorted((n for n in known.bad if not known.passed[n]), key=known.order.__getitem__):
        never[node] = tuple(t for t in known.bad[node] if known.passed[t.other(node)])
    left = {
        edge: known.edges[edge]
        for edge in known.failing
        # A pair that was slow once and fast another time is noise.
        if edge[0] not in never and edge[1] not in never and (edge in known.hard or known.never_passed(edge))
    }
    hard = known.hard & left.keys()
    flaky, explained = _common_ends(hard)
    slow, _ = _common_ends(set(left) - hard)
    rest = {edge: tests for edge, tests in left.items() if edge not in explained}
    remaining = sum(edge in hard for edge in rest)
    widespread = remaining > max(3, len(known.order) / 32, len(explained) / 3)
    if widespread:
        flaky, rest = [], left
    shown = {n: tuple(t for t in known.bad[n] if t.hard and t.other(n) not in never) for n in flaky}
    return Attribution(never, shown, tuple(slow), rest, widespread)


def _common_ends(edges: set[Edge]) -> tuple[list[str], set[Edge]]:
    """Return the nodes common to several pairs, and the pairs that they explain."""
    partners: dict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        partners[a].add(b)
        partners[b].add(a)
    found: dict[str, None] = {}
    for node in sorted((n for n, p in partners.items() if len(p) >= WITNESSES), key=lambda n: (-len(partners[n]), n)):
        size = len(partners[node])
        if sum(len(partners[p]) < size for p in partners[node]) >= WITNESSES:
            found[node] = None
    return list(found), {edge for edge in edges if edge[0] in found or edge[1] in found}


def cut(known: Tally, found: Attribution, least: int) -> Cut | None:
    """Return two sides.

    Nodes that never passed do not count and are on the side of their name, unless that is unclear and they were tested
    only with it. None without `least` failing pairs that share no node, or if there are no such sides.
    """
    nodes = [n for n in known.order if n not in found.never]
    place = {n: i for i, n in enumerate(nodes)}
    failing = [
        (place[edge[0]], place[edge[1]])
        for edge in known.failing
        if edge[0] in place and edge[1] in place and known.never_passed(edge)
    ]
    number = _disjoint(failing)
    if number < least:
        return None
    over = [0] * (len(nodes) + 1)
    across = set(failing)
    for a, b in known.edges:
        if a in place and b in place and (place[a], place[b]) not in across:
            over[place[a] + 1] += 1
            over[place[b] + 1] -= 1
    passing = list(accumulate(over))
    first, last = max(low for low, _ in failing) + 1, min(high for _, high in failing)
    position = next((p for p in range(first, last + 1) if not passing[p]), None)
    if position is None:
        return None
    left = {n for n in known.order if known.order[n] < known.order[nodes[position]]}
    for node in found.never:
        met = [p in left for p in known.met[node] if p in place]
        if met and len(set(met)) == 1 and known.order[nodes[position - 1]] < known.order[node] and met[0]:
            left.discard(node)
    sides = tuple(n for n in known.order if n in left), tuple(n for n in known.order if n not in left)
    return Cut(sides, number)


def _disjoint(edges: Sequence[tuple[int, int]]) -> int:
    """Return how many edges share no node; edges with the fewest neighbours are taken first."""
    meets = Counter(chain.from_iterable(edges))
    used: set[int] = set()
    number = 0
    for a, b in sorted(sorted(edges), key=lambda e: meets[e[0]] + meets[e[1]]):
        if a not in used and b not in used:
            used |= {a, b}
            number += 1
    return number
