"""SIGINT, SIGTERM and SIGHUP during a run: a first one ends it with what is known."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPT_SECONDS = 5.0
"""Time to end after a signal before the watchdog ends the process."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(Exception):
    """A signal, the only argument, ended the run."""


def give_up(signum: signal.Signals) -> None:
    """End what runs now, wherever it is: the handler of a run without anybody to take leave of."""
    raise InterruptedRunError(signum)


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
