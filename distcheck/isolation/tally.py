"""Counts the tests of pairs, by node and by pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from distcheck.isolation.round import PAIRED, Trial
from distcheck.isolation.state import State

Edge = tuple[str, ...]
"""The two nodes of a pair, in the order of the state's nodes."""


class Tally(msgspec.Struct, frozen=True):
    """The tests of pairs, in order."""

    order: dict[str, int]
    """The nodes that can be partners, with their position by name."""
    passed: dict[str, int]
    met: dict[str, set[str]]
    bad: dict[str, list[Trial]]
    edges: dict[Edge, list[Trial]]
    failing: dict[Edge, int]
    """The pairs with a bad test, and how many each has."""
    hard: set[Edge]
    """Those that failed, hung or were wrong, rather than slow."""

    def tests(self, node: str) -> int:
        """Return how often a node was tested with another."""
        return self.passed[node] + len(self.bad.get(node, ()))

    def never_passed(self, edge: Edge) -> bool:
        """Whether every test of a failing pair was bad."""
        return self.failing[edge] == len(self.edges[edge])


def tally(state: State, without: Iterable[str] = ()) -> Tally:
    """Count the tests of pairs; those with a node in `without`, or a lost one, do not count."""
    away = frozenset(without)
    order = {n: i for i, n in enumerate(n for n in state.nodes if n not in away)}
    passed = dict.fromkeys(order, 0)
    met: dict[str, set[str]] = {n: set() for n in order}
    bad: dict[str, list[Trial]] = defaultdict(list)
    edges: dict[Edge, list[Trial]] = defaultdict(list)
    failing: dict[Edge, int] = defaultdict(int)
    hard: set[Edge] = set()
    for test in state.tests:
        if test.purpose not in PAIRED or test.outcome == "untested":
            continue
        a, b = edge = test.nodes
        if a not in order or b not in order:
            continue
        edges[edge].append(test)
        met[a].add(b)
        met[b].add(a)
        if test.outcome == "passed":
            passed[a] += 1
            passed[b] += 1
        else:
            bad[a].append(test)
            bad[b].append(test)
            failing[edge] += 1
            if test.outcome != "slow":
                hard.add(edge)
    in_order = {edge: failing[edge] for edge in edges if edge in failing}
    return Tally(order, passed, met, dict(bad), dict(edges), in_order, hard)
