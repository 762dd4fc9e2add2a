"""How long this thread waited for a CPU, which is the fault of neither network nor CPU."""

from __future__ import annotations

import os
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
    """Return the seconds for which the CPU limit of the cgroup, or of one around it, throttled this process, else 0.0.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.stat), and for version 1
    https://docs.kernel.org/scheduler/sched-bwc.html
    """
    from distcheck.probe import cgroups

    names = (("throttled_usec", 1e6), ("throttled_time", 1e9))
    return max(
        (
            counted / unit
            for stat in _cpu_stats(root)
            for name, unit in names
            if (counted := cgroups.number(stat, "cpu.stat", name)) is not None
        ),
        default=0.0,
    )


@cache
def _cpu_stats(root: Path) -> tuple[Path, ...]:
    """Return the folders of this process's CPU cgroups, the innermost first."""
    from distcheck.facts.base import Missing
    from distcheck.probe import cgroups

    cgroup = cgroups.cgroup_of("cpu", root)
    return () if isinstance(cgroup, Missing) else tuple(cgroup.levels())


class CpuWait:
    """How long the threads of this process wait, from now on, for CPUs that others use.

    The kernel counts as waiting also the time in which a CPU limit holds a thread. Of that, cpu.stat tells a part or
    all; where it cannot be read, CPUs that are idle meanwhile show that nobody else used them.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """Begin."""
        self._root = root
        self._threads, self._held, self._cpus = self._waited(), throttled(root), self._times()

    def seconds(self) -> float:
        """Return the seconds, of all threads together."""
        held = throttled(self._root) - self._held
        waited = sum(max(0.0, now - self._threads.get(thread, 0.0) - held) for thread, now in self._waited().items())
        idle, total = (now - before for now, before in zip(self._times(), self._cpus, strict=True))
        return waited * (1 - idle / total) if total > 0 else waited

    def _waited(self) -> dict[str, float]:
        try:
            return {task.name: waited_for_cpu(task / "schedstat") for task in (self._root / "proc/self/task").iterdir()}
        except OSError:
            return {}

    def _times(self) -> tuple[int, int]:
        """Return how long the CPUs on which this process may run were idle, and the time of all, in the kernel's ticks.

        Source: https://docs.kernel.org/filesystems/proc.html (/proc/stat)
        """
        own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        try:
            lines = (self._root / "proc/stat").read_text().splitlines()
            times = [[*map(int, line.split()[1:9])] for line in lines if line.split(" ", 1)[0] in own]
        except (OSError, ValueError):
            return 0, 0
        return sum(sum(each[3:5]) for each in times), sum(map(sum, times))
