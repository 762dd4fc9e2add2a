"""The answer of `distcheck hang` in the JSON report."""

from __future__ import annotations

from typing import Literal

from distcheck.report.schema.part import Part

HangWord = Literal["hung", "slow", "not hung", "cannot tell"]


class OddRank(Part, frozen=True):
    """A rank that holds up others."""

    rank: int | None
    node: str | None
    """None for a rank without a process."""
    pid: int | None
    at: str
    """File and line of the user's program, such as data.py:41; empty if no stack is known."""
    function: str
    state: str
    """The kernel's state of its main thread: R, S, D, T, …; - without a process."""
    reason: str


class WaitingRanks(Part, frozen=True, rename={"operation": "in"}):
    """Ranks that wait in the same operation at the same line."""

    ranks: str
    """Folded: 0-1,3."""
    at: str
    operation: str
    """The communication, such as all_reduce."""


class SeenGpu(Part, frozen=True):
    """A GPU that a rank uses; readings have an item for each sample."""

    index: int
    utilization_percent: tuple[int, ...]
    memory_used_bytes: tuple[int, ...]
    power_watts: tuple[float, ...]
    power_limit_watts: float | None
    lost: str
    """NVML's text if it is lost."""
    xids: tuple[int, ...]
    """Since the rank's process started."""


class SeenRank(Part, frozen=True):
    """What one rank did."""

    rank: int | None
    node: str
    pid: int
    at: str
    function: str
    path: str
    """The file of `at`, as the process knows it."""
    state: str
    waits_in: str
    """The kernel function; empty if it runs or may not be read."""
    operation: str
    """The communication that it waits in; empty if none."""
    does: str
    """gone, stopped, gpu, disk, blocked, lock, idle, sleeps, polls, hidden, unknown, busy or waits."""
    moves: bool
    """Whether it made progress."""
    seconds: float
    """For how long it was looked at."""
    gpus: tuple[SeenGpu, ...]
    native: tuple[str, ...]
    """Functions of libraries with --native, innermost first."""


class HangAnswer(Part, frozen=True):
    """Which rank holds up a running job."""

    answer: HangWord
    job: str
    """Its meeting place, or the process that started it."""
    world_size: int | None
    seconds: float
    odd: tuple[OddRank, ...]
    waiting: tuple[WaitingRanks, ...]
    missing: tuple[int, ...]
    """Ranks without a process."""
    unseen: tuple[int, ...]
    """Ranks that may be on nodes that were not looked at."""
    reason: str
    """Why it cannot be told; empty otherwise."""
    ranks: tuple[SeenRank, ...]
