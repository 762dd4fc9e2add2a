"""The limit of open files of this process, raised while many connections or children are open."""

from __future__ import annotations

import contextlib
import resource

_MOST = 1 << 20
"""What counts as no limit: the kernel's own default for one process (fs.nr_open)."""

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
