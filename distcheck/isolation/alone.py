"""The tests of each node alone: a failure there involves no other node."""

from __future__ import annotations

from collections import Counter

import msgspec

from distcheck.isolation.round import SlowRank, Trial
from distcheck.isolation.state import State

RUNS = 3
"""The most runs of a node alone; this many slow runs convict it."""


class Alone(msgspec.Struct, frozen=True):
    """The runs of one node alone, in order."""

    runs: tuple[Trial, ...]

    @property
    def hard(self) -> tuple[Trial, ...]:
        """The runs that failed, hung or were wrong."""
        return tuple(t for t in self.runs if t.hard)

    @property
    def slow(self) -> tuple[Trial, ...]:
        """The runs whose collective was slow."""
        return tuple(t for t in self.runs if t.outcome == "slow")

    @property
    def slow_ranks(self) -> tuple[SlowRank, ...]:
        """The ranks whose own work was slow in every run, with the last run's figures."""
        seen = Counter((s.local_rank, s.work) for t in self.runs for s in t.slow_ranks)
        return tuple(s for s in self.runs[-1].slow_ranks if seen[s.local_rank, s.work] == len(self.runs) >= RUNS)

    @property
    def convicted(self) -> bool:
        """Whether the node is bad: no other node was involved when it failed."""
        return bool(self.hard) or len(self.slow) >= RUNS or bool(self.slow_ranks)

    @property
    def again(self) -> bool:
        """Whether another run is useful: two failures are certain, as is being always slow."""
        if len(self.runs) >= RUNS:
            return False
        return len(self.hard) == 1 if self.hard else all(t.bad or t.slow_ranks for t in self.runs)


def alone(state: State) -> dict[str, Alone]:
    """Return the runs of every node that was bad in one of them."""
    tests = [t for t in state.tests if t.purpose == "alone" and t.outcome != "untested"]
    bad = {t.nodes[0] for t in tests if t.bad or t.slow_ranks}
    runs: dict[str, list[Trial]] = {n: [] for n in state.nodes if n in bad}
    for test in tests:
        if test.nodes[0] in runs:
            runs[test.nodes[0]].append(test)
    return {node: Alone(tuple(its)) for node, its in runs.items()}


def to_repeat(runs: dict[str, Alone]) -> list[str]:
    """Return the nodes to run alone once more."""
    return [node for node, its in runs.items() if its.again]


def set_aside(runs: dict[str, Alone]) -> frozenset[str]:
    """Return the nodes that cannot be partners: convicted, or about to run again."""
    return frozenset(node for node, its in runs.items() if its.again or its.convicted)
