"""Rules about the memory that the ranks find on their nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.quantities import count, size
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.deaths import more_memory
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.host.shown import beside, by_cgroup, unread
from distcheck.rules.wording import found, named, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts

_GIB, _MIB = 1 << 30, 1 << 20
_RANK_BYTES = 256 * _MIB
"""What a rank on a CPU needs at least: Python, torch and the buffers of a process group."""
_GPU_RANK_BYTES = _GIB
"""What a rank with a GPU needs at least: CUDA's and NCCL's libraries and their pinned buffers as well."""
_NOTHING_BYTES = 48 * _MIB
"""With less for each rank torch cannot be imported."""
_LITTLE, _OWN_LITTLE = 0.1, 0.25
"""A node is short beside the others below these shares, of what the others have free and of its own memory."""
_SEVERAL_KILLS, _MORE_KILLS = 10, 10


@rule("node", also=("collectives", "isolation"), scope=("node", "rank"))
def host_memory_low(job: Job) -> Iterator[Outcome]:
    """A node, or the cgroup of the ranks, has too little free memory for the ranks.

    The kernel kills a rank with SIGKILL, without a message from torch; the other ranks wait for it until their
    watchdog aborts them. An out-of-memory kill on the host is one of the most frequent faults of large jobs.

    Found by MemAvailable, and by the limit and the use of the ranks' cgroup and its parents (memory.max, memory.current
    without the page cache). A warning below 256 MiB for each rank, below 1 GiB for each rank with a GPU, and on a
    node with less than a tenth of what the other nodes have free and less than a quarter of its own memory. An error
    below 48 MiB for each rank: torch cannot be imported.

    Fix: Find the processes that use the memory, and end those of ended jobs; release huge pages that no process uses;
    or request more memory.

        free -h; grep -i huge /proc/meminfo
        ps -eo rss,pid,user,args --sort=-rss | head

    See: https://docs.kernel.org/filesystems/proc.html, https://docs.kernel.org/admin-guide/cgroup-v2.html,
    https://arxiv.org/abs/2509.16293 (10 % of the incidents)
    """
    yield from _by_cgroup(job)
    for (node, host), _, usual, whose in beside(job, lambda its: its.facts.available_bytes):
        ranks = max(1, len(job.ranks_on(node)))
        needed = ranks * _needed(job, node)
        if host.available_bytes < needed:
            nothing = host.available_bytes < ranks * _NOTHING_BYTES
            expected = f"expected {size(needed, 3)} or more for {count(ranks, 'rank')}"
        elif host.available_bytes < _LITTLE * usual and host.available_bytes < _OWN_LITTLE * host.memory_bytes:
            nothing, expected = False, f"{whose} {size(usual, 3)} or more"
        else:
            continue
        yield Fault(
            f"{node.name}: {size(host.available_bytes, 3)} of {size(host.memory_bytes, 3)} memory are available; "
            f"{expected}",
            evidence={"oom_kills": host.oom_kills}
            | ({"unused huge pages": size(host.huge_page_bytes, 3)} if host.huge_page_bytes else {}),
            severity="error" if nothing else "warning",
            owner="admin",
            confirmed=False,
            ranks=numbers_of(job.ranks_on(node)),
            nodes=(node.name,),
        )
    yield from unread(job)


def _needed(job: Job, node: NodeFacts) -> int:
    return _RANK_BYTES if node.accelerator == "none" or job.backend != "nccl" else _GPU_RANK_BYTES


def _by_cgroup(job: Job) -> Iterator[Fault]:
    """Yield the cgroups whose limit leaves their ranks too little."""
    for ranks, memory in by_cgroup(job, lambda limits: limits.memory):
        needed = len(ranks) * _needed(job, job.node_of(ranks[0]))
        if memory.left < needed:
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: the memory limit of their cgroup, {size(memory.limit, 3)}, leaves "
                f"{size(memory.left, 3)}; expected {size(needed, 3)} or more",
                Fix("Request more memory for the job.", more_memory(ranks[0], max(memory.limit, needed))),
                severity="error" if memory.left < len(ranks) * _NOTHING_BYTES else "warning",
                evidence={"limit_bytes": memory.limit, "used_bytes": memory.used, "cgroup": memory.cgroup},
                scope="rank",
            )


@rule("node", also=("collectives", "isolation"), severity="info", scope="node", owner="admin")
def host_oom_kills(job: Job) -> Iterator[Outcome]:
    """On a node many more processes were OOM-killed than on the other nodes.

    A node that often runs out of memory has less of it than the others, or runs something beside the jobs. Found by
    oom_kill in /proc/vmstat, which counts since the boot, and includes kills at the limit of a cgroup: 10 or more, and
    ten times as many as half of the nodes have.

    Fix: Search the kernel log for what was killed, and at which limit.

        sudo dmesg -T | grep -iE 'out of memory|oom-kill' | tail

    See: https://docs.kernel.org/admin-guide/mm/concepts.html
    """
    for (node, host), kills, usual, whose in beside(job, lambda its: its.facts.oom_kills or 0):
        if kills >= _SEVERAL_KILLS and kills > _MORE_KILLS * usual:
            days = host.uptime_seconds / 86400
            yield Fault(
                f"{node.name}: {kills} processes were OOM-killed in {days:.1f} days; {whose} {usual:g} or fewer",
                evidence={"oom_kills": kills, "uptime_days": round(days, 1)},
                nodes=(node.name,),
            )
    yield from unread(job)
