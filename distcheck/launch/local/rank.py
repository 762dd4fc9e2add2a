"""One local rank as distcheck sees it: its messages, its process state, and how it ended."""

from __future__ import annotations

import asyncio
import time

from distcheck.collectives import nccl_debug
from distcheck.collectives.plan import (
    Checked,
    Computed,
    DeviceTested,
    Failed,
    Finished,
    GroupTiming,
    Joined,
    NcclSaid,
    Software,
    Step,
    Task,
    Timing,
    Trained,
    label,
)
from distcheck.facts.base import Missing
from distcheck.facts.nccl import NcclLog
from distcheck.facts.placement import Placement
from distcheck.facts.quantities import signal_name
from distcheck.facts.rank import Death, RankRun
from distcheck.facts.training import Training
from distcheck.launch.local import channel
from distcheck.launch.local.channel import Born
from distcheck.probe.process import state_of

_STOPPED_SECONDS = 3.0
"""A rank that stays stopped for this long is not merely inspected by a debugger."""
_STATES = {
    "T": "stopped by a signal (state T)",
    "t": "held by a debugger (state t)",
    "D": "in an uninterruptible system call (state D)",
}


class LocalRank:
    """The known state of one rank's process."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.pid: int | None = None
        self.step = "started"
        self.heard = time.monotonic()
        self.stopped_since: float | None = None
        self.finished = False
        self.failure: Failed | None = None
        self.exit_code: int | None = None
        self.death: Death | None = None
        """The node's state right after a signal killed its process."""
        self._silent: float | None = None
        """Seconds since its last message when the run ended; None while it goes on."""
        self.waits_in, self.stack = "", tuple[str, ...]()
        """Where it was when the run ended: kernel function and Python stack."""
        self.orphaned = ""
        """How the fork server ended; the kernel then kills the rank, and its exit code is unknown."""
        self.software: Software | None = None
        self.timings: list[Timing] = []
        self.groups: list[GroupTiming] = []
        self.place = 0
        self.checks: list[Checked] = []
        self.computed: Computed | None = None
        self.joined: Joined | None = None
        self.nccl: NcclSaid | None = None
        self.device: DeviceTested | None = None
        self.trained: dict[str, Training | Missing] = {}
        self.writer: asyncio.StreamWriter | None = None
        self.task: Task | None = None

    def give(self, task: Task) -> None:
        """Send the rank its task, once."""
        if self.task is None and self.writer is not None:
            self.task = task
            self.heard = time.monotonic()
            self.writer.write(channel.encode_task(task))

    def hear(self, message: channel.Message) -> None:  # noqa: PLR0912 one case for each message
        """Record a message; any message shows that the rank is alive."""
        self.heard = time.monotonic()
        match message:
            case Born():
                self.pid = message.pid
            case Step():
                self.step, self.place = message.text, message.place
            case Software():
                self.software = message
            case Timing():
                self.timings.append(message)
            case GroupTiming():
                self.groups.append(message)
            case Computed():
                self.computed = message
            case Joined():
                self.joined = message
            case DeviceTested():
                self.device = message
            case Trained():
                self.trained[message.way] = message.training
            case NcclSaid():
                self.nccl = message if self.nccl is None else NcclSaid(nccl_debug.later(self.nccl.log, message.log))
            case Checked():
                self.checks.append(message)
            case Failed():
                self.failure = message
            case Finished():
                self.finished, self.step = True, "done"

    def note_silence(self) -> None:
        """Record, once, how long the rank has been silent."""
        self._silent = self._silent or time.monotonic() - self.heard

    @property
    def over(self) -> bool:
        """Whether no further message is expected."""
        return self.finished or self.failure is not None or self.exit_code is not None or bool(self.orphaned)

    def trouble(self) -> str:
        """Return what keeps the rank from finishing, '' if nothing is known."""
        if self.failure is not None:
            return self.failure.error
        if self.exit_code is not None and not self.finished:
            return f"its process {ending(self.exit_code)}"
        if self.orphaned and not self.finished:
            return f"its process {self.orphaned}"
        if self.stopped_since is not None and time.monotonic() - self.stopped_since >= _STOPPED_SECONDS:
            return "its process is stopped"
        return ""

    def run(self) -> RankRun:
        """Return the rank's run: how it ended and what it measured."""
        state = state_of(self.pid) if self.pid else ""
        outcome, detail = "stalled", _STATES.get(state, "")
        if self.finished:
            outcome, detail = "done", ""
        elif self.exit_code is not None and self.failure is None:
            outcome, detail = "died", ending(self.exit_code)
        elif self.orphaned and self.failure is None and self.task is not None:
            outcome, detail = "died", self.orphaned
        elif state in {"T", "t"}:
            outcome = "stopped"
        elif self.failure is not None:
            outcome, detail = (
                "failed",
                ("unavailable: " if self.failure.unavailable else "") + self.failure.error,
            )
        elif self.pid is None:
            outcome = "not started"
        return RankRun(
            pid=self.pid,
            step=self.step,
            outcome=outcome,  # type: ignore[arg-type]  # the literals above
            detail=detail,
            silent_seconds=0.0 if self.over else round(self._silent or time.monotonic() - self.heard, 1),
            waits_in=self.waits_in if outcome == "stalled" else "",
            stack=self.stack if outcome == "stalled" else (),
            death=self.death if outcome == "died" else None,
            joined_seconds=self.joined.seconds if self.joined else None,
            implementation=self.joined.implementation if self.joined else "",
            first_call_seconds={label(c.op, c.dtype): c.seconds for c in self.checks},
            wrong={label(c.op, c.dtype): c.wrong for c in self.checks},
            checked={label(c.op, c.dtype): c.elements for c in self.checks},
            device=self.software.device if self.software else "cpu",
            gpu=self.software.gpu if self.software else None,
            nccl=self._nccl(),
            device_test=self.device.test if self.device else None,
            training=dict(self.trained),
            place=self.place,
            absent=self.failure.absent if self.failure else (),
        )

    def _nccl(self) -> NcclLog | Missing | None:
        """Return NCCL's log from the rank; if it cannot report any more, from its process."""
        if self.nccl is not None:
            return self.nccl.log
        if self.task is None or self.task.plan.backend != "nccl":
            return None
        log = nccl_debug.of_process(self.pid) if self.pid else None
        return log or Missing(reason="the rank ended before it reported NCCL's log")


def ending(code: int) -> str:
    """Return how a process ended: its exit code, or the signal that killed it."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal_name(-code)}"
