"""Collect what a node shows without peers: its own name, file system space, limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

from distcheck.facts.base import MOST, Missing
from distcheck.facts.network import Resolution
from distcheck.facts.node import NodeState
from distcheck.facts.storage import Space
from distcheck.facts.touch import touch
from distcheck.probe.child import Question, ask
from distcheck.probe.network import resolve_within

SHM = "/dev/shm"  # noqa: S108 only read
TMP = "/tmp"  # noqa: S108 as above
FOLDERS = (SHM, TMP)
_NAME_SECONDS = 3.0
_STATE = Question(__name__, "this node", "its resolver or a file system hangs")


async def state(timeout: float) -> NodeState | Missing:
    """Collect in a child process, for at most `timeout` seconds and one more to end it."""
    return await ask(_STATE, NodeState, timeout)


def collect(environ: Mapping[str, str] = os.environ) -> NodeState:
    """Collect in this process. A file system can hang: callers use `state`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return NodeState(
        own_name=_own_name(),
        spaces={folder: space(folder) for folder in FOLDERS},
        open_files=(soft, hard),
        slurm_context=environ.get("SLURM_SCRIPT_CONTEXT", "")[:64],
        slurm_job=environ.get("SLURM_JOB_ID", "")[:64],
    )


def temporary(environ: Mapping[str, str]) -> tuple[str, Space | Missing]:
    """Return the folder for temporary files of a process with these variables, and its space."""
    named = environ.get("TMPDIR") or TMP

    def look() -> tuple[str, Space | Missing]:
        folder = named if os.path.isdir(named) else TMP  # noqa: PTH112 it may be any text
        return folder, space(folder)

    try:
        return touch(named, "TMPDIR", look, kind=tuple[str, Space | Missing])
    except OSError as error:
        return named, Missing(reason=f"{named}: {error.strerror}")


def space(folder: str) -> Space | Missing:
    """Return the free and total space of a folder's file system."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Missing(reason=f"{folder}: {error.strerror}")
    # Cloud file systems report the largest 64-bit size, and CephFS reports -1 free files.
    return Space(
        total_bytes=min(found.f_blocks * found.f_frsize, MOST),
        free_bytes=min(found.f_bavail * found.f_frsize, MOST),
        free_files=min(found.f_favail, MOST) if found.f_files else None,
        writable=os.access(folder, os.W_OK | os.X_OK),
    )


def _own_name() -> Resolution | Missing:
    name = os.uname().nodename
    answer = resolve_within(name, _NAME_SECONDS)
    return Missing(reason=f"{name}: {answer.reason}") if isinstance(answer, Missing) else answer
