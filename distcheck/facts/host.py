"""The host under a job: its memory, its load, and what it lets a process use."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Missing, Seconds, Whole


class CgroupLimit(Facts, frozen=True):
    """The limit of a cgroup that leaves a process the least."""

    limit: Count
    """Bytes of memory, or a number of tasks."""
    used: Count
    """What its members use; of memory without the page cache, which the kernel frees when needed."""
    cgroup: str
    """Its folder, as the process sees it."""

    @property
    def left(self) -> int:
        """What its members may still take."""
        return max(0, self.limit - self.used)


class CpuQuota(Facts, frozen=True):
    """The CPU limit of the cgroup that allows a process the fewest CPUs."""

    cpus: Amount
    """How many CPUs its members may use at a time: quota by period."""
    periods: Count
    """Periods in which its members ran, since it exists."""
    throttled_periods: Count
    """Those in which the quota was used up and its members had to wait."""
    cgroup: str


class Limits(Facts, frozen=True):
    """What a process, and what it starts, may use."""

    memory: CgroupLimit | None = None
    """None without a limit."""
    cpu: CpuQuota | None = None
    tasks: CgroupLimit | None = None
    """Processes and threads in its cgroup (pids.max); None without a limit."""
    user_tasks: tuple[Count, Count] | None = None
    """The limit of its user's processes and threads (RLIMIT_NPROC), and how many there are; None without a limit."""
    stack_bytes: Whole = 0
    """Its soft limit of stack size; -1 is unlimited."""
    address_space_bytes: Whole = -1
    """Its soft limit of virtual memory; -1 is unlimited."""
    namespaces: dict[str, str] = {}
    """Its IPC and PID namespaces (ipc, pid), as the kernel names them."""


class StuckProcess(Facts, frozen=True):
    """A process that the kernel does not let go on, or does not let end."""

    pid: Count
    name: str
    state: Literal["blocked", "ending"]
    """blocked: it waits in the kernel and no signal ends it (state D); ending: it was killed, and threads of it are
    still in the kernel (a zombie with threads)."""
    waits_in: str = ""
    """The kernel function in which it waits; empty if that is hidden."""


class Leftover(Facts, frozen=True):
    """A file in /dev/shm that no process uses any more."""

    name: str
    bytes: Count
    """What it occupies."""
    uid: Count
    """Its owner."""
    age_seconds: Seconds
    """Since it was last written."""


class HostFacts(Facts, frozen=True):
    """The state of a node's operating system before the job."""

    memory_bytes: Count
    available_bytes: Count
    """What programs can take without swapping (MemAvailable)."""
    load: Amount
    """Processes that ran or waited for a CPU or a disk, on average over the last minute."""
    uptime_seconds: Seconds
    tasks: Count
    """Processes and threads."""
    most_tasks: Count
    """The kernel's limit of them: the smaller of kernel.threads-max and kernel.pid_max."""
    zombies: Count
    """Processes that have ended and whose parent does not ask how."""
    stuck: tuple[StuckProcess, ...] = ()
    oom_kills: Count | None = None
    """Processes killed for want of memory since the boot, of the node or of a cgroup; None if not counted."""
    huge_page_bytes: Count = 0
    """Memory reserved for huge pages that nobody uses."""
    settings: dict[str, str] = {}
    """Settings of the kernel that affect speed, by name."""
    throttled_seconds: Seconds | None = None
    """How long the hottest CPU was slowed down since the boot; None if not counted."""
    leftovers: tuple[Leftover, ...] | Missing = ()
    """Files of ended jobs in /dev/shm."""
    removes_ipc: bool = False
    """Whether logind removes the user's files in /dev/shm when the user logs out (RemoveIPC)."""
    running: Count | None = None
    """Threads that ran or waited for a CPU at that moment; None if unknown."""
