"""SIGINT, SIGTERM and SIGHUP during a run: a first one ends it with what is known."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

INTERRUPT_SECONDS = 5.0
"""Time to end after a signal before the watchdog ends the process."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(Exception):
    """A signal, the only argument, ended the run."""


class Interruption:
    """The first signal that came, if any; a pause ends with it."""

    def __init__(self) -> None:
        self.came: signal.Signals | None = None
        self._reads, self._writes = os.pipe()

    def note(self, signum: signal.Signals) -> None:
        """Note a signal, in its handler."""
        self.came = self.came or signum
        os.write(self._writes, b"!")

    def pause(self, seconds: float) -> None:
        """Return after some seconds, or at once if a signal came."""
        select.select([self._reads], [], [], seconds)


async def until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which a signal cancels.

    A handler that raises an error would not do: one that is raised in a hook of fork() or in a destructor is lost.

    Raises:
        InterruptedRunError: a signal came.
    """
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    came: list[signal.Signals] = []

    def end(signum: signal.Signals) -> None:
        came.append(signum)
        loop.call_soon_threadsafe(task.cancel)

    with caught(end):
        try:
            return await task
        except asyncio.CancelledError:
            if not came:
                raise
            raise InterruptedRunError(came[0]) from None


@contextlib.contextmanager
def caught(interrupt: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `interrupt` on each of these signals in the body; an ignored signal stays ignored.

    The handlers are Python's own, not the loop's: they run even while the loop is blocked in a write.
    """

    def handle(signum: int, _frame: FrameType | None) -> None:
        interrupt(signal.Signals(signum))

    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
