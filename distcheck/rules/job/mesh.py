"""The mesh of a job with its sizes for this world, and its ranks in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules.job.world import is_complete, worlds
from distcheck.rules.wording import once
from distcheck.selection.meshes import resolved

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.mesh import Mesh
    from distcheck.facts.rank import RankFacts


@once
def mesh_of(job: Job) -> Mesh | None:
    """Return the mesh of --mesh with all sizes; None without one, and if it does not fit the world."""
    if job.asked.mesh is None or len(worlds(job)) != 1:
        return None
    nodes = [job.node_of(rank).key for rank in in_order(job)]
    return resolved(job.asked.mesh, job.world_size or 0, nodes)


@once
def in_order(job: Job) -> list[RankFacts]:
    """Return the ranks by number; empty if not every rank of one world joined exactly once."""
    return sorted(job.ranks, key=lambda rank: rank.placement.rank or 0) if is_complete(job) else []
