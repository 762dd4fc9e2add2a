"""Read small files and folders of /proc and /sys, which may be absent, be hidden, or have no answer."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 1 << 16
"""The largest page, and so the longest file of sysfs."""


def contents(path: Path) -> str:
    """Return a file's text without blanks around it, '' if it cannot be read.

    A large file is read in part. It takes three system calls, because a node with many adapters has thousands of files.
    """
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _MOST_BYTES).decode("utf-8", "replace").strip()
        finally:
            os.close(file)
    return ""


def integer(path: Path) -> int | None:
    """Return the number in a file, None if it cannot be read or holds anything else."""
    found = contents(path)
    return int(found) if found.isdecimal() else None


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, mlx5_2 before mlx5_10; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder), key=_natural)  # noqa: PTH208 names only
    except OSError:
        return []


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def link_name(path: Path) -> str:
    """Return the last part of what a link leads to, '' if it cannot be read."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def mapped(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the paths of the files that are mapped, links resolved; none if that cannot be read."""
    try:
        lines = maps.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) > 5 and fields[5].startswith("/")]
