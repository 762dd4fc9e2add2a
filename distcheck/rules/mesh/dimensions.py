"""Rules about the sizes of the dimensions of --mesh."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.mesh import in_order, mesh_of
from distcheck.rules.job.world import worlds
from distcheck.rules.mesh.misplaced import mesh_lines
from distcheck.selection.meshes import nearest, placed_by_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.mesh import Mesh


@rule("environment")
def mesh_size_mismatch(job: Job) -> Iterator[Outcome]:
    """The dimensions of ``--mesh`` do not fit WORLD_SIZE.

    ``init_device_mesh`` fails with ``Mesh should not be bigger than default world size``, or leaves ranks out; Megatron
    stops with ``world_size (12) is not divisible by 8``. Found by comparing the product of the sizes with WORLD_SIZE.
    The size of a dimension that is -1 is what the others leave. Where the product fits without the experts, they have
    a mesh of their own over the same ranks, as in Megatron and torchtitan. The groups of nodes and rails need the same
    number of ranks on every node.

    Fix: change a size, mostly that of data parallelism, or the number of ranks.
    See: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh
    """
    mesh = job.asked.mesh
    if mesh is None or mesh_of(job) is not None:
        return
    if len(worlds(job)) != 1 or (placed_by_node(mesh) and not in_order(job)):
        yield NotChecked(reason="--mesh: the ranks of the job are not known")
    elif placed_by_node(mesh):
        yield _not_regular(job, mesh)
    else:
        yield _not_fitting(job, mesh, job.world_size or 0)


def _not_fitting(job: Job, mesh: Mesh, world_size: int) -> Fault:
    """Return the finding about sizes that do not make the world size."""
    return Fault(
        message=f"the dimensions {mesh} do not fit WORLD_SIZE {world_size}",
        evidence={"mesh": str(mesh), "WORLD_SIZE": world_size} | ({"order": mesh.order} if mesh.order else {}),
        fix=Fix(
            f"Use a mesh with {world_size} ranks, or start the job with as many ranks as the mesh has.",
            tuple(line for fit in nearest(mesh, world_size) for line in mesh_lines(job, fit)),
        ),
    )


def _not_regular(job: Job, mesh: Mesh) -> Fault:
    """Return the finding about nodes that have no common number of ranks, or ranks in no regular order."""
    ranks = Counter(job.node_names[job.node_of(rank).key] for rank in job.ranks)
    return Fault(
        message=f"--mesh {mesh} needs the same number of ranks on every node, numbered in a regular order; the nodes "
        f"have {min(ranks.values())} to {max(ranks.values())}",
        evidence={"ranks_by_node": ", ".join(f"{name} {ranks[name]}" for name in list(ranks)[:16])},
        fix=Fix("Start the same number of ranks on every node, or drop --mesh."),
    )
