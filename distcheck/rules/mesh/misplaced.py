"""Which tensor and expert groups lie badly on nodes or NVLink domains, and what would place them better.

Each remedy is tried on the job's own ranks before it is proposed: consecutive ranks on each island, another order of
the dimensions, both, an allocation in segments, another size.
"""

from __future__ import annotations

import shlex
from collections import Counter
from math import gcd
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.facts.mesh import Mesh, role
from distcheck.rules.finding import Fix, Severity
from distcheck.rules.job.mesh import close_dimensions, in_order, mesh_of
from distcheck.rules.mesh.islands import Islands, badly_placed, islands
from distcheck.rules.wording import once
from distcheck.selection.meshes import divisors, resolved
from distcheck.selection.nodelist import folded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job

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
_NONE = Fix("No action if this size is intended: no other order of ranks or dimensions is better.")
Cause = Literal["order", "mesh", "nodes", "size", "none"]
"""What a remedy changes: the order of the ranks, the order of the dimensions, the allocated nodes, a size."""


class Misplaced(NamedTuple):
    """The badly placed groups of one dimension."""

    name: str
    size: int
    groups: list[range]
    of: int
    """How many groups the dimension has."""
    uneven: bool
    """Whether they span no more islands than they must, but with different shares."""
    cause: Cause
    severity: Severity
    fix: Fix
    shares: str
    """The shares of the first group: 8+24."""


@once
def suspected(job: Job) -> list[Misplaced]:
    """Return the misplaced groups, if only nodes known to share an NVLink domain do so.

    Empty where the mesh does not fit, or not every rank joined.
    """
    mesh = mesh_of(job)
    if mesh is None or not in_order(job):
        return []
    return list(_misplaced(job, mesh, islands(job)))


def misplaced(job: Job) -> list[Misplaced]:
    """Return the misplaced groups; empty while the NVLink domains are unknown."""
    return [] if islands(job).unread else suspected(job)


