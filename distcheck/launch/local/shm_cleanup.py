"""Removes the shared memory of killed ranks: found while they run, removed when unused.

NCCL and torch name their segments in /dev/shm and remove them when they leave; a killed rank cannot.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from distcheck.probe.leftovers import mapped_by
from distcheck.probe.state import SHM


def shared_by(pids: Iterable[int], proc: Path = Path("/proc")) -> set[Path]:
    """Return the named segments in /dev/shm that these processes map."""
    return {path for pid in pids for path in mapped_by(proc / str(pid) / "maps") or () if path.parent == Path(SHM)}


def remove(segments: Iterable[Path], since: float, proc: Path = Path("/proc")) -> None:
    """Remove our segments made after `since` (time.time()) that no visible process uses."""
    ours = [path for path in segments if _is_ours(path, since)]
    if not ours:
        return
    used = shared_by((int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()), proc)
    for path in ours:
        if path not in used:
            with contextlib.suppress(OSError):
                path.unlink()


def _is_ours(path: Path, since: float) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and found.st_ctime >= since
