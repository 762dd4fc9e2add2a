"""How long this thread waited for a CPU, which is the fault of neither network nor CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def waited_for_cpu(schedstat: Path = _SCHEDSTAT) -> float:
    """Return the seconds that this thread waited for a CPU; 0.0 if the kernel does not count.

    The second of the three numbers, in nanoseconds.

    Source: https://docs.kernel.org/scheduler/sched-stats.html
    """
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def throttled(root: Path = Path("/")) -> float:
    """Return the seconds for which the cgroup's CPU limit throttled this process, else 0.0.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.stat), and for version 1
    https://docs.kernel.org/scheduler/sched-bwc.html
    """
    from distcheck.probe import cgroups

    for stat in _cpu_stats(root):
        for name, unit in ("throttled_usec", 1e6), ("throttled_time", 1e9):
            counted = cgroups.number(stat, "cpu.stat", name)
            if counted is not None:
                return counted / unit
    return 0.0


@cache
def _cpu_stats(root: Path) -> tuple[Path, ...]:
    """Return the folders of this process's CPU cgroups, the innermost first."""
    from distcheck.facts.base import Missing
    from distcheck.probe import cgroups

    cgroup = cgroups.cgroup_of("cpu", root)
    return () if isinstance(cgroup, Missing) else tuple(cgroup.levels())
