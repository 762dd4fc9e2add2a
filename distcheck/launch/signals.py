"""Signals that whoever started this process ignores or blocks: delivered here, and given back to COMMAND.

A process passes both on to what it starts. While SIGCHLD is ignored the kernel keeps no exit code of a child; while it
is blocked no handler runs when a child ends. A blocked alarm does not end a process that hangs.
"""

from __future__ import annotations

import signal

_ENDED_CHILD = signal.SIG_IGN if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN else signal.SIG_DFL
_BLOCKED = signal.pthread_sigmask(signal.SIG_BLOCK, ())


def reset() -> None:
    """Deliver all signals and keep the exit codes of children, in this process and in what it starts."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def restore() -> None:
    """Set what this process was started with, for the program that replaces it."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps ignored signals
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, _ENDED_CHILD)
    signal.pthread_sigmask(signal.SIG_SETMASK, _BLOCKED)
