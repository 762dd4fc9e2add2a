"""What a node shows right after one of its ranks has died: the facts by which its end is explained."""

from __future__ import annotations

from distcheck.facts import Death, Missing
from distcheck.probe import memory
from distcheck.probe.state import SHM, space


def seen(before: memory.Marks | Missing, said: str) -> Death:
    """Look at memory and shared memory now; `said` is what the ranks wrote last."""
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
