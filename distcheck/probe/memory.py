"""Read how often memory ran out in this process's cgroup and its parents, v1 and v2."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.probe.cgroups import cgroup_of, number

_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 shows no limit as the largest number of pages."""


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


def marks(root: Path = Path("/")) -> Marks | Missing:
    """Read the current counters."""
    cgroup = cgroup_of("memory", root)
    if isinstance(cgroup, Missing):
        return cgroup
    files = _V2 if cgroup.version == 2 else _V1
    kills = number(cgroup.own, *files.kills)
    if kills is None:
        return Missing(reason=f"{cgroup.own / files.kills[0]} does not count OOM kills")
    groups = []
    for folder in cgroup.levels():
        shortages = number(folder, *files.shortages)
        if shortages is not None and _limit(folder, files) is not None:
            groups.append(LimitedCgroup(folder, shortages))
    return Marks(kills, tuple(groups))


def since(before: Marks | Missing, root: Path = Path("/")) -> Shortage | Missing:
    """Return the kills and the reached limit since `before`."""
    now = marks(root)
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


def _limit(folder: Path, files: Files) -> int | None:
    """Return a cgroup's limit, None if it has none."""
    limit = number(folder, files.limit)
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None
