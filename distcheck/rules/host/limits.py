"""Rules about the limits of processes and their stacks."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.host import HostFacts, Limits
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.host.cpus import threads
from distcheck.rules.host.shown import limited, unread
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.wording import found, grouped, named, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

_TASKS = 32
"""Threads of a rank beside OpenMP's: of torch's autograd, watchdog and data loaders, and of NCCL or Gloo."""
_MOST_THREADS = 4096
_NOTHING_TASKS = 4
"""With fewer for each rank torch cannot start its threads."""
_SAFE_STACK = (2, 28)
"""Since then NCCL gives its threads a stack that suffices (src/init.cc, setCpuStackSize)."""


class _Bound(NamedTuple):
    """A limit of processes and threads that leaves some ranks too few."""

    ranks: Sequence[RankFacts]
    what: str
    limit: int
    left: int
    fix: Fix
    node: NodeFacts | None
    """The node whose kernel has the limit; None if it is the job's own."""


@rule("node", also=("collectives", "isolation"), scope=("rank", "node"))
def host_nproc_pids(job: Job) -> Iterator[Outcome]:
    """The ranks may start too few processes and threads.

    Python fails with ``can't start new thread`` or ``Resource temporarily unavailable``, OpenBLAS with
    ``pthread_create failed``, often only when the data loaders start.

    Found by three limits and what is in use: pids.max of the ranks' cgroup and its parents, the user's RLIMIT_NPROC,
    and the kernel's threads-max and pid_max. Expected are 32 threads for each rank and those of OpenMP
    (OMP_NUM_THREADS, or one for each CPU); an error below 4 for each rank.

    Fix: ``docker run --pids-limit=-1``, ``TasksMax=infinity`` in the service that starts the job, ``ulimit -u``.

    See: https://docs.kernel.org/admin-guide/cgroup-v2.html (pids),
    https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    for bound in (*_by_cgroup(job), *_by_user(job), *_by_kernel(job)):
        needed = sum(_TASKS + threads(rank) for rank in bound.ranks)
        if bound.left >= needed:
            continue
        nothing = bound.left < _NOTHING_TASKS * len(bound.ranks)
        host = bound.node.host if bound.node else None
        yield found(
            job,
            bound.ranks,
            f"{named(job, bound.ranks)}: {bound.what} leaves {bound.left} of {bound.limit} processes and threads; "
            f"expected {needed} or more",
            bound.fix,
            severity="error" if nothing else "warning",
            scope="node" if bound.node else "rank",
            owner="admin" if bound.node else "user",
            confirmed=bound.node is None,
            evidence={"limit": bound.limit, "left": bound.left, "expected": needed}
            | ({"zombies": host.zombies} if isinstance(host, HostFacts) else {}),
        )
    yield from unread(job)


@once
def _most(job: Job) -> dict[str, int]:
    """Return, by node key, more threads than its ranks can need: limits beyond need not be looked at closely."""
    return {node.key: len(job.ranks_on(node)) * (_TASKS + _MOST_THREADS) for node in job.nodes}


@once
def _near(job: Job) -> list[tuple[RankFacts, NodeFacts, Limits]]:
    """Return the ranks with a limit that leaves fewer tasks than the ranks of any node can need."""
    bound = max(_most(job).values(), default=0)
    return [
        (rank, node, limits)
        for rank, node, limits in limited(job)
        if ((own := limits.tasks) is not None and own.limit - own.used < bound)
        or ((user := limits.user_tasks) is not None and user[0] - user[1] < bound)
    ]


def _by_cgroup(job: Job) -> Iterator[_Bound]:
    most = _most(job)
    near = [(r, tasks) for r, node, limits in _near(job) if (tasks := limits.tasks) and tasks.left < most[node.key]]
    for pairs in grouped(near, lambda pair: (job.node_of(pair[0]).key, pair[1].cgroup, pair[1].limit)).values():
        ranks, tasks = [rank for rank, _ in pairs], min((limit for _, limit in pairs), key=lambda limit: limit.left)
        cgroup = quote(tasks.cgroup)
        commands = ("# add to docker run: --pids-limit=-1", f"cat {cgroup}/pids.current {cgroup}/pids.max")
        fix = Fix("Raise the limit of the container or the service that starts the ranks.", commands)
        yield _Bound(ranks, "pids.max of their cgroup", tasks.limit, tasks.left, fix, None)


def _by_user(job: Job) -> Iterator[_Bound]:
    most = _most(job)
    near = [
        (r, tasks)
        for r, node, limits in _near(job)
        if (tasks := limits.user_tasks) and tasks[0] - tasks[1] < most[node.key]
    ]
    for pairs in grouped(near, lambda pair: (job.node_of(pair[0]).key, pair[1][0])).values():
        limit, used = pairs[0][1][0], max(tasks[1] for _, tasks in pairs)
        fix = Fix("Raise the limit in the job's script, or in limits.conf.", ("ulimit -u unlimited", "ulimit -Hu"))
        yield _Bound([r for r, _ in pairs], "their user's limit (ulimit -u)", limit, max(0, limit - used), fix, None)


def _by_kernel(job: Job) -> Iterator[_Bound]:
    most = _most(job)
    for node in job.nodes:
        ranks = job.ranks_on(node)
        if isinstance(node.host, HostFacts) and ranks and node.host.most_tasks - node.host.tasks < most[node.key]:
            fix = Fix(
                "End what has started them, or raise the kernel's limits.",
                ("ps -eLo user= | sort | uniq -c | sort -n | tail", "sudo sysctl kernel.pid_max=4194304"),
            )
            left = max(0, node.host.most_tasks - node.host.tasks)
            yield _Bound(ranks, "the kernel (threads-max, pid_max)", node.host.most_tasks, left, fix, node)


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def host_stack_unlimited(job: Job) -> Iterator[Outcome]:
    """The stack size is unlimited, which gives the threads of an older NCCL a small stack.

    glibc gives each new thread a stack of the soft limit, but of 2 MiB if there is no limit. The search for rings in
    NCCL before 2.28 needs more in large NVLink domains: the ranks die of SIGSEGV in ncclCommInitRank.

    Found by the soft limit of the ranks' processes (``ulimit -s``) and NCCL's version: a warning if GPUs are in an
    NVLink domain of several nodes, otherwise an info finding.

    Fix: ``ulimit -s 8192`` in the job's script, or NCCL 2.28 or later.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#stack-size,
    https://github.com/NVIDIA/nccl/issues/2186
    """
    if job.backend != "nccl":
        return
    unlimited = [rank for rank, _, limits in limited(job) if limits.stack_bytes < 0]
    for version, ranks in grouped(unlimited, lambda r: nccl_of(job, r)).items():
        if not version or version_of(version) >= _SAFE_STACK:
            continue
        wide = any(_in_domain(job.node_of(rank)) for rank in ranks)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the stack size is unlimited, so the threads of NCCL {version} have 2 MiB; "
            "expected 8 MiB",
            Fix("Set the usual limit, or install NCCL 2.28 or later.", ("ulimit -s 8192",)),
            severity="warning" if wide else "info",
            evidence={"RLIMIT_STACK": "unlimited", "NCCL": version},
        )


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def host_address_space(job: Job) -> Iterator[Outcome]:
    """The ranks may use less virtual memory than CUDA and NCCL reserve.

    CUDA reserves addresses for the memory of all GPUs and of the host, which takes no memory and still counts. CUDA or
    NCCL then fail with ``out of memory`` on an empty GPU, often only when ranks join: ``Cuda failure 'out of memory'``.

    Found by the soft limit of the ranks' processes (``ulimit -v``), which Grid Engine's ``h_vmem``, Slurm's
    ``VSizeFactor`` and PBS's ``vmem`` set: a warning below the memory of the node and its GPUs. With one H200 and
    135 GB of host memory, NCCL failed with 260 GB and worked with 400 GB.

    Fix: ``ulimit -v unlimited`` in the job's script; request memory by a limit that counts pages in use.

    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (unified virtual address space),
    https://man7.org/linux/man-pages/man2/getrlimit.2.html (RLIMIT_AS)
    """
    if job.backend != "nccl":
        return
    few = [(r, n, limits.address_space_bytes) for r, n, limits in limited(job) if limits.address_space_bytes >= 0]
    for (limit, needed), group in grouped(few, lambda item: (item[2], _reserved(item[1]))).items():
        ranks = [rank for rank, _, _ in group]
        if limit >= needed:
            continue
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: virtual memory is limited to {limit / 1e9:.0f} GB; expected no limit, or more than "
            f"the {needed / 1e9:.0f} GB of the node and its GPUs",
            Fix("Lift the limit in the job's script, or ask for memory in another way.", ("ulimit -v unlimited",)),
            evidence={"RLIMIT_AS": limit, "memory": needed},
        )


def _reserved(node: NodeFacts) -> int:
    """Return how many bytes of addresses CUDA reserves on a node; 0 if its GPUs are unknown."""
    if not isinstance(node.gpus, Gpus) or not node.gpus.devices:
        return 0
    host = node.host.memory_bytes if isinstance(node.host, HostFacts) else 0
    return host + sum(gpu.memory_bytes for gpu in node.gpus.devices if isinstance(gpu.memory_bytes, int))


def _in_domain(node: NodeFacts) -> bool:
    """Return whether a GPU of the node is in an NVLink domain of several nodes."""
    if not isinstance(node.gpus, Gpus):
        return False
    fabrics = (gpu.health.fabric for gpu in node.gpus.devices if gpu.health is not None)
    return any(not isinstance(fabric, Missing) and bool(fabric.cluster) for fabric in fabrics)
