"""What is tested at the same time, and what came of it."""

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


class Group(msgspec.Struct, frozen=True):
    """Nodes that run a test among themselves, sorted by name."""

    nodes: tuple[str, ...]
    purpose: Purpose


class Round(msgspec.Struct, frozen=True):
    """Disjoint groups to be tested at the same time; results refer to a group by its place.

    In a group of purpose alone every rank also times work of its own, before any collective.
    """

    number: int
    """From 1, without gaps."""
    groups: tuple[Group, ...]
    left: tuple[tuple[str, ...], ...] = ()
    """In rounds of larger groups: the nodes that are left for these, in two parts where pairs showed two sides."""


class Compute(msgspec.Struct, frozen=True):
    """What a rank took for work of its own; compared with ranks of the same device only."""

    node: str
    local_rank: int
    matmul_seconds: float | None = None
    copy_seconds: float | None = None
    device: str = ""


class Rail(msgspec.Struct, frozen=True):
    """One local rank of every node of the group, tested among themselves."""

    local_rank: int
    ended: Ended = "passed"
    busbw_GBps: float | None = None  # noqa: N815 - the unit


class Said(msgspec.Struct, frozen=True):
    """What a member of a group reported; evidence for people, never a reason to blame that member."""

    node: str
    local_rank: int | None
    text: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one group; the speed is judged here, not where it was measured."""

    group: int
    """Its place in the round's groups."""
    ended: Ended
    busbw_GBps: float | None = None  # noqa: N815 - the unit
    seconds: float | None = None
    """Of the collective; used where there is no bus bandwidth."""
    like: str = ""
    """Figures are compared among groups that say the same, such as the model of GPU and the ranks per node."""
    rails: tuple[Rail, ...] = ()
    compute: tuple[Compute, ...] = ()
    said: tuple[Said, ...] = ()


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that took longer than others for work of its own."""

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
    """The local ranks whose rails did not pass, where others did; empty when it is not a matter of rails."""
    slow_ranks: tuple[SlowRank, ...] = ()
    speed: float | None = None
    """GB/s of bus bandwidth, else operations per second."""
    ratio: float | None = None
    """The speed as a share of what groups like this one showed."""
    like: str = ""
    rail_speeds: tuple[tuple[int, float], ...] = ()
    compute: tuple[Compute, ...] = ()
    said: tuple[Said, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether it did not pass, however."""
        return self.outcome not in {"passed", "untested"}

    @property
    def hard(self) -> bool:
        """Whether it did not work at all, rather than slowly."""
        return self.bad and self.outcome != "slow"

    def other(self, node: str) -> str:
        """Return the partner of a node in a pair."""
        return self.nodes[1] if self.nodes[0] == node else self.nodes[0]
