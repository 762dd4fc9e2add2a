"""Which process claims which rank, local rank and GPU, for the rules about ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.ranges import numbered
from distcheck.rules.job.leader_files import is_out_of_files
from distcheck.rules.job.numbering import (
    assigned,
    by_formula,
    free_ranks,
    in_order,
    rank_commands,
    right_rank,
    shell_of,
)
from distcheck.rules.job.settings import mapping
from distcheck.rules.job.world import rankless, refused, started_without_srun, too_few_started, worlds
from distcheck.rules.job.wrong_master import explains_missing
from distcheck.rules.wording import are, by_name, grouped, numbers_of, process_name, starter, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_SHOWN = 8
"""Most ranks and processes that a fix names."""


def claims(job: Job, ranks: list[RankFacts]) -> dict[str, str]:
    """Return each process's claim as evidence: rank 1, local rank 1: python train.py."""
    lines = []
    for several in grouped(ranks, lambda r: r.process).values():
        local = {r.placement.local_rank for r in several if r.placement.local_rank is not None}
        who = numbered(numbers_of(several)) if numbers_of(several) else "no rank"
        who += f", local {numbered(local)}" if local else ""
        lines.append((process_name(job, several[0]), f"{who}: {' '.join(job.process_of(several[0]).command)}"))
    return by_name(lines)


def own_ranks(job: Job, claimants: list[RankFacts]) -> tuple[str, tuple[str, ...]]:
    """Return the fix that gives processes with the same rank different ranks, by cause."""
    first = claimants[0]
    table = table_of(first)
    if table and table.launcher != "torchrun":
        theirs = {r.environment.get(table.rank) for r in claimants}
        if len(theirs) == len(claimants):
            return (
                f"RANK was exported once for all processes; {starter(first)} numbers them in {table.rank}.",
                ("unset RANK WORLD_SIZE LOCAL_RANK", mapping(table)),
            )
    nodes = {job.node_of(r).key for r in claimants}
    if first.placement.launcher == "torchrun":
        return "Give each node its own node rank.", _node_ranks(job, claimants)
    if len(nodes) > 1 and all(r.placement.rank == r.placement.local_rank for r in claimants):
        text = "RANK holds the local rank, or every node has the same node rank. RANK must count across all nodes."
        more = len(job.ranks) > (job.world_size or 0)
        size = (assigned(first, "WORLD_SIZE", str(len(job.ranks))),) if more else ()
        return text, (*(rank_commands(job, claimants) or (by_formula(job),)), *size)
    several = grouped(claimants, lambda r: r.placement.rank).values()
    later, free = [r for each in several for r in in_order(job, each)[1:]], job.missing_ranks
    if not free:
        text = "End the processes that were started twice; if all are wanted, number them on and raise WORLD_SIZE."
        return text, tuple(f"# end {shell_of(job, r)}" for r in later[:_SHOWN])
    text = f"Set a different RANK in every process; {numbered(free, _SHOWN)} {are(free)} missing."
    return text, rank_commands(job, claimants) or free_ranks(job, later)


def _node_ranks(job: Job, claimants: list[RankFacts]) -> tuple[str, ...]:
    """Return the command lines of agents with a node rank of their own, for the nodes that need another one."""
    from distcheck.rules.job.agents import ElasticAgent  # not needed in a bare shell

    moved: dict[str, str] = {}
    for r in claimants:
        right, size = right_rank(job, r), r.placement.local_world_size
        if right is not None and size:
            moved.setdefault(job.node_of(r).name, ElasticAgent(job, r).restarted({"node-rank": str(right // size)}))
    if moved:
        return tuple(f"{command}  # on {node}" for node, command in moved.items())
    return (ElasticAgent(job, claimants[0]).restarted({"node-rank": "${NODE_RANK:?}"}),)


def explanation(job: Job) -> str:
    """Return the other fault that explains missing ranks, '' if there is none."""
    launched, missing = job.launched, set(job.missing_ranks)
    unreported = {rank for n in launched.nodes if n.outcome != "reported" for rank in n.ranks} if launched else set()
    reasons = (
        (refused(job), "the launch command of another node will not start"),
        (len(worlds(job)) > 1, "WORLD_SIZE differs between the ranks, so the number of ranks is unknown"),
        (started_without_srun(job), "srun did not start the ranks"),
        (too_few_started(job), "WORLD_SIZE is larger than the number of ranks that were started"),
        (is_out_of_files(job), "rank 0's process could not open more connections"),
        (launched and missing <= unreported, "the nodes assigned these ranks never reported"),
        (rankless(job) >= len(missing), "the processes without a valid rank may be the missing ranks"),
    )
    return next((why for explains, why in reasons if explains), explains_missing(job))


def uses_gpus(job: Job, rank: RankFacts) -> bool:
    """Whether the rank's job will probably use GPUs, judged before it starts."""
    return job.asked.backend == "nccl" or (job.asked.backend == "auto" and job.node_of(rank).accelerator != "none")


def shares_gpus(job: Job, rank: RankFacts, *, complete: bool) -> bool:
    """Whether a rank may share the node's GPUs with another rank of its node."""
    where = rank.placement
    alone = where.world_size == 1 or (complete and len(job.ranks_on(job.node_of(rank))) == 1)
    return uses_gpus(job, rank) and not alone


def local_size(ranks: Sequence[RankFacts], *, complete: bool) -> int | None:
    """Return the maximum number of local ranks, None if ranks of the node may be missing."""
    declared = max((r.placement.local_world_size or 0 for r in ranks), default=0)
    if declared:
        return max(declared, len(ranks))
    return len(ranks) if complete else None


def beyond_node(rank: RankFacts, size: int | None) -> bool:
    """Whether a local rank is beyond its node's `size` and beyond the GPUs that the rank sees."""
    local = rank.placement.local_rank
    if local is None:
        return False
    visible = rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else ()
    return local < 0 or (size is not None and local >= size and local >= len(visible))


def own_gpus(ranks: list[RankFacts]) -> bool:
    """Whether ranks with the same local rank have different GPUs, because each sees others."""
    gpus = [r.gpu for r in ranks]
    known = gpus if all(gpus) else [r.environment.get("CUDA_VISIBLE_DEVICES") for r in ranks]
    return all(known) and len(set(known)) == len(known)
