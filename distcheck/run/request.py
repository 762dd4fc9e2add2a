"""The request and the result of one run of distcheck in one process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from distcheck.facts.asked import Asked, Look
from distcheck.facts.job import Job
from distcheck.facts.launch_command import Stated
from distcheck.facts.placement import Placement

if TYPE_CHECKING:  # followers do not load rules, and load the roll call only when they join it
    from distcheck.launch.remote.spec import Outside
    from distcheck.rollcall.protocol import Report
    from distcheck.rules.diagnose import Diagnosis

_AFTER_NAMES_SECONDS = 3.0
"""Of --timeout, for what follows the resolution of a name."""


class Request(NamedTuple):
    """What this process is to do."""

    asked: Asked
    placements: tuple[Placement, ...]
    """The ranks that it reports for."""
    environ: Mapping[str, str]
    connect_seconds: float = 3.0
    iterations: int | None = None
    time_limit_seconds: float | None = None
    """For the whole sweep."""
    start: float = 0.0
    """time.monotonic() when the process started."""
    quiet: bool = False
    outside: Outside | None = None
    """How to start the probes if this process is not one itself."""
    on_collected: Callable[[Report], None] | None = None
    """Called with this process's own facts, before the roll call."""
    launch: Stated | None = None
    """What COMMAND states about its ranks."""
    waited: float = 0.0
    """Seconds of --join-timeout that this process waited for nodes that did not come."""
    ended: tuple[int, str] | None = None
    """The signal that ended this process before the run, and what it waited for."""
    history: str = ""
    """The folder with the history of the nodes; empty without one."""

    @property
    def own_ranks(self) -> frozenset[int]:
        """The ranks that this process reports for."""
        return frozenset(p.rank for p in self.placements if p.rank is not None)

    @property
    def speaks_for_all(self) -> bool:
        """Whether this process reports for every rank of the job."""
        return self.placements[0].world_size == len(self.placements) == len(self.own_ranks)

    @property
    def meets(self) -> bool:
        """Whether this job has other processes, or at least a MASTER_PORT to bind."""
        return any(p.can_meet for p in self.placements) and "meeting" in self.asked.looks

    @property
    def resolver_seconds(self) -> float:
        """How long the name of rank 0's node may take to resolve from now on.

        With a short --timeout, too: a resolver that was not given a second is not at fault.
        """
        left = self.start + self.asked.timeout_seconds - time.monotonic() - _AFTER_NAMES_SECONDS
        return min(self.connect_seconds + 2, max(1.0, left))

    @property
    def starts_ranks(self) -> bool:
        """Whether this process starts ranks: those of --nproc, or its own rank to measure."""
        here = self.asked.started_here or (self.asked.measures and bool(self.own_ranks))
        return here and self.outside is None


class RunResult(NamedTuple):
    """The result of a run."""

    job: Job
    exit_code: int
    reported: bool
    """Whether this process published the report, its own or the common one."""
    headline: str = ""
    """The first line of the report that this process published."""


NEVER_MET = "this process did not reach rank 0"
WITH_OTHERS: tuple[Look, ...] = ("peers", "collectives", "training", "isolation")
"""Looks that need other processes."""
Publish: TypeAlias = "Callable[[Job, Diagnosis, int], int]"
"""Writes the report; returns the exit code, 70 instead of the verdict's when it could not be written."""
NOBODY_ELSE = signal.SIGUSR2
"""Tells a probe started from outside that no further process will join the roll call."""
