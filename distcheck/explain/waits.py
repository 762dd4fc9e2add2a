"""What torch writes about the collectives in which each rank waits."""

from __future__ import annotations

from typing import NamedTuple

from distcheck.explain.places import When


class LoggedGroup(NamedTuple):
    """A process group as the lines name it."""

    key: str = ""
    name: str = ""
    everywhere: bool = False
    """Whether the same key is the same group on all ranks."""


class Call(NamedTuple):
    """A collective in which a rank waited for longer than the timeout, or until NCCL failed."""

    rank: int
    group_rank: int | None
    group: LoggedGroup
    number: int | None
    """torch's SeqNum; None in the oldest versions."""
    operation: str
    elements_in: int | None
    elements_out: int | None
    timeout_s: float | None
    time: When | None
    dtype: str = ""
    """The type of its data, where the line has it."""


class Status(NamedTuple):
    """How far a rank was in a group when it or another rank timed out."""

    rank: int
    group_rank: int | None
    group: LoggedGroup
    at: int | None
    """The number of its own collective that timed out; None if another rank's did."""
    enqueued: int
    completed: int
    time: When | None


class Waits(NamedTuple):
    """What the watchdogs of all ranks wrote."""

    time_outs: tuple[Call, ...]
    statuses: tuple[Status, ...]
    wrote: frozenset[int]
    """Ranks that have any line in the logs."""
    world: int | None
    """Number of ranks, if the logs tell one."""
    failed: tuple[Call, ...] = ()
    """In which the ranks waited when NCCL failed."""
    dumped: bool = False
    """Whether the ranks wrote dumps of the Flight Recorder."""
    late: frozenset[int] = frozenset()
    """Ranks whose collective timed out in Gloo."""
    lost: frozenset[int] = frozenset()
    """Ranks that lost a connection of Gloo to another rank."""
