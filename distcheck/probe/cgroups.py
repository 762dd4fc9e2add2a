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
    try:
        paths, mounts = _paths(root, "self"), _mounts(root, controller)
    except OSError as error:
        return Missing(reason=f"{root / 'proc/self/cgroup'}: {error.strerror}")
    for version, key in ((1, controller), (2, "")):
        if version in mounts and key in paths:
            top, own = mounts[version], _below(mounts[version], paths[key])
            # A container may see its own cgroup as the root, but the host's path of it.
            return Cgroup(version, top, own or top)
    return Missing(reason=f"no cgroup limits the {controller} of this process")


def frozen(pid: int, root: Path = Path("/")) -> bool:
    """Return whether a process's cgroup or a parent of it is frozen, or may be and cannot be seen from here.

    Version 1 shows frozen processes in state D, like those that a device holds. Version 2 does so only with the parent
    of a vfork, so a cgroup that cannot be seen says nothing there.

    Source: https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html, cgroup-v2.html (cgroup.events)
    """
    try:
        own, paths, mounts = _paths(root, "self"), _paths(root, str(pid)), _mounts(root, "freezer")
    except OSError:
        return False
    there = [(v, mounts[v], paths[key]) for v, key in ((1, "freezer"), (2, "")) if v in mounts and key in paths]
    groups = [Cgroup(v, top, folder) for v, top, path in there if (folder := _below(top, path)) is not None]
    first = paths.get("freezer", "/")
    hidden = first not in {"/", own.get("freezer")} and not any(group.version == 1 for group in groups)
    return hidden or any(
        contents(folder / "freezer.state") == "FROZEN" or number(folder, "cgroup.events", "frozen") == 1
        for group in groups
        for folder in group.levels()
    )


def _paths(root: Path, pid: str) -> dict[str, str]:
    """Return a process's path in the hierarchy of each controller of version 1, and under '' in that of version 2."""
    lines = (root / "proc" / pid / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {name: path for number, names, path in parts for name in names.split(",") if name or number == "0"}


def _mounts(root: Path, controller: str) -> dict[int, Path]:
    """Return where a controller's hierarchy of version 1 is mounted, and that of version 2."""
    lines = (root / "proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    found: dict[int, Path] = {}
    for _, place, kind, options, *_ in map(str.split, lines):
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            found.setdefault(2 if kind == "cgroup2" else 1, root / place.lstrip("/"))
    return found


def _below(top: Path, path: str) -> Path | None:
    """Return the folder of a cgroup's path, None if it is not below this mount."""
    folder = top / path.strip("/")
    return folder if folder.is_dir() and ".." not in folder.parts else None


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
