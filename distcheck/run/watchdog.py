"""The last resort: a thread that ends the process if a call blocks past the deadline.

Calls that are known to block have their own timeouts. The watchdog covers the rest: a report written to a pipe without
a reader, a file system that does not answer, a driver that never returns.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import PurePath

from distcheck.facts.asked import Asked
from distcheck.probe.ending import kill_group

GRACE_SECONDS = 4.0
"""How long a run may exceed its --timeout before the watchdog ends it."""
_LOOK_SECONDS = 0.25
_WITHOUT_US_SECONDS = 0.7
"""How much later the kernel ends a process in which this thread cannot run."""
_MOST_CALLS = 4
_MESSAGE = "a call is blocked past the deadline; the report is incomplete"


_UNKNOWN = 20


def when_late(asked: Asked) -> int:
    """Return the exit code of a run that does not end in time: 0 in mode observe, unless COMMAND was to run."""
    return 0 if asked.mode_of() == "observe" and not asked.program else _UNKNOWN


def _where() -> str:
    """Return the main thread's innermost calls, innermost first; empty if they are unknown."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 public in all but name
    calls: list[str] = []
    while frame is not None and len(calls) < _MOST_CALLS:
        calls.append(f"{frame.f_code.co_name} ({PurePath(frame.f_code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return f": the main thread is in {' < '.join(calls)}" if calls else ""


class Watchdog:
    """Ends the process at a given time; signal handlers may assign its attributes."""

    def __init__(self, at: float, code: int) -> None:
        self.at = at
        """time.monotonic() at which it ends the process."""
        self.code = code
        """The exit code for that case."""
        self.group: int | None = None
        """A process group to kill as well."""

    def hasten(self, seconds: float, code: int) -> None:
        """End the process after this many seconds at the latest, with this exit code."""
        self.at, self.code = min(self.at, time.monotonic() + seconds), code
        self.arm_the_kernel()

    def arm_the_kernel(self) -> None:
        """Set a timer: the kernel ends this process by SIGALRM shortly after the deadline.

        A call into C that holds the interpreter lock stops every Python thread, including the watchdog's.
        """
        signal.setitimer(signal.ITIMER_REAL, max(0.0, self.at - time.monotonic()) + _WITHOUT_US_SECONDS)

    def _watch(self) -> None:
        while self.at < math.inf:
            left = self.at - time.monotonic()
            if left <= 0:
                self._bite()
            time.sleep(min(left, _LOOK_SECONDS))

    def _bite(self) -> None:
        if self.group is not None:
            kill_group(self.group)
        with contextlib.suppress(OSError, ValueError):
            if select.select([], [2], [], 0)[1]:  # a full pipe would block
                os.write(2, f"distcheck: error: {_MESSAGE}{_where()}\n".encode())
        os._exit(self.code)


@contextlib.contextmanager
def armed(at: float, code: int) -> Iterator[Watchdog]:
    """Run the body under a watchdog that ends the process at `at` with this exit code."""
    dog = Watchdog(at, code)
    with contextlib.suppress(RuntimeError):  # without a free thread the kernel's timer ends the process
        threading.Thread(target=dog._watch, name="distcheck-watchdog", daemon=True).start()  # noqa: SLF001 its own class
    # An ignored SIGALRM would not end the process; COMMAND gets the old disposition back.
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    dog.arm_the_kernel()
    try:
        yield dog
    finally:
        dog.at = math.inf
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
