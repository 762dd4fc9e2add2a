"""Rules for large jobs: limits of rank 0's host, and how far apart ranks start."""

from __future__ import annotations

from collections.abc import Iterator

from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.job.addresses import rank_zero
from distcheck.rules.job.kinds import each_rank
from distcheck.rules.job.settings import number
from distcheck.rules.wording import found, named
from distcheck.selection.nccl_settings import value_of

_FILES_BESIDE_RANKS = 256
"""Descriptors that a training process itself has open: libraries, data, logs."""
_RAISE = "echo '* hard nofile 1048576' | sudo tee /etc/security/limits.d/jobs.conf"
_FULL = 0.9
_BACKLOG_WORLD = 1024
_MAGIC = "NCCL_SOCKET_MAGIC"


@rule("peers", scope="rank")
def net_open_files(job: Job) -> Iterator[Outcome]:
    """Rank 0's limit of open files is too low for the world size.

    Its store holds a connection to every rank. At the limit it fails with "Too many open files" or "Call to accept
    failed", and the ranks beyond the limit hang.

    Found by comparing the limit of the process that would become rank 0 with the world size. Programs may raise the
    soft limit up to the hard one; Python does not do so by itself.

    Fix: Raise the limit in the job's script, or where it is a hard one, for the users of this node.

        {raise|ulimit -n 65536}
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
        severity="error" if soft < (job.world_size or 0) else "warning",
        owner="user" if enough else "admin",
        evidence={"soft": soft, "hard": hard, "world_size": job.world_size},
        values={} if enough else {"raise": [_RAISE]},
    )


@rule("peers", severity="warning", scope="node", owner="admin")
def net_conntrack_full(job: Job) -> Iterator[Outcome]:
    """The kernel's connection tracking table is nearly full.

    When it is full, the kernel drops new connections silently. This causes intermittent timeouts, above all on large
    jobs, which open connections between all pairs of ranks.

    Found in nf_conntrack_count and nf_conntrack_max.

    Fix: Enlarge the connection tracking table, or turn off connection tracking inside the cluster's network.

        sudo sysctl -w net.netfilter.nf_conntrack_max={enough|1048576}
    """
    for node in job.nodes:
        tracked = node.network.connections_tracked if node.network else None
        if isinstance(tracked, tuple) and tracked[1] and tracked[0] >= _FULL * tracked[1]:
            yield found(
                job,
                job.ranks_on(node),
                f"{node.name} tracks {tracked[0]} connections; its table holds at most {tracked[1]}",
                confirmed=False,
                evidence={"count": tracked[0], "max": tracked[1]},
                values={"enough": [str(tracked[1] * 4)]},
            )


@rule("peers", severity="info", scope="node", owner="admin")
def net_somaxconn_backlog(job: Job) -> Iterator[Outcome]:
    """The listen backlog of rank 0's host is smaller than the number of ranks.

    All ranks connect to the store at once. Connections beyond the backlog are dropped and retried a second later, or
    reset.

    Found by comparing net.core.somaxconn with the world size of jobs of more than 1,024 ranks.

    Fix: Raise the limit of the listen backlog on that host.

        sudo sysctl -w net.core.somaxconn=65535
    """
    zero, world = rank_zero(job), job.world_size or 0
    network = job.node_of(zero).network if zero else None
    queued = network.listen_backlog if network else None
    if zero and isinstance(queued, int) and world > max(queued, _BACKLOG_WORLD):
        yield found(
            job,
            [zero],
            f"{job.node_of(zero).name} queues {queued} connections (net.core.somaxconn), "
            f"but {world} ranks connect to rank 0 at once",
            evidence={"somaxconn": queued, "world_size": world},
        )


@rule("peers", severity="info", scope="rank", of=each_rank)
def net_nccl_socket_port_scan(job: Job, rank: RankFacts) -> Answer:
    """Other jobs on shared nodes may connect to NCCL's ports.

    NCCL's connections begin with a magic number that is the same for every job. A stray connection of another job, or
    of a scanner, can occasionally break a start, without any sign beforehand.

    Found by a Slurm job that has only a part of its nodes' CPUs, runs NCCL, and does not set NCCL_SOCKET_MAGIC.

    Fix: Set a magic number of this job's own on all ranks.

        export NCCL_SOCKET_MAGIC=$SLURM_JOB_ID
    """
    here, cpus = number(rank, "SLURM_CPUS_ON_NODE"), job.node_of(rank).cpus
    of_nccl = job.asked.backend in {"auto", "nccl"} and job.node_of(rank).accelerator == "nvidia"
    if len(job.nodes) < 2 or not of_nccl or here is None or cpus is None or here >= cpus:
        return None
    return None if value_of(job, rank, _MAGIC) else f"the node is shared with other jobs, and {_MAGIC} is not set"
