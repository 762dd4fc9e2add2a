"""The fork server as a process: start it, get its exit code."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distcheck.facts.placement import Placement
from distcheck.launch.local.forkserver import Spec

_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) and str(Path.cwd()) not in sys.path else ()
"""Keeps modules in the working directory from hiding the standard library's."""
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def start(
    placements: Sequence[Placement], channels: list[int], output: int, *, torch: bool, training: bool, inherit: bool
) -> subprocess.Popen[bytes]:
    """Start the fork server in its own session and return its process.

    `channels` are the descriptors of each rank's end and, last, of the fork server's own; it writes to `output`.

    Raises:
        OSError: too many processes, or no memory.
    """
    spec = Spec(
        placements=tuple(placements),
        channels=tuple(channels[:-1]),
        control=channels[-1],
        torch=torch,
        training=training,
        inherit=inherit,
        parent=os.getpid(),
    )
    return subprocess.Popen(
        [sys.executable, *_SAFE_PATH, "-m", "distcheck.launch.local.forkserver", msgspec.json.encode(spec).decode()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=channels,
        start_new_session=True,
    )


async def exit_code(process: subprocess.Popen[bytes] | None) -> int | None:
    """Return the exit code without reaping the process, so that its pid still names its group."""
    for _ in range(50):
        if process is None:
            break
        ended = os.waitid(os.P_PID, process.pid, _ENDED)  # noqa: ASYNC222 WNOHANG: it does not wait
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        await asyncio.sleep(0.01)
    return None
