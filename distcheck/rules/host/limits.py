"""Rules about the limits of processes and their stacks."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.host import HostFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.host.cpus import threads
from distcheck.rules.host.shown import HostSeen, Limited, by_cgroup, each_limited, hosts, limited, unread
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.wording import found, grouped, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

_TASKS = 32
"""Threads of a rank beside OpenMP's: of torch's autograd, watchdog and data loaders, and of NCCL or Gloo."""
_NOTHING_TASKS = 4
"""With fewer for each rank torch cannot start its threads."""
_SAFE_STACK = (2, 28)
"""Since then NCCL gives its threads a stack that suffices (src/init.cc, setCpuStackSize)."""
_OF_USER = Fix("Raise the limit in the job's script, or in limits.conf.", ("ulimit -u unlimited", "ulimit -Hu"))
_OF_KERNEL = Fix(
    "End what has started them, or raise the kernel's limits.",
    ("ps -eLo user= | sort | uniq -c | sort -n | tail", "sudo sysctl kernel.pid_max=4194304"),
)


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
    for ranks, tasks in by_cgroup(job, lambda limits: limits.tasks):
        cgroup = quote(tasks.cgroup)
        commands = ("# add to docker run: --pids-limit=-1", f"cat {cgroup}/pids.current {cgroup}/pids.max")
        fix = Fix("Raise the limit of the container or the service that starts the ranks.", commands)
        yield from _too_few(job, ranks, "pids.max of their cgroup", tasks.limit, tasks.left, fix)
    of_user = [(its, its.limits.user_tasks) for its in limited(job) if its.limits.user_tasks is not None]
    for alike in grouped(of_user, lambda pair: (pair[0].node.key, pair[1][0])).values():
        limit, used = alike[0][1][0], max(used for _, (_, used) in alike)
        users = [its.rank for its, _ in alike]
        yield from _too_few(job, users, "their user's limit (ulimit -u)", limit, limit - used, _OF_USER)
    for host in hosts(job):
        limit, used = host.facts.most_tasks, host.facts.tasks
        here, what = job.ranks_on(host.node), "the kernel (threads-max, pid_max)"
        yield from _too_few(job, here, what, limit, limit - used, _OF_KERNEL, host)
    yield from unread(job)


def _too_few(
    job: Job, ranks: Sequence[RankFacts], what: str, limit: int, left: int, fix: Fix, host: HostSeen | None = None
) -> Iterator[Fault]:
    """Yield what is wrong if a limit, of the job or of a host, leaves the ranks that share it too few threads."""
    needed, left = sum(_TASKS + threads(rank) for rank in ranks), max(0, left)
    if left < needed:
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {what} leaves {left} of {limit} processes and threads; expected {needed} or more",
            fix,
            severity="error" if left < _NOTHING_TASKS * len(ranks) else "warning",
            scope="node" if host else "rank",
            owner="admin" if host else "user",
            confirmed=host is None,
            evidence={"limit": limit, "left": left, "expected": needed}
            | ({"zombies": host.facts.zombies} if host else {}),
        )


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank", of=each_limited)
def host_stack_unlimited(job: Job, its: Limited) -> Fault | None:
    """The stack size is unlimited, which gives the threads of an older NCCL a small stack.

    glibc gives each new thread a stack of the soft limit, but of 2 MiB if there is no limit. The search for rings in
    NCCL before 2.28 needs more in large NVLink domains: the ranks die of SIGSEGV in ncclCommInitRank.

    Found by the soft limit of the ranks' processes (``ulimit -s``) and NCCL's version: a warning if GPUs are in an
    NVLink domain of several nodes, otherwise an info finding.

    Fix: Set the usual limit in the job's script, or install NCCL 2.28 or later.

        ulimit -s 8192

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#stack-size,
    https://github.com/NVIDIA/nccl/issues/2186
    """
    if its.limits.stack_bytes >= 0 or job.backend != "nccl":
        return None
    version = nccl_of(job, its.rank)
    if not version or version_of(version) >= _SAFE_STACK:
        return None
    return Fault(
        f"the stack size is unlimited, so the threads of NCCL {version} have 2 MiB; expected 8 MiB",
        evidence={"RLIMIT_STACK": "unlimited", "NCCL": version},
        severity="warning" if _in_domain(its.node) else "info",
    )


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank", of=each_limited)
def host_address_space(job: Job, its: Limited) -> Fault | None:
    """The ranks may use less virtual memory than CUDA and NCCL reserve.

    CUDA reserves addresses for the memory of all GPUs and of the host, which takes no memory and still counts. CUDA or
    NCCL then fail with ``out of memory`` on an empty GPU, often only when ranks join: ``Cuda failure 'out of memory'``.

    Found by the soft limit of the ranks' processes (``ulimit -v``), which Grid Engine's ``h_vmem``, Slurm's
    ``VSizeFactor`` and PBS's ``vmem`` set: a warning below the memory of the node and its GPUs. With one H200 and
    135 GB of host memory, NCCL failed with 260 GB and worked with 400 GB.

    Fix: Lift the limit in the job's script; request memory by a limit that counts pages in use.

        ulimit -v unlimited

    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (unified virtual address space),
    https://man7.org/linux/man-pages/man2/getrlimit.2.html (RLIMIT_AS)
    """
    limit = its.limits.address_space_bytes
    if limit < 0 or job.backend != "nccl" or limit >= (needed := _reserved(its.node)):
        return None
    return Fault(
        f"virtual memory is limited to {limit / 1e9:.0f} GB; expected no limit, or more than the {needed / 1e9:.0f} GB "
        "of the node and its GPUs",
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
