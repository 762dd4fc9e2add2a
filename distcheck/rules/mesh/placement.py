"""Rules about tensor and expert groups that cross nodes or NVLink domains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.facts.ranges import fold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.job.mesh import in_order, mesh_of
from distcheck.rules.mesh.islands import islands
from distcheck.rules.mesh.misplaced import Misplaced, misplaced, suspected
from distcheck.rules.wording import listed, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("meeting", severity="warning")
def mesh_rank_order(job: Job) -> Iterator[Outcome]:
    """Tensor or expert groups cross nodes or NVLink domains because of the order of the ranks.

    Frameworks put neighbouring ranks into one tensor group, so neighbours must share a node. With
    ``srun --distribution=cyclic``, ``mpirun --map-by node`` or nodes of two NVLink domains in turn, they do not: every
    layer's exchange then goes over the network between nodes, several times as slow. Found where the same mesh would
    lie within nodes or domains if each had consecutive ranks.

    Fix: ``srun --distribution=block``; for the order of nodes, a SLURM_HOSTFILE with ``--distribution=arbitrary``.
    See: https://slurm.schedmd.com/srun.html#OPT_distribution
    """
    for fault in misplaced(job):
        if fault.cause == "order":
            yield _finding(job, fault, "; with consecutive ranks on each, none would")


@rule("meeting", "mesh-group-crosses-domains", severity="warning")
def mesh_group_crosses_nodes(job: Job) -> Iterator[Outcome]:
    """A tensor or expert group crosses nodes or NVLink domains, and a better mesh or placement exists.

    Tensor parallel ranks exchange data several times in every layer, which needs NVLink or the memory of one node; over
    the network it is several times as slow. Megatron expects that adjacent ranks are on the same node. In systems such
    as the GB200 NVL72 the nodes of a rack share one NVLink domain; the all_to_all of an expert group over two of them
    was seen to stall under load, until ``Watchdog caught collective operation timeout``.

    Found by comparing each group of the dimensions tp and ep (and their longer names) with the nodes or the NVLink
    domains (clusterUuid and cliqueId in NVML) of its ranks. A group that is larger than a node must cross nodes: this
    is an info finding for experts if each node has an equal share, and a warning for tensors where a smaller size fits
    a node. Where nodes may share an NVLink domain that was not read (``env``), this is not checked.

    Fix: the order of dimensions, the sizes, or the segments of nodes (Slurm's topology/block) that the finding shows.
    See: https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py,
    https://github.com/NVIDIA-NeMo/RL/pull/2986
    """
    where = islands(job)
    if job.asked.mesh and mesh_of(job) and not in_order(job):
        yield NotChecked(reason="not every rank of the mesh joined", required=False)
    elif where.unread and suspected(job):
        crossing = listed([fault.name for fault in suspected(job)])
        yield NotChecked(reason=f"{crossing} groups cross nodes; {where.unread}", required=False)
    for fault in misplaced(job):
        if fault.cause != "order" and not fault.uneven:
            large = fault.size > where.room
            yield _finding(job, fault, f"; a {where.kind} has room for {where.room}" if large else "")


@rule("meeting", severity="warning")
def mesh_group_uneven(job: Job) -> Iterator[Outcome]:
    """A tensor or expert group that must cross nodes or NVLink domains has different shares on them.

    Libraries for expert parallelism require equal shares: HybridEP stops if the size of its domain does not divide the
    size of the group. Otherwise the largest share delays the others. Found in groups that are larger than a node or a
    domain, and lie on the least possible number of them.

    Fix: ``#SBATCH --segment=12`` with a number of nodes that divides the group, or a size that does.
    See: https://github.com/NVIDIA-NeMo/Automodel/pull/3914
    """
    for fault in misplaced(job):
        if fault.uneven and fault.cause != "order":
            yield _finding(job, fault, "")


def _finding(job: Job, fault: Misplaced, addition: str) -> Fault:
    where, ranks = islands(job), in_order(job)
    members = sorted({rank for group in fault.groups for rank in group})
    first = fault.groups[0]
    on = [where.names[number] for number in dict.fromkeys(where.of[rank] for rank in first)]
    word = where.kind.split()[-1]
    return Fault(
        severity=fault.severity,
        ranks=tuple(members),
        nodes=nodes_of(job, [ranks[rank] for rank in members]),
        message=f"{len(fault.groups)} of {fault.of} {fault.name} groups ({count(fault.size, 'rank')} each) "
        f"{'lie unevenly on' if fault.uneven else 'cross'} {where.kind}s: ranks {fold(first, 8)} are on {listed(on)}"
        f"{addition}",
        evidence={"mesh": str(mesh_of(job)), f"ranks_by_{word}": fault.shares, f"{word}s": len(where.names)},
        fix=fault.fix,
    )
