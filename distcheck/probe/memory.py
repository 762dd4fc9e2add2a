"""Read how often memory ran out in this process's cgroup and its parents, v1 and v2, which explains a rank's death."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.rank import Death
from distcheck.probe.cgroups import cgroup_of, memory_limit, number
from distcheck.probe.state import SHM, space

_KILLS = {1: ("memory.oom_control", "oom_kill"), 2: ("memory.events", "oom_kill")}
"""The counter's file by cgroup version, and the name before its number."""
_SHORTAGES = {1: ("memory.failcnt",), 2: ("memory.events", "oom")}
"""How often the limit was reached. v1 also counts successful reclaims, so it matters only with kills."""


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


def marks(root: Path = Path("/")) -> Marks | Missing:
    """Read the current counters."""
    cgroup = cgroup_of("memory", root)
    if isinstance(cgroup, Missing):
        return cgroup
    kills = number(cgroup.own, *_KILLS[cgroup.version])
    if kills is None:
        return Missing(reason=f"{cgroup.own / _KILLS[cgroup.version][0]} does not count OOM kills")
    groups = []
    for folder in cgroup.levels():
        limit, shortages = memory_limit(folder, cgroup.version), number(folder, *_SHORTAGES[cgroup.version])
        if limit is not None and shortages is not None:
            groups.append(LimitedCgroup(folder, limit, shortages))
    return Marks(kills, tuple(groups))


def death(before: Marks | Missing, said: str, root: Path = Path("/")) -> Death:
    """Return the state of memory and shared memory right after a rank died; `said` is the ranks' last output."""
    now = marks(root)
    if isinstance(before, Missing) or isinstance(now, Missing):
        unread = next(each for each in (before, now) if isinstance(each, Missing))
        return Death(oom_kills=unread, shm=space(SHM), said=said)
    old = {group.folder: group.shortages for group in before.groups}
    kills = now.kills - before.kills
    short = next((g for g in now.groups if kills and g.shortages > old.get(g.folder, g.shortages)), None)
    return Death(
        oom_kills=kills,
        memory_limit_bytes=short.limit_bytes if short else None,
        memory_cgroup=str(short.folder) if short else "",
        shm=space(SHM),
        said=said,
    )
