"""The world that a job's ranks form; judged here once, so one root cause is one finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.placement import NOBODY_TO_MEET
from distcheck.rules.job.kinds import by_node, kinds, ranks_by, ranks_with
from distcheck.rules.job.settings import MPI_LAUNCHERS, number, started_by_distcheck
from distcheck.rules.wording import grouped, once, table_of
from distcheck.selection.counted import Counted, counted
from distcheck.selection.placement import integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


def gap(job: Job) -> str:
    """Return why the other ranks are unknown; empty if every rank is in the job.

    A process without rank and world size implies no other ranks, so none can be missing.
    """
    if all(r.placement.rank is None and r.placement.world_size is None for r in job.ranks):
        return ""
    world = job.world_size
    if world is None or world < 1:
        return "no valid WORLD_SIZE, so the number of ranks is unknown"
    if len(job.ranks) >= world and not (len(job.ranks) == 1 and not job.met):
        return ""
    if not any(r.placement.can_meet for r in job.ranks):
        return NOBODY_TO_MEET
    return "" if job.met else "rank 0 was not reached, so the other ranks are unknown"


@once
def refused(job: Job) -> frozenset[str]:
    """Return the processes whose launch command will not start: what is known of their ranks is incomplete."""
    return frozenset(p.uid for p in job.processes if p.launch is not None and p.launch.refused)


@once
def worlds(job: Job) -> dict[int, list[RankFacts]]:
    """Group the ranks by their world size; another rule reports impossible sizes."""
    sizes = ranks_by(job, lambda r: r.placement.world_size)
    if aside := refused(job):
        sizes = {size: [rank for rank in ranks if rank.process not in aside] for size, ranks in sizes.items()}
    return {size: ranks for size, ranks in sizes.items() if size >= 1 and ranks}


def tasks_of(rank: RankFacts) -> int | None:
    """Return how many ranks the launcher reports, None without a launcher that reports it."""
    table = table_of(rank)
    if table is None or table.launcher == "torchrun":
        return None
    return integer(rank.environment.get(table.world_size))


@once
def lonely(job: Job) -> list[RankFacts]:
    """Return the ranks with WORLD_SIZE 1 although other ranks of the job run.

    torchrun is ignored: one standalone torchrun per task is the usual way to start independent trainings.
    """

    def alone(rank: RankFacts) -> bool:
        where = rank.placement
        ones = number(rank, "WORLD_SIZE") == where.world_size == 1
        return ones and where.launcher != "torchrun" and not started_by_distcheck(job, rank)

    ones = ranks_with(job, alone)
    if len(ones) == len(job.ranks) and len({r.process for r in ones}) > 1:
        return ones
    return [r for r in ones if (tasks_of(r) or 1) > 1]


@once
def out_of_range(job: Job) -> list[RankFacts]:
    """Return the ranks outside the range 0 to WORLD_SIZE - 1.

    Empty where the world size itself is wrong: where it is impossible, where it is 1 by mistake, or where
    a rank is valid in the world of the other ranks.
    """
    majority = job.world_size or 0
    beyond = [r for r in job.ranks if r.placement.rank is not None and not 0 <= r.placement.rank < majority]
    alone = {id(r) for r in lonely(job)} if beyond else set()

    def wrong(rank: RankFacts) -> bool:
        number, world = rank.placement.rank or 0, rank.placement.world_size or 0
        return world > 0 and id(rank) not in alone and not 0 <= number < world

    return [rank for rank in beyond if wrong(rank)]


@once
def duplicates(job: Job) -> dict[int, list[RankFacts]]:
    """Return the ranks that several processes claim; another rule reports worlds of one."""
    if len({r.placement.rank for r in job.ranks}) == len(job.ranks):
        return {}
    alone = {id(r) for r in (*lonely(job), *(r for r in job.ranks if r.process in refused(job)))}
    claims: dict[int, list[RankFacts]] = {}
    for r in job.ranks:
        if r.placement.rank is not None and id(r) not in alone:
            claims.setdefault(r.placement.rank, []).append(r)
    return {rank: claimants for rank, claimants in sorted(claims.items()) if len(claimants) > 1}


@once
def rankless(job: Job) -> int:
    """Return the number of processes without a rank of their own: each may be a missing one."""
    nameless = sum(1 for r in job.ranks if r.placement.rank is None)
    return nameless + len(out_of_range(job)) + sum(len(claimants) - 1 for claimants in duplicates(job).values())


@once
def too_few_started(job: Job) -> Counted | None:
    """Return what counts exactly the processes that joined where WORLD_SIZE is larger, so that this number is wrong.

    None if something counts as many as WORLD_SIZE: ranks are missing then. What is not the launcher's own number holds
    only if ranks 0, 1, 2, ... joined, from as many nodes as it says: each pod that it counts may start several.
    """
    firsts = [kind.first for kind in kinds(job) if not started_by_distcheck(job, kind.first)]
    told = [set(counted(rank.environment, job.process_of(rank).hosts_listed)) for rank in firsts]
    world, came = job.world_size or 0, len(job.ranks)
    if not told or len(worlds(job)) != 1 or gap(job) or came >= world:
        return None
    if any(one.number == world and one.of != "nodes" for one in set().union(*told)):
        return None
    in_order = came > 1 and {r.placement.rank for r in job.ranks} == set(range(came))
    nodes = len({job.node_of(r).key for r in job.ranks})
    alike = [
        one
        for one in set.intersection(*told)
        if one.number == came and (one.of == "tasks" or (in_order and nodes >= one.nodes))
    ]
    return min(alike, key=lambda one: (one.of != "tasks", one.of == "nodes", one.names), default=None)


@once
def is_complete(job: Job) -> bool:
    """Whether every rank of one world joined exactly once, so that layouts can be judged."""
    return (
        not gap(job)
        and job.world_size == len(job.ranks)
        and len(worlds(job)) == 1
        and not job.missing_ranks
        and not rankless(job)
        and not lonely(job)
    )


@once
def agents(job: Job) -> list[Sequence[RankFacts]]:
    """Group the ranks whose local ranks count together: those of a node.

    Under torchrun, or in front of it, those of an agent: two agents on one host, as in tests of several nodes on one
    machine, each count their local ranks from 0.
    """
    here = by_node(job, job.ranks)
    in_front = {process.uid for process in job.processes if process.launch is not None}
    if not in_front and not any(kind.first.placement.launcher == "torchrun" for kind in kinds(job)):
        return here

    def agent(rank: RankFacts) -> int | None:
        own = rank.placement.launcher == "torchrun" or rank.process in in_front
        return rank.placement.node_rank if own else None

    return [ranks for ranks_there in here for ranks in grouped(ranks_there, agent).values()]


def in_blocks(job: Job) -> bool:
    """Whether every node holds consecutive ranks: the numbering is then on purpose."""
    for ranks in agents(job):
        held = sorted(r.placement.rank for r in ranks if r.placement.rank is not None)
        if not held or held[-1] - held[0] != len(ranks) - 1:
            return False
    return True


def started_without_srun(job: Job) -> RankFacts | None:
    """Return the only rank if a Slurm batch or salloc shell started it instead of srun.

    Slurm sets SLURM_PROCID=0 and SLURM_NTASKS in a batch script too, so the shell looks like the first task.
    """
    if len(job.ranks) != 1:
        return None
    (only,) = job.ranks
    tasks = number(only, "SLURM_NTASKS") or number(only, "SLURM_NPROCS") or 1
    by_hand = "SLURM_JOB_ID" in only.environment and table_of(only) is None and not started_by_distcheck(job, only)
    return only if by_hand and tasks > 1 and only.placement.world_size == tasks else None


def allotted_nodes(rank: RankFacts) -> int | None:
    """Return how many nodes the scheduler allocated to the job, None if unknown."""
    names = ("SLURM_JOB_NUM_NODES", "PBS_NUM_NODES", "NHOSTS")
    return next((n for name in names if (n := number(rank, name)) is not None), None)


def crowded(job: Job) -> int | None:
    """Return the number of nodes of an MPI job whose ranks all run on one of them, else None."""
    if len(job.nodes) != 1 or len(job.ranks) < 2 or not is_complete(job):
        return None
    first = job.ranks[0]
    nodes = allotted_nodes(first)
    return nodes if first.placement.launcher in MPI_LAUNCHERS and nodes is not None and nodes > 1 else None
