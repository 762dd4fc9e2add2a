"""Read how often memory ran out in this process's cgroup and its parents, v1 and v2."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from distcheck.facts.base import Missing

_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 shows no limit as the largest number of pages."""
_MOST_LEVELS = 32


class Files(NamedTuple):
    """The counter files of a cgroup version; a number follows a name, or is alone in its file."""

    kills: tuple[str, str]
    shortages: tuple[str, str]
    """How often the limit was reached. v1 also counts successful reclaims, so it matters only with kills."""
    limit: str


_V1 = Files(("memory.oom_control", "oom_kill"), ("memory.failcnt", ""), "memory.limit_in_bytes")
_V2 = Files(("memory.events", "oom_kill"), ("memory.events", "oom"), "memory.max")


class LimitedCgroup(NamedTuple):
    """A cgroup with a limit."""

    folder: Path
    shortages: int


class Marks(NamedTuple):
    """The counters at one moment."""

    kills: int
    groups: tuple[LimitedCgroup, ...]
    """The cgroups with a limit, the innermost first."""


class Shortage(NamedTuple):
    """The kills since the marks."""

    kills: int
    limit_bytes: int | None
    """The limit of the innermost cgroup that ran out of memory."""
    cgroup: str


def marks(proc: Path = Path("/proc/self")) -> Marks | Missing:
    """Read the current counters."""
    place = _place(proc)
    if isinstance(place, Missing):
        return place
    files, root, own = place
    kills = _number(own, *files.kills)
    if kills is None:
        return Missing(reason=f"{own / files.kills[0]} does not count OOM kills")
    groups = []
    folder = own
    for _ in range(_MOST_LEVELS):
        shortages = _number(folder, *files.shortages)
        if shortages is not None and _limit(folder, files) is not None:
            groups.append(LimitedCgroup(folder, shortages))
        if folder == root:
            break
        folder = folder.parent
    return Marks(kills, tuple(groups))


def since(before: Marks | Missing, proc: Path = Path("/proc/self")) -> Shortage | Missing:
    """Return the kills and the reached limit since `before`."""
    now = marks(proc)
    if isinstance(before, Missing):
        return before
    if isinstance(now, Missing):
        return now
    files = _V2 if (now.groups and (now.groups[0].folder / _V2.limit).exists()) else _V1
    old = {group.folder: group.shortages for group in before.groups}
    short = next((g for g in now.groups if g.shortages > old.get(g.folder, g.shortages)), None)
    kills = now.kills - before.kills
    if not kills or short is None:
        return Shortage(kills, None, "")
    return Shortage(kills, _limit(short.folder, files), str(short.folder))


def _place(proc: Path) -> tuple[Files, Path, Path] | Missing:
    """Return this process's counter files, the mount of the hierarchy, and its own cgroup."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
        mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    except OSError as error:
        return Missing(reason=f"{proc}/cgroup: {error.strerror}")
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    first = next((path for _, controllers, path in parts if "memory" in controllers.split(",")), None)
    second = next((path for number, _, path in parts if number == "0"), None)
    for files, kind, path in ((_V1, "cgroup", first), (_V2, "cgroup2", second)):
        root = next((m[1] for m in mounts if m[2] == kind and (kind == "cgroup2" or "memory" in m[3].split(","))), None)
        if root is None or path is None:
            continue
        own = Path(root + path.rstrip("/"))
        # A container may see its own cgroup as the root, but the host's path of it.
        own = own if own.is_dir() and ".." not in own.parts else Path(root)
        return files, Path(root), own
    return Missing(reason="no cgroup counts the memory of this process")


def _limit(folder: Path, files: Files) -> int | None:
    """Return a cgroup's limit, None if it has none."""
    limit = _number(folder, files.limit, "")
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def _number(folder: Path, file: str, name: str) -> int | None:
    try:
        lines = (folder / file).read_text().split("\n")
    except OSError:
        return None
    for line in lines:
        key, _, value = line.rpartition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return None
