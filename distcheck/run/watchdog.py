"""The last resort: a thread that ends this process when its time is over and something still blocks it.

Whatever can block is bounded where it is called. What is left are the calls that nobody expected to block: a report
written into a pipe that nobody reads, a file system that does not answer, a driver that never returns.
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

GRACE_SECONDS = 4.0
"""What a run may take beyond its --timeout before it is ended from here."""
_LOOK_SECONDS = 0.25
_WITHOUT_US_SECONDS = 0.7
"""How much later the kernel ends a process in which not even this thread can run."""
_MOST_CALLS = 4
_MESSAGE = "a call is blocked past the deadline; the report is incomplete"


def _where() -> str:
    """Say in which of our own calls the main thread is, innermost first; empty where that cannot be told."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 public in all but name
    calls: list[str] = []
    while frame is not None and len(calls) < _MOST_CALLS:
        calls.append(f"{frame.f_code.co_name} ({PurePath(frame.f_code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return f": the main thread is in {' < '.join(calls)}" if calls else ""


class Watchdog:
    """Ends the process at a given time; it is changed by plain assignments, so that signal handlers may do it too."""

    def __init__(self, at: float, code: int) -> None:
        self.at = at
        """time.monotonic() at which it bites."""
        self.code = code
        """The exit code that is then taken."""
        self.group: int | None = None
        """A process group that is ended as well."""

    def hasten(self, seconds: float, code: int) -> None:
        """Bite after so many seconds at the latest, and with this exit code."""
        self.at, self.code = min(self.at, time.monotonic() + seconds), code
        self.arm_the_kernel()

    def arm_the_kernel(self) -> None:
        """Have the kernel end this process, by SIGALRM, a moment after the time is over.

        A call into C that keeps the interpreter to itself stops every thread of Python's, this class's included.
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
            with contextlib.suppress(OSError):
                os.killpg(self.group, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            if select.select([], [2], [], 0)[1]:  # a pipe that is full would keep us here
                os.write(2, f"distcheck: error: {_MESSAGE}{_where()}\n".encode())
        os._exit(self.code)


@contextlib.contextmanager
def armed(at: float, code: int) -> Iterator[Watchdog]:
    """Watch over the body: it ends before `at` (time.monotonic()), or the process does, with this exit code."""
    dog = Watchdog(at, code)
    threading.Thread(target=dog._watch, name="distcheck-watchdog", daemon=True).start()  # noqa: SLF001 its own class
    # One that was ignored, by nohup's like, would not end us; COMMAND gets it back as it was.
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    dog.arm_the_kernel()
    try:
        yield dog
    finally:
        dog.at = math.inf
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
