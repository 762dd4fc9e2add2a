"""What the nodes showed by themselves: a failure there involves nobody else."""

from __future__ import annotations

from collections import Counter

import msgspec

from distcheck.isolation.round import SlowRank, Trial
from distcheck.isolation.state import State

RUNS = 3
"""Of a node by itself, at most; as many slow ones convict it."""


class Alone(msgspec.Struct, frozen=True):
    """The runs of one node by itself, in order."""

    runs: tuple[Trial, ...]

    @property
    def hard(self) -> tuple[Trial, ...]:
        """The runs that did not work at all."""
        return tuple(t for t in self.runs if t.hard)

    @property
    def slow(self) -> tuple[Trial, ...]:
        """The runs whose collective was slow."""
        return tuple(t for t in self.runs if t.outcome == "slow")

    @property
    def slow_ranks(self) -> tuple[SlowRank, ...]:
        """The ranks whose own work was slow in every run, as the last run showed them."""
        seen = Counter((s.local_rank, s.work) for t in self.runs for s in t.slow_ranks)
        return tuple(s for s in self.runs[-1].slow_ranks if seen[s.local_rank, s.work] == len(self.runs) >= RUNS)

    @property
    def convicted(self) -> bool:
        """Whether it is bad: nobody else was involved when it failed."""
        return bool(self.hard) or len(self.slow) >= RUNS or bool(self.slow_ranks)

    @property
    def again(self) -> bool:
        """Whether another run would tell more: failing twice is certain, so is being slow every time."""
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
    """Return the nodes that shall run by themselves once more."""
    return [node for node, its in runs.items() if its.again]


def set_aside(runs: dict[str, Alone]) -> frozenset[str]:
    """Return the nodes that are no partner for others: convicted, or about to be tried again."""
    return frozenset(node for node, its in runs.items() if its.again or its.convicted)
