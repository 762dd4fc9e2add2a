"""Counts the tests of pairs, by node and by pair."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from distcheck.isolation.round import PAIRED, Trial
from distcheck.isolation.state import State

Edge = tuple[str, str]
"""The nodes of a pair, in the order of the state's nodes."""


class Tally(msgspec.Struct, frozen=True):
    """The tests of pairs, in order."""

    order: dict[str, int]
    """The nodes that can be partners, with their position by name."""
    passed: dict[str, int]
    met: dict[str, set[str]]
    bad: dict[str, list[Trial]]
    edges: dict[Edge, list[Trial]]
    failing: tuple[Edge, ...]
    """The pairs with a bad test."""

    def tests(self, node: str) -> int:
        """Return how often a node was tested with another."""
        return self.passed[node] + len(self.bad.get(node, ()))


def tally(state: State, without: Iterable[str] = ()) -> Tally:
    """Count the tests of pairs; those with a node in `without`, or a lost one, do not count."""
    away = frozenset(without)
    order = {n: i for i, n in enumerate(n for n in state.nodes if n not in away)}
    passed = dict.fromkeys(order, 0)
    met: dict[str, set[str]] = {n: set() for n in order}
    bad: dict[str, list[Trial]] = {}
    edges: dict[Edge, list[Trial]] = {}
    failing: set[Edge] = set()
    for test in state.tests:
        if test.purpose not in PAIRED or test.outcome == "untested":
            continue
        a, b = test.nodes
        if a not in order or b not in order:
            continue
        edges.setdefault((a, b), []).append(test)
        met[a].add(b)
        met[b].add(a)
        if test.outcome == "passed":
            passed[a] += 1
            passed[b] += 1
        else:
            bad.setdefault(a, []).append(test)
            bad.setdefault(b, []).append(test)
            failing.add((a, b))
    return Tally(order, passed, met, bad, edges, tuple(edge for edge in edges if edge in failing))
