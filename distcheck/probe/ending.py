"""Ends a process group: a program that was started in its own session, and all its children."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

    from distcheck.probe.fork import Fork

_GONE_SECONDS = 1.0


def kill_group(group: int) -> None:
    """Send SIGKILL to every process of a group; a group that is gone is no error."""
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)


async def end_group(leader: subprocess.Popen[bytes] | Fork) -> None:
    """Kill a program with its group and reap it; leave behind, after a second, what does not end.

    The program must not be reaped before, because its pid would no longer name its group.
    """
    import asyncio

    kill_group(leader.pid)
    until = time.monotonic() + _GONE_SECONDS
    while (leader.poll() is None or group_lives(leader.pid)) and time.monotonic() < until:  # noqa: ASYNC110 there is no event
        await asyncio.sleep(0.01)


def group_lives(group: int) -> bool:
    """Whether a process of this group exists."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
