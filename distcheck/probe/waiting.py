"""How long this thread waited for a CPU, which is the fault of neither network nor CPU."""

from __future__ import annotations

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
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in ("sys/fs/cgroup", "sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"):
            # In a container the path is the host's, and the folder itself is the container's cgroup.
            for place in (root / folder / path.lstrip("/"), root / folder):
                found = _throttled(place / "cpu.stat")
                if found is not None:
                    return found
    return 0.0


def _throttled(stat: Path) -> float | None:
    try:
        values = dict(line.split(None, 1) for line in stat.read_text().splitlines())
        if "throttled_usec" in values:
            return int(values["throttled_usec"]) / 1e6
        return int(values["throttled_time"]) / 1e9
    except (OSError, ValueError, KeyError):
        return None
