"""The mesh of --mesh as rows of the report: its dimensions, and each rank's place in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.report.schema.mesh import DimensionRow, GroupPlace, MeshRow, Range
from distcheck.rules.job.mesh import mesh_of
from distcheck.rules.mesh.islands import spans

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.mesh import Mesh


def mesh_row(job: Job) -> MeshRow | None:
    """Return the job's mesh; None if it does not fit the world."""
    mesh = mesh_of(job)
    if mesh is None:
        return None
    return MeshRow(
        mesh=str(mesh),
        experts=",".join(f"{name}={size}" for name, size in mesh.experts.items()),
        dimensions=tuple(
            DimensionRow(
                row.name,
                len(row.example),
                row.groups,
                tuple(row.example),
                Range(*row.nodes),
                Range(*row.islands) if row.islands else None,
            )
            for row in spans(job)
        ),
    )


def group_places(mesh: Mesh | None, rank: int | None) -> dict[str, GroupPlace] | None:
    """Return a rank's groups; None if it has no place in the mesh."""
    if mesh is None or rank is None or not 0 <= rank < mesh.ranks:
        return None
    return {name: GroupPlace(mesh.group_number(rank, name), at) for name, at in mesh.coordinates(rank).items()}
