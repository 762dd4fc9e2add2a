"""The mesh of a job with its sizes for this world, and its ranks in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.mesh import role
from distcheck.rules.job.world import is_complete, worlds
from distcheck.rules.wording import once
from distcheck.selection.meshes import resolved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts.job import Job
    from distcheck.facts.mesh import Mesh
    from distcheck.facts.rank import RankFacts

_CLOSE = ("tensor", "expert")
"""The roles whose groups need the fastest links, the most demanding first."""


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


def groups_with(job: Job, dimension: str, ranks: Iterable[int]) -> list[range]:
    """Return the groups of a dimension that have one of these ranks; none without such a dimension."""
    mesh = mesh_of(job)
    if mesh is None or dimension not in mesh.names:
        return []
    return list(dict.fromkeys(mesh.group_of(rank, dimension) for rank in ranks))


def close_dimensions(mesh: Mesh) -> list[str]:
    """Return the dimensions of tensor and expert parallelism, the most demanding first."""
    found = [name for name in mesh.names if role(name) in _CLOSE and mesh.size(name) > 1]
    return sorted(found, key=lambda name: _CLOSE.index(role(name)))


def within_nodes(job: Job) -> bool:
    """Return whether the job has a mesh whose tensor and expert groups all lie within nodes."""
    mesh, nodes = mesh_of(job), [job.process_of(rank).node for rank in in_order(job)]
    return mesh is not None and all(
        len(set(nodes[group.start : group.stop : group.step])) == 1
        for name in close_dimensions(mesh)
        for group in mesh.groups(name)
    )
