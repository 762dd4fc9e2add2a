"""Ranks whose LOCAL_RANK is not the number of any GPU that they see."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from distcheck.facts.gpu import Gpus
from distcheck.facts.quantities import count
from distcheck.facts.ranges import fold
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.cuda_view import deprived
from distcheck.rules.gpu.mig_use import undivided
from distcheck.rules.gpu.nodes import ranks_without_fault, selection, without_loss
from distcheck.rules.gpu.sharing import sharing_allowed
from distcheck.rules.gpu.shortfall import shortfalls
from distcheck.rules.job.agents import ElasticAgent
from distcheck.rules.job.remedies import export
from distcheck.rules.wording import brief, found, grouped, named, table_of
from distcheck.selection.visible_devices import visible

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts


def beyond_visible(job: Job) -> list[list[RankFacts]]:
    """Return the ranks whose LOCAL_RANK is beyond the GPUs they see, grouped by what they see.

    Other rules report a node that has lost a GPU or has fewer than its peers, a CUDA_VISIBLE_DEVICES that CUDA reads
    differently than intended, and a GPU that CUDA or MIG mode hides.
    """
    reported = {id(rank) for short in shortfalls(job) for rank in short.without} | deprived(job)
    reported |= {id(rank) for node in undivided(job) for rank in node.without}
    without = [
        rank
        for node, _ in without_loss(job)
        for rank in ranks_without_fault(job, node)
        if rank.gpu is None and rank.placement.local_rank is not None and _shown(rank)
        if id(rank) not in reported
    ]
    own = {node.key: _own_lists(job, node) for node in job.nodes} if without else {}

    def seen_by(rank: RankFacts) -> tuple[bool, int, str | None]:
        lists = own[job.node_of(rank).key]
        value = "" if lists else selection(job, rank)[1]
        return lists or sharing_allowed(job, rank), len(_shown(rank)), value

    return list(grouped(without, seen_by).values())


def _shown(rank: RankFacts) -> tuple[str, ...]:
    return rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else ()


def _own_lists(job: Job, node: NodeFacts) -> bool:
    """Return whether no two ranks of a node share a visible GPU."""
    ranks = job.ranks_on(node)
    users = Counter(uuid for rank in ranks for uuid in _shown(rank))
    return len(ranks) > 1 and max(users.values(), default=0) == 1


def without_gpu(job: Job, ranks: list[RankFacts]) -> Fault:
    """Return the finding about ranks that see the same number of GPUs, too few for LOCAL_RANK."""
    first = ranks[0]
    node = job.node_of(first)
    seen, (variable, value) = len(_shown(first)), selection(job, first)
    total = len(visible(None, node.gpus.devices).uuids) if isinstance(node.gpus, Gpus) else seen
    here, own, allowed = len(job.ranks_on(node)), _own_lists(job, node), sharing_allowed(job, first)
    local = fold(r.placement.local_rank for r in ranks if r.placement.local_rank is not None)
    has, sees = ("has", "sees") if len(ranks) == 1 else ("have", "see")
    message = f"{named(job, ranks)} {has} LOCAL_RANK {local} and {sees} {count(seen, 'GPU')}"
    if own:
        message += ", all its own" if len(ranks) == 1 else " each, all their own"
    elif value is not None:
        message += f", with {variable}={brief(repr(value), 60)}"
    message += ": cuda:LOCAL_RANK fails with CUDA error: invalid device ordinal"
    if own:
        fix = Fix("No action if the script numbers the visible GPUs from cuda:0.")
    elif allowed:
        fix = Fix("No action if the script takes cuda:(LOCAL_RANK modulo the number of GPUs).")
    elif here > seen:
        words = "Start no more ranks on a node than visible GPUs, or make more visible."
        fix = Fix(words, _commands(job, first, total))
    else:
        words = "Set LOCAL_RANK to the number of the process on its own node, from 0."
        fix = Fix(words, (export(job, first, "LOCAL_RANK"),))
    return found(
        job,
        ranks,
        message,
        fix,
        severity="info" if own or allowed else "error",
        evidence={
            "LOCAL_RANK": local,
            variable: "not set" if value is None else value,
            "gpus_seen": seen,
            "gpus_on_node": total,
            "ranks_on_node": here,
        },
    )


def _commands(job: Job, rank: RankFacts, total: int) -> tuple[str, ...]:
    """Return the commands that start fewer ranks on a node, or show them more of its GPUs."""
    count, here = len(_shown(rank)), len(job.ranks_on(job.node_of(rank)))
    table = table_of(rank)
    starts = {
        "slurm": f"#SBATCH --ntasks-per-node={count}",
        "openmpi": f"# add to mpirun: --map-by ppr:{count}:node",
    }
    fewer = starts.get(
        table.launcher if table else "", ElasticAgent(job, rank).restarted({"nproc-per-node": str(count)})
    )
    if total > count:
        return fewer, f"export {selection(job, rank)[0]}={','.join(str(i) for i in range(min(total, here)))}"
    return (fewer, f"#SBATCH --gpus-per-node={here}") if "SLURM_JOB_ID" in rank.environment else (fewer,)
