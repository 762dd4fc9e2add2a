"""What most often ends a process of a distributed job, by signal, and how to make sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distcheck.finding import Owner

_DEATHS: Mapping[str, tuple[Owner, str, tuple[str, ...]]] = {
    "SIGKILL": (
        "user",
        "Most often the memory limit of the job's cgroup or the kernel's OOM killer: ask for more memory.",
        ("dmesg -T | grep -iE 'out of memory|killed process'", "cat /sys/fs/cgroup/memory.events"),
    ),
    "SIGBUS": (
        "user",
        "Most often a /dev/shm that is full or too small for NCCL's and torch's segments: make it larger.",
        ("df -h /dev/shm", "docker run --shm-size=8g ..."),
    ),
    "SIGSEGV": (
        "unknown",
        "A native library crashed; compare driver, NCCL and its plugins with the other nodes.",
        ("NCCL_NET_PLUGIN=none distcheck bandwidth", "dmesg -T | grep -i segfault"),
    ),
    "SIGABRT": (
        "unknown",
        "torch's watchdog or a failed assertion ended it; its log says which.",
        ("NCCL_DEBUG=INFO distcheck bandwidth -v",),
    ),
    "SIGTERM": ("unknown", "The scheduler or a person ended it; look for a time limit or a preemption.", ()),
    "SIGILL": (
        "admin",
        "torch or a library was built for another processor than this node's.",
        ("lscpu | grep -i 'model name'",),
    ),
}


def cause_of_death(detail: str) -> tuple[Owner, str, tuple[str, ...]]:
    """Return who can mend it, what to do and the commands, for a process that "was ended by SIGBUS"."""
    return next(
        (cause for signal, cause in _DEATHS.items() if signal in detail),
        ("unknown", "Its last words are in the log of the ranks; run it again with -v.", ()),
    )
