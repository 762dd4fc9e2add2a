"""What is mounted at a path, found without touching a file system that may not answer."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LOCAL = frozenset(
    {"aufs", "bcachefs", "btrfs", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "erofs",
     "exfat", "ext2", "ext3", "ext4", "f2fs", "hugetlbfs", "iso9660", "jfs", "mqueue", "ntfs3", "overlay", "proc",
     "pstore", "ramfs", "rootfs", "securityfs", "squashfs", "sysfs", "tmpfs", "tracefs", "udf", "vfat", "xfs", "zfs"}
)  # fmt: skip
"""Types whose data are in this machine; every other one may wait for a server or for a program."""
_MOST_LINKS = 40
"""As the kernel follows (path_resolution(7))."""


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


UNKNOWN = Mount("", (), "", "", ())
"""Of a path for which the kernel shows none."""


def mount_at(path: str, root: Path = Path("/")) -> Mount | None:
    """Return the mount that an absolute path, whose links are resolved, is on; None if it is on none that is shown.

    Raises OSError: the mounts cannot be read.
    """
    return _above(path, _shown(root / "proc/self/mountinfo"))


def remote_mount(path: str, pid: int | None = None) -> Mount | None:
    """Return the first mount on the way to a path that may not answer; None if all of them are local.

    pid: of a process in whose mounts to look, for an absolute path as it knows it.

    A mount on demand (autofs) counts: to touch it mounts a server's folder. Each link is read only if it is itself on a
    local file system.
    """
    inside = "" if pid is None else f"/proc/{pid}/root"
    try:
        mounts = _shown_once() if pid is None else _shown(Path(f"/proc/{pid}/mountinfo"))
        rest = _parts(os.path.join(os.getcwd(), path))  # noqa: PTH109, PTH118 only text
    except OSError:  # no mounts, or a working directory that was removed
        return UNKNOWN
    here, links = "/", 0
    while links <= _MOST_LINKS:
        found = _above(here, mounts) or UNKNOWN
        if found.file_system not in _LOCAL:
            return found
        if target := _target(inside + here):
            rest += _parts(target)
            here = "/" if target.startswith("/") else os.path.dirname(here)  # noqa: PTH120 only text
            links += 1
        elif rest:
            here = os.path.normpath(os.path.join(here, rest.pop()))  # noqa: PTH118 as above
        else:
            break
    return None


def unescaped(name: str) -> str:
    """Return a mount point of /proc/self/mountinfo as it is: the kernel writes blanks and backslashes as octals.

    Source: proc_pid_mountinfo(5), fs/proc_namespace.c (mangle).
    """
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), name)


def _shown(table: Path) -> dict[str, Mount]:
    """Return the mounts by their points; of two at one point the later one is in front.

    Source: proc_pid_mountinfo(5).
    """
    found = {}
    for line in table.read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        head, tail = before.split(), after.split(" ", 2)
        if len(head) >= 6 and len(tail) >= 3:
            point = unescaped(head[4])
            found[point] = Mount(point, tuple(head[5].split(",")), tail[0], tail[1], tuple(tail[2].split(",")))
    return found


@cache
def _shown_once() -> dict[str, Mount]:
    return _shown(Path("/proc/self/mountinfo"))


def _above(path: str, mounts: dict[str, Mount]) -> Mount | None:
    """Return the mount whose point is a path or the nearest folder above it."""
    while path not in mounts and path != "/":
        path = os.path.dirname(path)  # noqa: PTH120 only text
    return mounts.get(path)


def _parts(path: str) -> list[str]:
    """Return the names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _target(path: str) -> str:
    """Return where a link leads, '' if there is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 it may be any text
    except (OSError, ValueError):
        return ""
