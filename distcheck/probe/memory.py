"""Read how often memory ran out in this process's cgroup and its parents, v1 and v2."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.probe.cgroups import cgroup_of, memory_limit, number


class Files(NamedTuple):
    """The counter files of a cgroup version; a number follows a name, or is alone in its file."""

    kills: tuple[str, str]
    shortages: tuple[str, str]
    """How often the limit was reached. v1 also counts successful reclaims, so it matters only with kills."""


_FILES = {
    1: Files(("memory.oom_control", "oom_kill"), ("memory.failcnt", "")),
    2: Files(("memory.events", "oom_kill"), ("memory.events", "oom")),
}


class LimitedCgroup(NamedTuple):
    """A cgroup with a limit."""

    folder: Path
    limit_bytes: int
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
    files = _FILES[cgroup.version]
    kills = number(cgroup.own, *files.kills)
    if kills is None:
        return Missing(reason=f"{cgroup.own / files.kills[0]} does not count OOM kills")
    groups = []
    for folder in cgroup.levels():
        limit, shortages = memory_limit(folder, cgroup.version), number(folder, *files.shortages)
        if limit is not None and shortages is not None:
            groups.append(LimitedCgroup(folder, limit, shortages))
    return Marks(kills, tuple(groups))


def since(before: Marks | Missing, root: Path = Path("/")) -> Shortage | Missing:
    """Return the kills and the reached limit since `before`."""
    now = marks(root)
    if isinstance(before, Missing):
        return before
    if isinstance(now, Missing):
        return now
    old = {group.folder: group.shortages for group in before.groups}
    short = next((g for g in now.groups if g.shortages > old.get(g.folder, g.shortages)), None)
    kills = now.kills - before.kills
    if not kills or short is None:
        return Shortage(kills, None, "")
    return Shortage(kills, short.limit_bytes, str(short.folder))
