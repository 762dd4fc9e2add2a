"""Find this process's control groups, version 1 and 2, and read their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.probe.kernel_files import contents

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_LEVELS = 32
_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 shows no limit as the largest number of pages."""


class Cgroup(NamedTuple):
    """This process's cgroup in the hierarchy of one controller."""

    version: int
    root: Path
    """Where the hierarchy is mounted."""
    own: Path

    def levels(self) -> Iterator[Path]:
        """Yield the folders of the cgroup and of its parents, the innermost first."""
        folder = self.own
        for _ in range(_MOST_LEVELS):
            yield folder
            if folder == self.root:
                return
            folder = folder.parent


def cgroup_of(controller: str, root: Path = Path("/")) -> Cgroup | Missing:
    """Return this process's cgroup that `controller` (memory, cpu, pids) limits.

    Source: https://man7.org/linux/man-pages/man7/cgroups.7.html (/proc/PID/cgroup)
    """
    proc = root / "proc" / "self"
    try:
        lines = (proc / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
        mounts = [line.split() for line in (proc / "mounts").read_text("utf-8", "surrogateescape").splitlines()]
    except OSError as error:
        return Missing(reason=f"{proc}/cgroup: {error.strerror}")
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    first = next((path for _, controllers, path in parts if controller in controllers.split(",")), None)
    second = next((path for number, _, path in parts if number == "0"), None)
    for version, kind, path in ((1, "cgroup", first), (2, "cgroup2", second)):
        place = next((m[1] for m in mounts if m[2] == kind and (version == 2 or controller in m[3].split(","))), None)
        if place is None or path is None:
            continue
        top = root / place.lstrip("/")
        own = top / path.strip("/")
        # A container may see its own cgroup as the root, but the host's path of it.
        return Cgroup(version, top, own if own.is_dir() and ".." not in own.parts else top)
    return Missing(reason=f"no cgroup limits the {controller} of this process")


def number(folder: Path, file: str, name: str = "") -> int | None:
    """Return the number that follows `name` in a file, or is alone in it; None if there is none."""
    for line in contents(folder / file).split("\n"):
        key, _, value = line.rpartition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return None


def memory_limit(folder: Path, version: int) -> int | None:
    """Return how many bytes of memory a cgroup may use, None without a limit."""
    limit = number(folder, "memory.max" if version == 2 else "memory.limit_in_bytes")
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None
