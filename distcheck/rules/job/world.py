"""What the ranks of a job add up to: judged once here, so that one root cause gives one finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules.job.settings import MPI_LAUNCHERS, number, started_by_distcheck
from distcheck.rules.wording import grouped, once, table_of
from distcheck.selection.placement import integer

if TYPE_CHECKING:
    from distcheck.facts import Job, RankFacts


def gap(job: Job) -> str:
    """Say why nothing is known of the other ranks; empty when everybody who could come is in the job.

    A process that names neither rank nor world size claims no others, so there is nobody to miss.
    """
    if all(r.placement.rank is None and r.placement.world_size is None for r in job.ranks):
        return ""
    world = job.world_size
    if world is None or world < 1:
        return "no usable WORLD_SIZE says how many ranks there should be"
    if len(job.ranks) >= world and not (len(job.ranks) == 1 and not job.met):
        return ""
    if not any(r.placement.can_meet for r in job.ranks):
        return "no roll call could be held: the variables name no usable rank, address or port to meet at"
    return "" if job.met else "rank 0 was not reached, so nothing is known of the other ranks"


@once
def worlds(job: Job) -> dict[int, list[RankFacts]]:
    """Group the ranks by the world size they believe in; impossible sizes are another rule's."""
    sized = [r for r in job.ranks if (r.placement.world_size or 0) >= 1]
    return grouped(sized, lambda r: r.placement.world_size or 0)


def tasks_of(rank: RankFacts) -> int | None:
    """Return how many ranks the launcher says it started, None when none with a count of its own did."""
    table = table_of(rank)
    if table is None or table.launcher == "torchrun":
        return None
    return integer(rank.environment.get(table.world_size))


@once
def lonely(job: Job) -> list[RankFacts]:
    """Return the ranks told that they are the whole world although others run beside them.

    torchrun is left out: one standalone torchrun per task is how independent trainings are started on
    purpose.
    """
    ones = [
        r
        for r in job.ranks
        if number(r, "WORLD_SIZE") == 1 and r.placement.world_size == 1 and not started_by_distcheck(job, r)
    ]
    ones = [r for r in ones if r.placement.launcher != "torchrun"]
    if len(ones) == len(job.ranks) and len({r.process for r in ones}) > 1:
        return ones
    return [r for r in ones if (tasks_of(r) or 1) > 1]


@once
def out_of_range(job: Job) -> list[RankFacts]:
    """Return the ranks that are no number from 0 to the world size less one.

    Silent where the world size itself is at fault: where it is impossible, where it is 1 by mistake, or where
    a rank fits into the world that the others believe in.
    """
    alone = {id(r) for r in lonely(job)}
    majority = job.world_size or 0
    found = []
    for r in job.ranks:
        rank, world = r.placement.rank, r.placement.world_size
        if rank is None or world is None or world < 1 or id(r) in alone:
            continue
        if rank < 0 or (rank >= world and rank >= majority):
            found.append(r)
    return found


def counts_from_one(job: Job) -> bool:
    """Whether the ranks are numbered from 1 to the world size: its last one is there, and no rank 0."""
    beyond = out_of_range(job)
    return bool(beyond) and all(r.placement.rank == r.placement.world_size for r in beyond) and not any(
        r.placement.rank == 0 for r in job.ranks
    )  # fmt: skip


@once
def duplicates(job: Job) -> dict[int, list[RankFacts]]:
    """Return the rank numbers that several processes claim; worlds of one are the other rule's."""
    alone = {id(r) for r in lonely(job)}
    claims = grouped(
        (r for r in job.ranks if r.placement.rank is not None and id(r) not in alone),
        lambda r: -1 if r.placement.rank is None else r.placement.rank,
    )
    return {rank: claimants for rank, claimants in sorted(claims.items()) if len(claimants) > 1}


@once
def strays(job: Job) -> int:
    """Count the processes that are there and hold no rank of their own: each may be one that is missing."""
    nameless = sum(1 for r in job.ranks if r.placement.rank is None)
    return nameless + len(out_of_range(job)) + sum(len(claimants) - 1 for claimants in duplicates(job).values())


@once
def too_few_started(job: Job) -> int | None:
    """Return how many ranks the launcher started when they are all here and WORLD_SIZE wants more."""
    started = {tasks_of(r) for r in job.ranks if not started_by_distcheck(job, r)}
    if len(started) != 1 or len(worlds(job)) != 1 or gap(job):
        return None
    tasks = started.pop()
    return tasks if tasks is not None and tasks == len(job.ranks) and tasks < (job.world_size or 0) else None


@once
def is_complete(job: Job) -> bool:
    """Whether every rank of one world is here exactly once, so that layouts can be judged."""
    return (
        not gap(job)
        and job.world_size == len(job.ranks)
        and len(worlds(job)) == 1
        and not job.missing_ranks
        and not strays(job)
        and not lonely(job)
    )


@once
def agents(job: Job) -> list[list[RankFacts]]:
    """Group the ranks that one launcher numbered locally: those of a node.

    Under torchrun those of an agent: two agents on one host, as people test several nodes on one machine,
    each count their local ranks from 0.
    """
    return list(
        grouped(
            job.ranks,
            lambda r: (
                job.node_of(r).key,
                r.placement.node_rank if r.placement.launcher == "torchrun" else None,
            ),
        ).values()
    )


def in_blocks(job: Job) -> bool:
    """Whether every node holds consecutive ranks: then somebody numbered them so on purpose."""
    for ranks in agents(job):
        held = sorted(r.placement.rank for r in ranks if r.placement.rank is not None)
        if not held or held[-1] - held[0] != len(ranks) - 1:
            return False
    return True


def started_without_srun(job: Job) -> RankFacts | None:
    """Return the one rank that a Slurm batch or salloc shell started with a step's numbers; srun starts the others.

    Slurm sets SLURM_PROCID=0 and SLURM_NTASKS in a batch script too, so that it looks like the first of its tasks.
    """
    if len(job.ranks) != 1:
        return None
    (only,) = job.ranks
    tasks = number(only, "SLURM_NTASKS") or number(only, "SLURM_NPROCS") or 1
    by_hand = "SLURM_JOB_ID" in only.environment and table_of(only) is None and not started_by_distcheck(job, only)
    return only if by_hand and tasks > 1 and only.placement.world_size == tasks else None


def allotted_nodes(rank: RankFacts) -> int | None:
    """Return how many nodes the scheduler gave to the job, None when it does not say."""
    names = ("SLURM_JOB_NUM_NODES", "PBS_NUM_NODES", "NHOSTS")
    return next((n for name in names if (n := number(rank, name)) is not None), None)


def crowded(job: Job) -> int | None:
    """Return how many nodes an MPI job has when all of its ranks run on one of them, None when they do not."""
    if len(job.nodes) != 1 or len(job.ranks) < 2 or not is_complete(job):
        return None
    first = job.ranks[0]
    nodes = allotted_nodes(first)
    return nodes if first.placement.launcher in MPI_LAUNCHERS and nodes is not None and nodes > 1 else None
