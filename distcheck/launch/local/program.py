"""The program that forks the local ranks, as a process: started, its end seen, and killed with all that it forked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distcheck.facts import Placement
from distcheck.launch.local.forkserver import Spec

_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) and str(Path.cwd()) not in sys.path else ()
"""Keeps modules in the user's working folder from hiding the standard library's."""
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def start(
    placements: Sequence[Placement], channels: list[int], words: int, *, torch: bool, inherit: bool
) -> subprocess.Popen[bytes]:
    """Start it, in a session of its own.

    `channels` are the descriptors of each rank's end of its channel and, last, of its own; it writes to `words`.

    Raises:
        OSError: too many processes, or no memory.
    """
    spec = Spec(
        placements=tuple(placements),
        channels=tuple(channels[:-1]),
        control=channels[-1],
        torch=torch,
        inherit=inherit,
        parent=os.getpid(),
    )
    return subprocess.Popen(
        [sys.executable, *_SAFE_PATH, "-m", "distcheck.launch.local.forkserver", msgspec.json.encode(spec).decode()],
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=words,
        pass_fds=channels,
        start_new_session=True,
    )


async def exit_code(process: subprocess.Popen[bytes] | None) -> int | None:
    """Return how the program ended without reaping it: its number still names its group."""
    for _ in range(50):
        if process is None:
            break
        ended = os.waitid(os.P_PID, process.pid, _ENDED)  # noqa: ASYNC222 WNOHANG: it does not wait
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        await asyncio.sleep(0.01)
    return None


async def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it with whatever it has forked and wait, for a moment only, until all of it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(100):
        if process.poll() is not None and not group_lives(process.pid):
            break
        await asyncio.sleep(0.01)


def group_lives(group: int) -> bool:
    """Whether a process of this group is there."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