def _misplaced(job: Job, mesh: Mesh, where: Islands) -> Iterator[Misplaced]:
    bad = _bad(mesh, where.of, where.room)
    for name in close_dimensions(mesh):
        size, groups = mesh.size(name), bad[name]
        if groups:
            cause, fix = _remedy(job, mesh, name, where, bad)
            severity: Severity = "info" if cause == "none" else "warning"
        elif size > where.room:
            groups = mesh.groups(name)
            smaller = _smaller(mesh, name, where) if role(name) == "tensor" else None
            cause, fix = ("size", smaller) if smaller else ("none", _NONE)
            severity = "warning" if smaller else "info"
        else:
            continue
        shares = [Counter(where.of[r] for r in group) for group in groups]
        least = -(-size // where.room)
        uneven = bool(bad[name]) and least > 1 and all(len(share) == least for share in shares)
        yield Misplaced(
            name, size, groups, mesh.ranks // size, uneven, cause, severity, fix, "+".join(map(str, shares[0].values()))
        )


def _bad(mesh: Mesh, of: Sequence[int], room: int) -> dict[str, list[range]]:
    return {name: badly_placed(mesh, name, of, room) for name in close_dimensions(mesh)}


def _remedy(job: Job, mesh: Mesh, name: str, where: Islands, bad: dict[str, list[range]]) -> tuple[Cause, Fix]:
    """Return the first remedy that places every group of a dimension well and no other one worse."""
    order = sorted(range(len(where.of)), key=lambda rank: (where.of[rank], where.node[rank], rank))
    blocks, packed = [where.of[rank] for rank in order], _consecutive(job, where, order)
    ways: list[tuple[Cause, Mesh, Sequence[int], Fix]] = [("order", mesh, blocks, packed)]
    turned = _inner_first(job)
    if turned:
        text = f"Move {name} further in, so that neighbouring ranks form its groups."
        moved = Fix(text, mesh_lines(job, turned[0]))
        ways += [("mesh", turned[1], where.of, moved), ("mesh", turned[1], blocks, _both(moved, packed))]
    if size := _segment_size(mesh, where):
        ways.append(("nodes", mesh, _segments(where, size), _in_segments(job, size)))
    if turned and (size := _segment_size(turned[1], where)):
        ways.append(("mesh", turned[1], _segments(where, size), _both(moved, _in_segments(job, size))))
    for cause, other, of, fix in ways:
        after = _bad(other, of, where.room)
        if not after.get(name) and all(len(after.get(n, ())) <= len(bad[n]) for n in bad):
            return cause, fix
    if smaller := _smaller(mesh, name, where):
        return "size", smaller
    return "none", _NONE


def _both(first: Fix, second: Fix) -> Fix:
    return Fix(f"{first.text} {second.text}", (*first.commands, *second.commands))


def _segment_size(mesh: Mesh, where: Islands) -> int:
    """Return how many consecutive nodes of one domain the largest groups need; 0 if no number helps."""
    return max(_nodes_of_groups(mesh, name, where) for name in close_dimensions(mesh))


def _segments(where: Islands, size: int) -> list[int]:
    """Return each rank's island if every so many consecutive nodes are an island of their own."""
    return [node // size for node in where.node]


def _inner_first(job: Job) -> tuple[Mesh, Mesh] | None:
    """Return the mesh with tensors innermost, then experts: as --mesh takes it, and with all sizes."""
    asked = job.asked.mesh
    if asked is None:
        return None

    def further_in(dimension: str) -> int:
        return {"tensor": 2, "expert": 1}.get(role(dimension), 0)

    sizes = {dimension: asked.sizes[dimension] for dimension in sorted(asked.sizes, key=further_in)}
    order = "-".join(sorted(asked.order.split("-"), key=lambda dimension: -further_in(dimension)))
    turned = Mesh(sizes, order=order)
    whole = resolved(turned, job.world_size or 0, [])
    return (turned, whole) if whole and (list(sizes), order) != (list(asked.sizes), asked.order) else None


def _smaller(mesh: Mesh, name: str, where: Islands) -> Fix | None:
    """Return the fix that makes the groups of a dimension so small that islands hold whole ones; None if none do."""
    common = gcd(*Counter(where.of).values())
    sizes = [n for n in divisors(common) if 1 < n < mesh.size(name) and common % (n * mesh.step(name)) == 0]
    return Fix(f"Use a size of {name} that fits: a {where.kind} holds whole groups of {sizes[-1]}.") if sizes else None


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


def _consecutive(job: Job, where: Islands, order: Sequence[int]) -> Fix:
    """Return the fix that gives each node, and each NVLink domain, consecutive ranks, numbered in this order."""
    launcher = job.ranks[0].placement.launcher
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
    return Fix(text, _ordering(job, nodes, each))


def _ordering(job: Job, nodes: list[str], each: int) -> tuple[str, ...]:
    hosts = shlex.quote(folded(nodes))
    if job.ranks[0].placement.launcher != "slurm" or not job.asked.mesh:
        return (f"# node ranks in this order: {hosts}",)
    command = f"distcheck {job.asked.command} {_option(job.asked.mesh)}"
    each_node = f"for i in $(seq {each}); do echo $node; done"
    return (
        f"for node in $(scontrol show hostnames {hosts}); do {each_node}; done > ranks.txt",
        "export SLURM_HOSTFILE=$PWD/ranks.txt",
        f"srun --ntasks={len(nodes) * each} --distribution=arbitrary {command}",
    )


def _nodes_of_groups(mesh: Mesh, name: str, where: Islands) -> int:
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


def _in_segments(job: Job, size: int) -> Fix:
    """Return the fix that allocates nodes in segments of this many, each in one NVLink domain."""
    text = f"Allocate the nodes in segments of {size}, each of them in one NVLink domain."
    if "SLURM_JOB_ID" in job.ranks[0].environment:
        return Fix(f"{text} The option needs Slurm's topology/block.", (f"#SBATCH --segment={size}",))
    return Fix(text)
