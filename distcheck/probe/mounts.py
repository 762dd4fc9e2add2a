"""What is mounted at a path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A mounted file system, as a line of /proc/self/mountinfo shows it."""

    point: str
    options: tuple[str, ...]
    """Of this mount: rw, nosuid."""
    file_system: str
    source: str
    """May be empty."""
    super_options: tuple[str, ...]
    """Of the file system, wherever it is mounted."""


def mount_at(path: str, root: Path = Path("/")) -> Mount | None:
    """Return the mount that an absolute path, whose links are resolved, is on; None if it is on none that is shown.

    Raises OSError: the mounts cannot be read.

    Source: proc_pid_mountinfo(5). Of two mounts at one point the later one is in front.
    """
    best = None
    for line in (root / "proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        head, tail = before.split(), after.split(" ", 2)
        if len(head) < 6 or len(tail) < 3:
            continue
        point = unescaped(head[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, tuple(head[5].split(",")), tail[0], tail[1], tuple(tail[2].split(",")))
    return best


def unescaped(name: str) -> str:
    """Return a mount point of /proc/self/mountinfo as it is: the kernel writes blanks and backslashes as octals.

    Source: proc_pid_mountinfo(5), fs/proc_namespace.c (mangle).
    """
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), name)
