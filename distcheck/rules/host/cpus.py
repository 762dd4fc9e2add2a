"""Rules about the CPUs that the ranks of a node share: affinity, cgroup quota, OpenMP threads."""

from __future__ import annotations

import math
from functools import lru_cache
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.quantities import count
from distcheck.facts.ranges import unfold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.host.shown import limited
from distcheck.rules.wording import found, grouped, merged, named, once, starter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distcheck.facts.base import Missing
    from distcheck.facts.host import CpuQuota
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

_FEW_CPUS, _ENOUGH_CPUS = 2, 8
"""A rank with a GPU is short of CPUs if it has one core (two threads), and its node eight CPUs or more for each."""
_FULL_SHARE, _LEAST_PERIODS = 0.25, 200
_TWICE, _MANY = 2, 8
_IDLE_CPUS = 4
_OMP = "OMP_NUM_THREADS"


class Share(NamedTuple):
    """What the ranks of a node have of its CPUs."""

    node: NodeFacts
    ranks: tuple[RankFacts, ...]
    cpus: float
    """How many CPUs they have together: by affinity and by quota."""
    by_mask: dict[str, list[RankFacts]]
    """The ranks by the CPUs on which they may run."""


@once
def shares(job: Job) -> tuple[Share, ...]:
    """Return the nodes whose ranks' CPUs are known."""
    quotas: dict[str, set[float]] = {}
    for _, node, limits in limited(job):
        if limits.cpu is not None:
            quotas.setdefault(node.key, set()).add(limits.cpu.cpus)
    known = []
    for node in job.nodes:
        by_mask = grouped(job.ranks_on(node), lambda r: r.cpu_list)
        if by_mask and "" not in by_mask:
            cpus = min([_together(tuple(by_mask)), *quotas.get(node.key, ())])
            known.append(Share(node, job.ranks_on(node), cpus, by_mask))
    return tuple(known)


def each_share(job: Job, judge: Callable[[Share], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of the nodes whose ranks' CPUs are known, once for all of which it says the same."""
    return merged(job, ((share.ranks, judge(share)) for share in shares(job)))


@lru_cache(256)
def _together(masks: tuple[str, ...]) -> int:
    """Return how many CPUs these are."""
    return len(frozenset().union(*map(unfold, masks)))


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def perf_affinity_overlap(job: Job) -> Iterator[Outcome]:
    """Several ranks of a node are bound to the same few CPUs, or each rank to a single core.

    The threads of torch, NCCL and the data loaders then wait for each other, and every collective waits for the slowest
    rank. Causes are ``taskset`` or a cpuset around the launcher, ``srun`` without ``--cpus-per-task``, and Open MPI,
    which binds each rank to one core by default.

    Found by the CPUs on which each rank may run (sched_getaffinity): more ranks share a set of CPUs than it has CPUs,
    and the node has further ones. Also found where a rank with a GPU may run on one core only, of a node with at
    least 8 CPUs for each rank. Silent where the ranks may use all CPUs of the node.

    Fix: Bind each rank to CPUs of its own, or remove the binding of the command that starts the ranks.

        {how|# add to srun: --cpu-bind=cores --cpus-per-task=8}
        grep Cpus_allowed_list /proc/self/status

    See: https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php, https://slurm.schedmd.com/mc_support.html
    """
    masks = ((share, mask, ranks) for share in shares(job) for mask, ranks in share.by_mask.items())
    yield from merged(job, ((ranks, _too_narrow(share, mask, ranks)) for share, mask, ranks in masks))


def _too_narrow(share: Share, mask: str, ranks: Sequence[RankFacts]) -> Fault | None:
    """Return what is wrong if these ranks of a node may run on these CPUs only."""
    cpus, has = len(unfold(mask)), share.node.cpus or 0
    if cpus < min(len(ranks), has):
        these = f"{'CPU' if mask.isdecimal() else 'CPUs'} {mask}"
        message = f"{count(len(ranks), 'rank')} of a node share {these}; the node has {has}"
        return Fault(message, values={"how": _unbound(ranks)})
    if share.node.accelerator == "none" or has < _ENOUGH_CPUS * len(share.ranks) or not len(ranks) <= cpus <= _FEW_CPUS:
        return None
    message = f"each rank is bound to {count(cpus, 'CPU')} of {has}; NCCL's and the data loaders' threads need more"
    return Fault(message, values={"how": _unbound(ranks)})


def _unbound(ranks: Sequence[RankFacts]) -> tuple[str, ...]:
    return {
        "srun": ("export SLURM_CPU_BIND=none", "# add to srun: --cpu-bind=cores --cpus-per-task=8"),
        "mpirun": ("# add to mpirun: --bind-to none",),
        "mpiexec": ("# add to mpiexec: -bind-to none",),
    }.get(starter(ranks[0]), ("# start the ranks without taskset, numactl or a small cpuset",))


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def perf_cgroup_cpu_quota(job: Job) -> Iterator[Outcome]:
    """The CPU limit of the ranks' cgroup allows fewer CPUs than there are ranks.

    When the quota of a period is used up, the kernel stops all threads of the cgroup until the next one: each rank
    stands still for tens of milliseconds at a time, and every collective waits for it. Containers with a CPU limit
    still see all CPUs of the host, so that torch starts too many threads as well.

    Found by cpu.max (or cpu.cfs_quota_us) of the ranks' cgroup and its parents. A limit that suffices for the ranks is
    an info finding if it has stopped them in a quarter of the periods so far (nr_throttled in cpu.stat). Silent where
    the limit is all the CPUs that the node has, or on which the ranks may run.

    Fix: Raise the CPU limit of the container or the service, or remove it.

        {more|# add to docker run: --cpus=8}

    See: https://docs.kernel.org/scheduler/sched-bwc.html
    """
    limits = [(its, its.limits.cpu) for its in limited(job) if its.limits.cpu is not None]
    for pairs in grouped(limits, lambda pair: (pair[0].node.key, pair[1].cgroup, pair[1].cpus)).values():
        ranks, (its, quota) = [its.rank for its, _ in pairs], pairs[0]
        share = quota.throttled_periods / quota.periods if quota.periods >= _LEAST_PERIODS else 0.0
        has = _allowed(its.node, ranks)
        enough = min(len(ranks), has)
        few = quota.cpus < enough
        if quota.cpus >= has or (not few and share < _FULL_SHARE):
            continue
        stopped = f"; it stopped them in {share:.0%} of {quota.periods} periods" if share >= _FULL_SHARE else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the limit of their cgroup is {_cpus(quota.cpus)}; expected "
            f"{'at least' if few else 'more than'} {enough}{stopped}",
            severity="warning" if few else "info",
            evidence={"cgroup": quota.cgroup},
            values={"more": _more_cpus(ranks, quota, int(min(4 * len(ranks), has)))},
        )


def _allowed(node: NodeFacts, ranks: Sequence[RankFacts]) -> float:
    """Return on how many CPUs ranks of a node may run if no quota limits them; infinity if unknown."""
    masks = {rank.cpu_list for rank in ranks}
    return min(node.cpus or math.inf, math.inf if "" in masks else _together(tuple(sorted(masks))))


def _cpus(cpus: float) -> str:
    """Return a number of CPUs, which need not be whole: 0.5 CPUs."""
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}"


