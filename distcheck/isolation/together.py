"""Which nodes were seen to work together, whatever their names, and whether a node met only one such part of them.

Where a partition parts the nodes, whoever met only the other side of it fails with all of them and is not at fault.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from distcheck.isolation.round import PAIRED
from distcheck.isolation.state import State

Part = frozenset[str]


class Together(msgspec.Struct, frozen=True):
    """What passed and what failed between nodes, in all tests so far."""

    part: dict[str, Part]
    """Of each node that passed with others: all to whom tests that passed join it."""
    failed_with: dict[str, frozenset[str]]
    """Of each node: with whom it failed in pairs."""

    def apart(self, node: str) -> bool:
        """Whether a partition explains what a node failed in as well as a fault of its own does."""
        met = self.parts_met(node)
        own = self.part.get(node)
        if own is not None:
            return own not in met
        return len(met) < 2 and any(self._parted(part, node) for part in set(self.part.values()) - met)

    def parts_met(self, node: str) -> set[Part]:
        """Return the parts with some of which it failed."""
        return {self.part[n] for n in self.failed_with.get(node, frozenset()) if n in self.part}

    def _parted(self, part: Part, node: str) -> bool:
        """Whether something but this node shows that a part does not work with others, or nothing shows that it does.

        Whoever fails with several parts is at fault itself, and shows nothing of what is between them.
        """
        others = {n for its in part for n in self.failed_with.get(its, frozenset())} - part - {node}
        return not others or any(len(self.parts_met(n)) < 2 for n in others)

    def beside(self, node: str) -> Part:
        """Return the nodes of the parts in which it failed with some: others tell more of it."""
        return frozenset().union(*self.parts_met(node))


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
    members: dict[str, set[str]] = {}
    for node in up:
        members.setdefault(top(node), set()).add(node)
    part = {n: frozenset(its) for its in members.values() if len(its) > 1 for n in its}
    return Together(part, {n: frozenset(its) for n, its in failed.items()})
