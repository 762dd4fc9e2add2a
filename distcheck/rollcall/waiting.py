"""How long this thread waited for a CPU: on a busy host that is no fault of the network."""

from __future__ import annotations

from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def waited_for_cpu(schedstat: Path = _SCHEDSTAT) -> float:
    """Return the seconds that this thread was ready to run and did not; 0.0 from a kernel that does not count them.

    The second of the three numbers, in nanoseconds.
    Source: https://docs.kernel.org/scheduler/sched-stats.html
    """
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
