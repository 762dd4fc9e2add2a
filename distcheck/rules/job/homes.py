"""The nodes of missing ranks, derived from the launcher's variables on other ranks."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.ranges import numbered
from distcheck.rules.job.agents import ElasticAgent, in_step
from distcheck.rules.job.settings import number
from distcheck.rules.wording import grouped, listed, once, table_of
from distcheck.selection.nodelist import deal, expand, tasks_per_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_DISTRIBUTION",
         "SLURM_DIST_PLANESIZE")  # fmt: skip
"""Variables that give the placement of a step's tasks; equal on all tasks."""
_MOST = 4
"""Most nodes for which commands are shown."""


@once
def homes(job: Job) -> dict[int, str]:
    """Return the node name of each missing rank whose node is known.

    The derived placement must fit every rank that joined. One rank on another node shows that the ranks are numbered
    differently, and then nothing is returned.
    """
    missing = job.missing_ranks
    if not missing:
        return {}
    if job.launched is not None:
        assigned = {rank: node.name for node in job.launched.nodes for rank in node.ranks}
        return {rank: assigned[rank] for rank in missing if rank in assigned}
    present = {r.placement.rank for r in job.ranks if r.placement.world_size == job.world_size}
    if len(present) != len(job.ranks) or len(present) + len(missing) != job.world_size:
        return {}  # some rank is duplicate, out of range, or has no number
    for derive in (_by_step, _by_places, _by_groups):
        if found := derive(job):
            return found
    return {}


@once
def missing_by_node(job: Job) -> dict[str, list[int]]:
    """Return the missing ranks whose node is known, by node."""
    where = homes(job)
    return grouped(where, where.__getitem__)


def located(job: Job, missing: Sequence[int]) -> str:
    """Return missing ranks with their known nodes as text: ranks 4-5 (node3) and rank 9."""
    where = homes(job)
    known, rest = [n for n in missing if n in where], [n for n in missing if n not in where]
    parts = [f"{numbered(known)} ({listed(tuple(dict.fromkeys(where[n] for n in known)))})"] if known else []
    return listed(parts + [numbered(rest)] * bool(rest))


def look_at(job: Job, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that show the state of ranks on these nodes."""
    first, some = job.ranks[0].environment if job.ranks else {}, nodes[:_MOST]
    if slurm := next((j for r in job.ranks if (j := r.environment.get("SLURM_JOB_ID"))), ""):
        look = f"scontrol show node {quote(','.join(some))}" if some else f"scontrol show job {quote(slurm)}"
        return look, f"sacct -j {quote(slurm)} --format=JobID,State,ExitCode,NodeList"
    if "KUBERNETES_SERVICE_HOST" in first:
        return ("kubectl get pods -o wide",)
    return tuple(f"ssh {quote(node)} pgrep -af python" for node in some)


def _by_step(job: Job) -> dict[int, str]:
    """Return the nodes by Slurm's variables of the step in which all ranks run."""
    first = job.ranks[0]
    alike = {tuple(r.environment.get(name) for name in _STEP) for r in job.ranks}
    if len(alike) != 1 or not in_step(first):
        return {}
    values = first.environment
    nodes = expand(values.get("SLURM_STEP_NODELIST") or values.get("SLURM_NODELIST", ""))
    tasks = tasks_per_node(values.get("SLURM_STEP_TASKS_PER_NODE") or values.get("SLURM_TASKS_PER_NODE", ""))
    world = job.world_size or 0
    if not nodes or len(nodes) != len(tasks) or not sum(tasks) or world % sum(tasks):
        return {}
    each = world // sum(tasks)
    """Ranks per task: 1, or those of --nproc or of a torchrun."""
    at = [number(r, "SLURM_NODEID") for r in job.ranks]
    if any(n is None or n >= len(nodes) or nodes[n] != job.node_of(r).name for n, r in zip(at, job.ranks, strict=True)):
        return {}
    here = Counter(at)
    open_at = {n: every * each - here[n] for n, every in enumerate(tasks) if every * each != here[n]}
    if len(open_at) == 1:
        return dict.fromkeys(job.missing_ranks, nodes[next(iter(open_at))])
    if not (_in_order(job) and all(number(r, "SLURM_PROCID") == _number(r) // each for r in job.ranks)):
        return {}
    order = deal(tasks, values.get("SLURM_DISTRIBUTION", ""), number(first, "SLURM_DIST_PLANESIZE"))
    if not order or any(order[_number(r) // each] != n for n, r in zip(at, job.ranks, strict=True)):
        return {}
    return {rank: nodes[order[rank // each]] for rank in job.missing_ranks}


def _in_order(job: Job) -> bool:
    """Whether ranks follow tasks: a c10d rendezvous numbers agents in order of arrival."""
    under = (r for r in job.ranks if r.placement.launcher == "torchrun")
    return all(ElasticAgent(job, r).rendezvous == "static" for r in under)


def _by_places(job: Job) -> dict[int, str]:
    """Return the only node on which the launcher started more ranks than joined."""
    if not all(table_of(r) for r in job.ranks):
        return {}
    lacking: dict[str, int] = {}
    for ranks in grouped(job.ranks, lambda r: job.node_of(r).key).values():
        sizes = {r.placement.local_world_size for r in ranks}
        size = sizes.pop()
        if sizes or size is None or size < len(ranks):
            return {}
        if size > len(ranks):
            lacking[job.node_of(ranks[0]).name] = size - len(ranks)
    known = len(lacking) == 1 and sum(lacking.values()) == len(job.missing_ranks)
    return dict.fromkeys(job.missing_ranks, next(iter(lacking))) if known else {}


def _by_groups(job: Job) -> dict[int, str]:
    """Return the nodes by other ranks of the same agent: they are consecutive, on one node."""
    if not all(r.placement.launcher in {"torchrun", "deepspeed"} for r in job.ranks):
        return {}
    found: dict[int, set[str]] = {}
    sizes = {r.placement.local_world_size for r in job.ranks}
    size = sizes.pop()
    for r in job.ranks:
        group, local = r.placement.node_rank, r.placement.local_rank
        if sizes or not size or group is None or local is None or group * size + local != r.placement.rank:
            return {}
        found.setdefault(group, set()).add(job.node_of(r).name)
    groups = {group: next(iter(names)) for group, names in found.items() if len(names) == 1}
    return {rank: groups[rank // size] for rank in job.missing_ranks if size and rank // size in groups}


def _number(rank: RankFacts) -> int:
    return -1 if rank.placement.rank is None else rank.placement.rank
