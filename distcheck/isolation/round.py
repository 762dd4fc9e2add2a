"""The groups that are tested at the same time, and their results."""

from __future__ import annotations

from typing import Literal

import msgspec

Purpose = Literal["alone", "pair", "confirming", "group", "half", "again", "across"]
Ended = Literal["passed", "failed", "wrong", "hung", "untested"]
Outcome = Literal["passed", "failed", "wrong", "hung", "slow", "untested"]
"""How a test ended, with the speed judged."""

WORST_FIRST: tuple[Outcome, ...] = ("wrong", "hung", "failed", "slow")
PAIRED: tuple[Purpose, ...] = ("pair", "confirming")
GROUPED: tuple[Purpose, ...] = ("group", "half", "again", "across")


class NodeGroup(msgspec.Struct, frozen=True):
    """Nodes that run a test among themselves, sorted by name."""

    nodes: tuple[str, ...]
    purpose: Purpose


class Round(msgspec.Struct, frozen=True):
    """Disjoint groups to test at the same time; results refer to a group by its position.

    In a group of purpose alone every rank also times its own work before any collective.
    """

    number: int
    """From 1, without gaps."""
    groups: tuple[NodeGroup, ...]
    left: tuple[tuple[str, ...], ...] = ()
    """In rounds of larger groups: the remaining nodes, in two parts if pairs showed two sides."""


class Compute(msgspec.Struct, frozen=True):
    """The times of a rank's own work, compared only with ranks on the same device."""

    node: str
    local_rank: int
    matmul_seconds: float | None = None
    copy_seconds: float | None = None
    device: str = ""


class Rail(msgspec.Struct, frozen=True):
    """One local rank of every node in the group, tested with each other."""

    local_rank: int
    ended: Ended = "passed"
    busbw_GBps: float | None = None  # noqa: N815 - the unit


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one group; speeds are judged in this package, not where they are measured."""

    group: int
    """Its position in the round's groups."""
    ended: Ended
    busbw_GBps: float | None = None  # noqa: N815 - the unit
    seconds: float | None = None
    """The time of the collective; used without a bus bandwidth."""
    like: str = ""
    """Figures are compared among groups with the same value, such as GPU model and ranks per node."""
    rails: tuple[Rail, ...] = ()
    compute: tuple[Compute, ...] = ()
    said: tuple[str, ...] = ()
    """Its members' reports: evidence for the reader, never a reason to blame a member."""


class SlowRank(msgspec.Struct, frozen=True):
    """A rank whose own work took longer than others'."""

    node: str
    local_rank: int
    work: Literal["matmul", "copy"]
    ratio: float
    """Its speed as a share of the others' median."""


class Trial(msgspec.Struct, frozen=True):
    """One group of a finished round, judged."""

    round: int
    nodes: tuple[str, ...]
    purpose: Purpose
    outcome: Outcome
    ended: Outcome = "untested"
    """The outcome before speeds were judged."""
    rails: tuple[int, ...] = ()
    """The local ranks whose rails did not pass while others did; empty if rails do not matter."""
    slow_ranks: tuple[SlowRank, ...] = ()
    speed: float | None = None
    """GB/s of bus bandwidth, else operations per second."""
    ratio: float | None = None
    """The speed as a share of that of comparable groups."""
    like: str = ""
    rail_speeds: tuple[tuple[int, float], ...] = ()
    compute: tuple[Compute, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether it failed, hung, or was wrong or slow."""
        return self.outcome not in {"passed", "untested"}

    @property
    def hard(self) -> bool:
        """Whether it failed, hung or was wrong, rather than slow."""
        return self.bad and self.outcome != "slow"

    def other(self, node: str) -> str:
        """Return the partner of a node in a pair."""
        return self.nodes[1] if self.nodes[0] == node else self.nodes[0]
