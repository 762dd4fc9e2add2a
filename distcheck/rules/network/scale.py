"""Rules for large jobs: limits of rank 0's host, and how far apart ranks start."""

from __future__ import annotations

from collections.abc import Iterator

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import rank_zero
from distcheck.rules.job.kinds import ranks_with
from distcheck.rules.job.settings import number
from distcheck.rules.wording import found, named
from distcheck.selection.nccl_settings import value_of

_FILES_BESIDE_RANKS = 256
"""Descriptors that a training process itself has open: libraries, data, logs."""
_FULL = 0.9
_BACKLOG_WORLD = 1024
_APART_SECONDS = 10.0


@rule("peers", scope="rank")
def net_open_files(job: Job) -> Iterator[Outcome]:
    """Rank 0's limit of open files is too low for the world size.

    Its store holds a connection to every rank. At the limit it fails with "Too many open files" or "Call to accept
    failed", and the ranks beyond the limit hang.

    Found by comparing the limit of the process that would become rank 0 with the world size. Programs may raise the
    soft limit up to the hard one; Python does not do so by itself.

    Fix: ``ulimit -n 65536`` in the job's script.
    """
    zero = rank_zero(job)
    network = job.node_of(zero).network if zero else None
    if zero is None or network is None:
        return
    soft, hard = network.open_files
    needed = (job.world_size or 0) + _FILES_BESIDE_RANKS
    if soft < 0 or soft >= needed:
        return
    enough = hard < 0 or hard >= needed
    yield found(
        job,
        [zero],
        f"{named(job, [zero])} may open {soft} files; its store needs one for each of {job.world_size} ranks, "
        f"expected at least {needed}",
        Fix(
            "Raise the limit in the job's script." if enough else "Raise the hard limit for the users of this node.",
            ("ulimit -n 65536",)
            if enough
            else ("echo '* hard nofile 1048576' | sudo tee /etc/security/limits.d/jobs.conf",),
        ),
        severity="error" if soft < (job.world_size or 0) else "warning",
        owner="user" if enough else "admin",
        evidence={"soft": soft, "hard": hard, "world_size": job.world_size},
    )


@rule("peers", severity="warning", scope="node", owner="admin")
def net_conntrack_full(job: Job) -> Iterator[Outcome]:
    """The kernel's connection tracking table is nearly full.

    When it is full, the kernel drops new connections silently. This causes intermittent timeouts, above all on large
    jobs, which open connections between all pairs of ranks.

    Found in nf_conntrack_count and nf_conntrack_max.

    Fix: enlarge the table, or turn off connection tracking inside the cluster's network.
    """
    for node in job.nodes:
        tracked = node.network.connections_tracked if node.network else None
        if isinstance(tracked, tuple) and tracked[1] and tracked[0] >= _FULL * tracked[1]:
            yield found(
                job,
                job.ranks_on(node),
                f"{node.name} tracks {tracked[0]} connections; its table holds at most {tracked[1]}",
                Fix(
                    "Enlarge the connection tracking table.",
                    (f"sudo sysctl -w net.netfilter.nf_conntrack_max={tracked[1] * 4}",),
                ),
                confirmed=False,
                evidence={"count": tracked[0], "max": tracked[1]},
            )


@rule("peers", severity="info", scope="node", owner="admin")
def net_somaxconn_backlog(job: Job) -> Iterator[Outcome]:
    """The listen backlog of rank 0's host is smaller than the number of ranks.

    All ranks connect to the store at once. Connections beyond the backlog are dropped and retried a second later, or
    reset.

    Found by comparing net.core.somaxconn with the world size of jobs of more than 1,024 ranks.

    Fix: ``sysctl -w net.core.somaxconn=65535`` on that host.
    """
    zero = rank_zero(job)
    network = job.node_of(zero).network if zero else None
    world = job.world_size or 0
    if zero is None or network is None or isinstance(network.listen_backlog, Missing) or world <= _BACKLOG_WORLD:
        return
    if network.listen_backlog < world:
        yield found(
            job,
            [zero],
            f"{job.node_of(zero).name} queues {network.listen_backlog} connections (net.core.somaxconn), "
            f"but {world} ranks connect to rank 0 at once",
            Fix("Raise the limit of the listen backlog.", ("sudo sysctl -w net.core.somaxconn=65535",)),
            evidence={"somaxconn": network.listen_backlog, "world_size": world},
        )


@rule("peers", severity="info", scope="rank")
def net_timeouts_unequal(job: Job) -> Iterator[Outcome]:
    """The ranks start at very different times.

    The first ranks wait for the last, and give up after ten minutes with NCCL, thirty with Gloo. Typical causes are
    container images that some nodes still pull, or a slow file system.

    Found by the time at which every process joined the roll call.

    Fix: ``init_process_group(timeout=timedelta(minutes=30))``, or start the slow nodes first.
    """
    late = {p.uid: p.arrived_seconds for p in job.processes if (p.arrived_seconds or 0.0) > _APART_SECONDS}
    ranks = [r for r in job.ranks if r.process in late]
    if ranks:
        seconds = max(arrived or 0.0 for arrived in late.values())
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} joined up to {seconds:.0f} s after the first rank",
            Fix(
                "Set a process group timeout that covers this delay.",
                ("# in the script: init_process_group(timeout=timedelta(minutes=30))",),
            ),
            evidence={"seconds": round(seconds, 1)},
        )


@rule("peers", severity="info", scope="rank")
def net_nccl_socket_port_scan(job: Job) -> Iterator[Outcome]:
    """Other jobs on shared nodes may connect to NCCL's ports.

    NCCL's connections begin with a magic number that is the same for every job. A stray connection of another job, or
    of a scanner, can occasionally break a start, without any sign beforehand.

    Found by a Slurm job that has only a part of its nodes' CPUs, runs NCCL, and does not set NCCL_SOCKET_MAGIC.

    Fix: set the job's own number on all ranks: ``export NCCL_SOCKET_MAGIC=$SLURM_JOB_ID``.
    """
    if len(job.nodes) < 2 or job.asked.backend not in {"auto", "nccl"}:
        return
    open_ones = ranks_with(
        job,
        lambda r: (
            not value_of(job, r, "NCCL_SOCKET_MAGIC") and job.node_of(r).accelerator == "nvidia" and _shares(job, r)
        ),
    )
    if open_ones:
        yield found(
            job,
            open_ones,
            f"{named(job, open_ones)} share nodes with other jobs, and NCCL_SOCKET_MAGIC is not set",
            Fix("Set a magic number of this job's own.", ("export NCCL_SOCKET_MAGIC=$SLURM_JOB_ID",)),
        )


def _shares(job: Job, rank: RankFacts) -> bool:
    here, cpus = number(rank, "SLURM_CPUS_ON_NODE"), job.node_of(rank).cpus
    return here is not None and cpus is not None and here < cpus
