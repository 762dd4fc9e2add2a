"""What the nodes showed by themselves: a failure there involves nobody else."""

from __future__ import annotations

from collections import Counter

import msgspec

from .round import SlowRank, Test
from .state import State

MOST_RUNS = 3


class Alone(msgspec.Struct, frozen=True):
    """The runs of one node by itself, in order."""

    runs: tuple[Test, ...]

    @property
    def hard(self) -> tuple[Test, ...]:
        return tuple(t for t in self.runs if t.hard)

    @property
    def slow(self) -> tuple[Test, ...]:
        return tuple(t for t in self.runs if t.outcome == "slow")

    @property
    def slow_ranks(self) -> tuple[SlowRank, ...]:
        """The ranks whose own work was slow more than once, as the last of these runs showed them."""
        seen = Counter((s.local_rank, s.work) for t in self.runs for s in t.slow_ranks)
        last = {(s.local_rank, s.work): s for t in self.runs for s in t.slow_ranks}
        return tuple(last[k] for k, times in sorted(seen.items()) if times > 1)

    @property
    def convicted(self) -> bool:
        return bool(self.hard) or len(self.slow) > 1 or bool(self.slow_ranks)

    @property
    def again(self) -> bool:
        """Whether another run would tell more: twice bad is certain, once bad and once good is flaky or noise."""
        bad = [t for t in self.runs if t.bad or t.slow_ranks]
        if not self.runs or len(self.runs) >= MOST_RUNS or not bad or len(bad) > 1:
            return False
        return bool(self.hard) or len(self.runs) == 1


def alone(state: State) -> dict[str, Alone]:
    """Return the runs of every node that took part in the stage."""
    runs: dict[str, list[Test]] = {n: [] for n in state.nodes}
    for test in state.tests:
        if test.purpose == "alone" and test.outcome != "untested" and test.nodes[0] in runs:
            runs[test.nodes[0]].append(test)
    return {node: Alone(tuple(tests)) for node, tests in runs.items()}


def to_repeat(runs: dict[str, Alone]) -> list[str]:
    """Return the nodes that shall run by themselves once more."""
    return [node for node, its in runs.items() if its.again]


def set_aside(runs: dict[str, Alone]) -> frozenset[str]:
    """Return the nodes that are no partner for others: convicted, or about to be tried again."""
    return frozenset(node for node, its in runs.items() if its.again or its.convicted)
