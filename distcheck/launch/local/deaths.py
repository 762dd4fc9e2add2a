"""The facts of a node right after one of its ranks has died, which explain its death."""

from __future__ import annotations

from distcheck.facts.base import Missing
from distcheck.facts.rank import Death
from distcheck.probe import memory
from distcheck.probe.state import SHM, space


def seen(before: memory.Marks | Missing, said: str) -> Death:
    """Return the state of memory and shared memory now; `said` is the ranks' last output."""
    short = memory.since(before)
    if isinstance(short, Missing):
        return Death(oom_kills=short, shm=space(SHM), said=said)
    return Death(
        oom_kills=short.kills,
        memory_limit_bytes=short.limit_bytes,
        memory_cgroup=short.cgroup,
        shm=space(SHM),
        said=said,
    )
