"""Commands that place the groups of a mesh better, by launcher, with the job's own nodes and numbers."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from distcheck.facts.mesh import Mesh
from distcheck.rules.finding import Fix
from distcheck.selection.nodelist import folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.rules.mesh.islands import Islands

_PACKED = {
    "openmpi": "# add to mpirun: --map-by slot",
    "hydra": "# add to mpiexec: -ppn {each}",
    "pals": "# add to mpiexec: --ppn {each}",
    "mvapich": "# in the hostfile of mpirun_rsh: each node {each} times, one node after the other",
    "jsrun": "# add to jsrun: --launch_distribution packed",
    "slurm": "export SLURM_DISTRIBUTION=block  # or: srun --distribution=block",
    "": "export RANK=$((${NODE_RANK:?} * {each} + ${LOCAL_RANK:?}))",
}
"""How each launcher gives a node consecutive ranks; how it is done by hand."""
_MOST_NODES = 64
"""Nodes that a comment lists."""


def mesh_lines(job: Job, mesh: Mesh) -> tuple[str, ...]:
    """Return how to give a mesh to the script and to distcheck."""
    option = _option(mesh)
    if mesh.order or mesh.ranks != job.world_size:
        return (f"# {option}",)
    sizes = ", ".join(map(str, mesh.sizes.values())) + ("," if len(mesh.sizes) == 1 else "")
    names = ", ".join(f'"{name}"' for name in mesh.sizes) + ("," if len(mesh.sizes) == 1 else "")
    device = "cuda" if job.made_for == "nccl" else "cpu"
    return (f'# in the script: init_device_mesh("{device}", ({sizes}), mesh_dim_names=({names}))  # {option}',)


def _option(mesh: Mesh) -> str:
    order = f" --mesh-order {shlex.quote(mesh.order)}" if mesh.order else ""
    return f"--mesh {shlex.quote(str(mesh))}{order}"


def consecutive(job: Job, where: Islands, order: Sequence[int]) -> Fix:
    """Return the fix that gives each node, and each NVLink domain, consecutive ranks.

    Args:
        job: the job.
        where: where its ranks are.
        order: the ranks in the order in which they should be numbered.
    """
    launcher = _launcher(job)
    each = max(Counter(where.node).values())
    nodes = [where.node_names[number] for number in dict.fromkeys(where.node[rank] for rank in order)]
    now = list(dict.fromkeys(where.node))
    by_blocks = [where.node_names[number] for number in now]
    packed = [node for rank, node in enumerate(where.node) if not rank or where.node[rank - 1] != node]
    if nodes == by_blocks and len(packed) > len(now):
        text = f"Give each node consecutive ranks: {each} ranks a node, one node after the other."
        return Fix(text, (_PACKED.get(launcher, _PACKED[""]).replace("{each}", str(each)),))
    text = f"Number the nodes so that those of one {where.kind} follow each other."
    if launcher == "slurm":
        text += " Start the job with the same options of srun, without --nodes and --ntasks-per-node."
    return Fix(text, _ordering(job, launcher, nodes, each))


def _launcher(job: Job) -> str:
    if job.launched is not None and job.launched.engine == "ssh":
        return "ssh"
    return job.ranks[0].placement.launcher


def _ordering(job: Job, launcher: str, nodes: list[str], each: int) -> tuple[str, ...]:
    hosts = shlex.quote(folded(nodes))
    if launcher == "slurm" and job.asked.mesh:
        command = f"distcheck {job.asked.command} {_option(job.asked.mesh)}"
        each_node = f"for i in $(seq {each}); do echo $node; done"
        return (
            f"for node in $(scontrol show hostnames {hosts}); do {each_node}; done > ranks.txt",
            "export SLURM_HOSTFILE=$PWD/ranks.txt",
            f"srun --ntasks={len(nodes) * each} --distribution=arbitrary {command}",
        )
    if launcher == "openmpi" and len(nodes) <= _MOST_NODES:
        return (f"# add to mpirun: --host {shlex.quote(','.join(f'{node}:{each}' for node in nodes))}",)
    if launcher == "ssh":
        return (f"# distcheck: --hosts {hosts}",)
    return (f"# node ranks in this order: {hosts}",)


def segment_size(mesh: Mesh, name: str, where: Islands) -> int:
    """Return how many consecutive nodes of one NVLink domain the groups of a dimension need; 0 if none help.

    That is where nodes have no such domains, or where groups and nodes do not fill each other.
    """
    each = set(Counter(where.node).values())
    if where.kind == "node" or len(each) != 1 or where.of != sorted(where.of):
        return 0
    (per_node,) = each
    span, rest = divmod(mesh.step(name) * mesh.size(name), per_node)  # nodes after which groups begin anew
    size, more = divmod(span, -(-mesh.size(name) // where.room))
    return 0 if rest or more or size < 2 or size * per_node > where.room else size


def in_segments(job: Job, size: int) -> Fix:
    """Return the fix that allocates nodes in segments of this many, each in one NVLink domain."""
    text = f"Allocate the nodes in segments of {size}, each of them in one NVLink domain."
    if "SLURM_JOB_ID" in job.ranks[0].environment:
        return Fix(f"{text} The option needs Slurm's topology/block.", (f"#SBATCH --segment={size}",))
    return Fix(text)
