"""Find the files of ended jobs in /dev/shm: those that no process maps or holds open.

Another process's maps can hang with that process, so a child process reads them, and only if there are candidates.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.host import Leftover
from distcheck.probe.child import Question, ask
from distcheck.probe.kernel_files import contents

if TYPE_CHECKING:
    from collections.abc import Iterator

SHM = "/dev/shm"  # noqa: S108 only read
_NAMES = re.compile(
    r"nccl-\w+|torch_\d+_|psm2?_|psm3_|sem\.|cuda\.shm\.|mpich_shm_|ucx_shm_|vader_segment|sm_segment|gloo"
)
"""How NCCL, torch, Python's multiprocessing, PSM, CUDA, MPI and UCX name their files."""
_FRESH_SECONDS = 600.0
"""A file that a process made and none maps yet may be on its way to another process."""
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h
_NO_JOBS = {"systemd", "(sd-pam)", "sshd", "sshd-session", "sshd-auth", "ssh-agent", "gpg-agent"}
"""Programs that hide their maps even from their own user, and use no file of a job; so does process 1, the init."""
_GONE = " (deleted)"
_MOST = 256
_QUESTION = Question(
    __name__, "the users of /dev/shm", "a process that is stuck in the kernel hides its maps", call="unused"
)


async def leftovers(timeout: float) -> tuple[Leftover, ...] | Missing:
    """Return the files in /dev/shm that no process uses; asks a child process only if there are candidates."""
    if not candidates():
        return ()
    answer = await ask(_QUESTION, list[Leftover], timeout)
    return answer if isinstance(answer, Missing) else tuple(answer)


def candidates(root: Path = Path("/")) -> dict[Path, os.stat_result]:
    """Return the files in /dev/shm with the name of a job's file that were not written lately."""
    found: dict[Path, os.stat_result] = {}
    try:
        entries = list(os.scandir(root / SHM.lstrip("/")))
    except OSError:
        return found
    now = time.time()
    for entry in entries:
        with suppress(OSError):  # it may be removed meanwhile
            if _NAMES.match(entry.name) and entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                if now - stat.st_mtime > _FRESH_SECONDS:
                    found[Path(SHM) / entry.name] = stat
    return found


def unused(root: Path = Path("/")) -> list[Leftover] | Missing:
    """Return the candidates that no process uses, the largest first; a process may hang this.

    A file counts only if every process of its owner that may belong to a job could be looked at. In a container the
    host's processes are hidden, so that nothing can be said there.
    """
    found = candidates(root)
    if not found:
        return []
    proc = root / "proc"
    try:
        if str((proc / "self/ns/pid").readlink()) != _INITIAL_PID_NAMESPACE:
            return Missing(reason="the processes outside of this container, which may use the files, are hidden")
    except OSError as error:
        return Missing(reason=f"{proc}/self/ns/pid: {error.strerror}")
    used: set[Path] = set()
    hidden: set[int] = set()
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            paths = in_use(proc / entry.name)
            if paths is None and entry.name != "1" and contents(proc / entry.name / "comm") not in _NO_JOBS:
                hidden |= set(_owners(proc / entry.name))
            used |= paths or set()
    now = time.time()
    left = [
        Leftover(
            name=path.name,
            bytes=stat.st_blocks * 512,
            uid=stat.st_uid,
            age_seconds=max(0.0, now - stat.st_mtime),
        )
        for path, stat in found.items()
        if path not in used and stat.st_uid not in hidden
    ]
    return sorted(left, key=lambda file: -file.bytes)[:_MOST]


def in_use(process: Path) -> set[Path] | None:
    """Return the files in /dev/shm that a process maps or holds open; None if that is hidden."""
    mapped = mapped_by(process / "maps")
    if mapped is None:
        return None if process.exists() else set()
    try:
        opened = {target for entry in os.scandir(process / "fd") if (target := _target(entry.path)).startswith(SHM)}
    except PermissionError:
        return None
    except OSError:
        return mapped  # it has ended meanwhile
    return mapped | {Path(name) for name in opened if not name.endswith(_GONE)}


def mapped_by(maps: Path) -> set[Path] | None:
    """Return the named files in /dev/shm that a process maps; None if its maps cannot be read."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:
        return None
    names = {line[line.index("/") :] for line in lines if SHM in line}
    return {Path(name) for name in names if not name.endswith(_GONE)}


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 thousands of them, and only the text matters
    except OSError:
        return ""


def _owners(process: Path) -> Iterator[int]:
    """Yield the real and effective user of a process."""
    for line in contents(process / "status").splitlines():
        if line.startswith("Uid:"):
            yield from map(int, line.split()[1:3])
