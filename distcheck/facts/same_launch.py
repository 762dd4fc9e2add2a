"""Tells whether saved jobs are of one launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts


def started_as_one(jobs: Iterable[Job]) -> bool:
    """Return whether the launcher's name of the job is the same in all files, and no rank is of two processes.

    Then they are of one launch, even if its ranks have different world sizes: rules report that.
    """
    names: set[tuple[str, ...]] = set()
    processes: dict[int | None, str] = {}
    for job in jobs:
        for rank in job.ranks:
            names.add(_name_of_launch(rank))
            number = rank.placement.rank
            if number is None or processes.setdefault(number, rank.process) != rank.process:
                return False
    return len(names) == 1 and names != {()}


def _name_of_launch(rank: RankFacts) -> tuple[str, ...]:
    """Return what the launcher of a rank names the launch and no other one; empty if it has no such name."""
    variables, place = rank.environment, rank.placement
    if (step := variables.get("SLURM_STEP_ID")) and (job := variables.get("SLURM_JOB_ID")):
        return "slurm", job, step, variables.get("SLURM_RESTART_COUNT", "")
    if (run := variables.get("TORCHELASTIC_RUN_ID", "none")) != "none" and place.master_addr and place.master_port:
        return "torchrun", run, f"{place.master_addr}:{place.master_port}"
    space = variables.get("PMIX_NAMESPACE")
    return ("mpi", space) if space else ()


def runs(jobs: Iterable[Job]) -> tuple[str, ...]:
    """Return the names of the runs."""
    return tuple(dict.fromkeys(job.run for job in jobs))


def are_apart(met: Sequence[Job]) -> bool:
    """Return whether roll calls are of different launches, and not of parts of one that could not reach each other.

    A part lacks ranks, and no rank of a node is in two of them.
    """
    if len(runs(met)) < 2:
        return False
    places: dict[tuple[int | None, str], str] = {}
    for job in met:
        for rank in job.ranks:
            if places.setdefault((rank.placement.rank, job.node_of(rank).key), job.run) != job.run:
                return True
    return any(0 < (job.world_size or 0) <= len({r.placement.rank for r in job.ranks}) for job in met)
