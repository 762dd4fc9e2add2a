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
import threading
import time
from collections.abc import Iterator

GRACE_SECONDS = 4.0
"""What a run may take beyond its --timeout before it is ended from here."""
_LOOK_SECONDS = 0.25


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
                os.write(2, b"distcheck: error: something blocks and the time is over; no whole report was written\n")
        os._exit(self.code)


@contextlib.contextmanager
def armed(at: float, code: int) -> Iterator[Watchdog]:
    """Watch over the body: it ends before `at` (time.monotonic()), or the process does, with this exit code."""
    dog = Watchdog(at, code)
    threading.Thread(target=dog._watch, name="distcheck-watchdog", daemon=True).start()  # noqa: SLF001 its own class
    try:
        yield dog
    finally:
        dog.at = math.inf