def _more_cpus(ranks: Sequence[RankFacts], quota: CpuQuota, cpus: int) -> tuple[str, ...]:
    if "KUBERNETES_SERVICE_HOST" in ranks[0].environment:
        return (
            f"# in the container: resources: {{limits: {{cpu: {cpus}}}}}",
            "kubectl describe pod $HOSTNAME",
        )
    return (
        f"# add to docker run: --cpus={cpus}",
        f"# put in front of the command: systemd-run --user --scope -p CPUQuota={100 * cpus}%",
        f"cat {quote(quota.cgroup)}/cpu.stat",
    )


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank", of=each_share)
def perf_omp_oversubscribed(_: Job, share: Share) -> Fault | None:
    """The ranks of a node start many more OpenMP threads than they have CPUs.

    Each operation of torch on a CPU splits its work over that many threads and waits for the last one, which has no CPU
    yet. Loading of data and collectives of Gloo become several times slower.

    Found by OMP_NUM_THREADS times the ranks of the node: a warning at twice the CPUs on which they may run, or that
    their cgroup allows. Without OMP_NUM_THREADS torch starts a thread for each CPU that the rank may use, in each rank:
    then an info finding at 8 times the CPUs. Silent with OMP_NUM_THREADS=1, torchrun's default.

    Fix: Give each rank its share of the CPUs: those of the node divided by its ranks.

        export OMP_NUM_THREADS={threads|$(($(nproc) / 8))}

    See: https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cpu-oversubscription
    """
    numbers = [threads(rank) for rank in share.ranks]
    total, most, ranks = sum(numbers), max(numbers), len(share.ranks)
    chosen = any(rank.environment.get(_OMP) for rank in share.ranks)
    if most == 1 or total < (_TWICE if chosen else _MANY) * share.cpus:
        return None
    how = f"{_OMP}={most}" if chosen else f"no {_OMP}, so {most} threads in each"
    return Fault(
        f"{count(ranks, 'rank')} of a node with {how} start {total} threads; they have {_cpus(share.cpus)}",
        severity="warning" if chosen else "info",
        values={"threads": (str(max(1, int(share.cpus // ranks))),)},
    )


def threads(rank: RankFacts) -> int:
    """Return how many threads a rank's OpenMP starts: the first number of OMP_NUM_THREADS, else one for each CPU."""
    return _threads(rank.environment.get(_OMP, ""), rank.cpu_list)


@lru_cache(256)
def _threads(setting: str, mask: str) -> int:
    first = setting.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else len(unfold(mask))


@rule("node", also=("collectives", "isolation"), severity="info", scope="rank", of=each_share)
def perf_omp_1(_: Job, share: Share) -> Fault | None:
    """OMP_NUM_THREADS is 1 although each rank has several CPUs.

    torch's operations on the CPU, such as loading, tokenizing and copying of data, use one thread. torchrun sets 1 by
    default and prints ``Setting OMP_NUM_THREADS environment variable for each process to be 1 in default``.

    Found by the CPUs that the ranks of a node have together: more than 4 for each rank.

    Fix: Give each rank its share of the CPUs: those of the node divided by its ranks.

        export OMP_NUM_THREADS={threads|$(($(nproc) / 8))}

    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    each = int(share.cpus // len(share.ranks))
    if share.cpus <= _IDLE_CPUS * len(share.ranks) or any(r.environment.get(_OMP) != "1" for r in share.ranks):
        return None
    return Fault(
        f"{_OMP} is 1, and each rank has {count(each, 'CPU')}",
        values={"threads": (str(each),)},
    )
