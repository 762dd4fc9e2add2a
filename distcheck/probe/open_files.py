"""The limit of open files of this process, raised while many connections or children are open."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

_MOST = 1 << 20
"""What counts as no limit: the kernel's own default for one process (fs.nr_open)."""

_FEWEST = 4

Limit = tuple[int, int]
"""Soft and hard."""


def raise_limit(wanted: int) -> tuple[int, Limit | None]:
    """Raise the soft limit to `wanted` if the hard one allows; return the limit in force and the one to restore.

    Nothing is to be restored if the limit was high enough, or could not be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY:
        return most, None
    aim = min(most, wanted)
    if soft >= aim:
        return soft, None
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        return aim, (soft, hard)
    return soft, None


def restore_limit(before: Limit | None) -> None:
    """Set the limit to what it was."""
    if before is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def left() -> int:
    """Return how many files this process may still open.

    Raises:
        OSError: fewer than `_FEWEST` (EMFILE). Nothing could be done with them: asyncio's loop alone takes three.
    """
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (_MOST if soft == resource.RLIM_INFINITY else soft) - sum(1 for _ in Path("/proc/self/fd").iterdir())
    if free < _FEWEST:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return free
