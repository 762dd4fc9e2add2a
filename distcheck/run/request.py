"""What is asked of one run of distcheck in one process, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from distcheck.facts import Asked, Job, Look, Placement

if TYPE_CHECKING:  # whoever only follows loads no rules, and nothing of other processes before it meets one
    from distcheck.launch.remote.spec import Outside
    from distcheck.rollcall.protocol import Report
    from distcheck.rules.diagnose import Diagnosis


class Request(NamedTuple):
    """What this process is to do."""

    asked: Asked
    placements: tuple[Placement, ...]
    """The ranks for which it speaks."""
    environ: Mapping[str, str]
    connect_seconds: float = 3.0
    iterations: int | None = None
    time_limit_seconds: float | None = None
    """For the whole sweep."""
    start: float = 0.0
    """time.monotonic() when the process started."""
    quiet: bool = False
    outside: Outside | None = None
    """How to start the probes when this process is none itself."""
    on_collected: Callable[[Report], None] | None = None
    """Told what this process knows of itself, before it meets anybody."""

    @property
    def own_ranks(self) -> frozenset[int]:
        """The ranks for which this process speaks."""
        return frozenset(p.rank for p in self.placements if p.rank is not None)

    @property
    def speaks_for_all(self) -> bool:
        """Whether nobody else belongs to the job."""
        return self.placements[0].world_size == len(self.placements) == len(self.own_ranks)

    @property
    def meets(self) -> bool:
        """Whether other processes, or at least a MASTER_PORT to bind, belong to this job."""
        return any(p.can_meet for p in self.placements) and "meeting" in self.asked.looks

    @property
    def starts_ranks(self) -> bool:
        """Whether this process has ranks to start: its own from outside, or the one that measures."""
        return self.asked.started_here or (self.asked.measures and bool(self.own_ranks))


class RunResult(NamedTuple):
    """How it ended."""

    job: Job
    exit_code: int
    reported: bool
    """Whether this process had to publish the report, alone or for all."""


NOBODY_TO_MEET = "the placement is not valid, so there was no roll call"


NEVER_MET = "this process did not reach rank 0"


WITH_OTHERS: tuple[Look, ...] = ("peers", "collectives", "isolation")
"""Looks that a process cannot take alone."""


Publish: TypeAlias = "Callable[[Job, Diagnosis, int], int]"
"""Writes the report; returns the exit code, 70 instead of the verdict's when it could not be written."""


NOBODY_ELSE = signal.SIGUSR2
"""Tells a probe that was started from outside that whoever has not come to the roll call will not."""
