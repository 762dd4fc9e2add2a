"""Which tensor and expert groups lie badly on nodes or NVLink domains, and what would place them better.

Each remedy is tried on the job's own ranks before it is proposed: consecutive ranks on each island, another order of
the dimensions, both, an allocation in segments, another size.
"""

from __future__ import annotations

from collections import Counter
from math import gcd
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from distcheck.facts.mesh import Mesh, role
from distcheck.facts.quantities import count
from distcheck.rules.finding import Fix, Severity
from distcheck.rules.job.mesh import close_dimensions, in_order, mesh_of
from distcheck.rules.mesh.islands import Islands, badly_placed, islands
from distcheck.rules.mesh.remedies import consecutive, in_segments, mesh_lines, segment_size
from distcheck.rules.wording import once
from distcheck.selection.meshes import divisors, resolved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job


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
            smaller = _other_size(job, name, where, bad) if role(name) == "tensor" else None
            cause, fix = ("size", smaller) if smaller else ("none", Fix(_as_it_should(mesh, name, where)))
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


def _as_it_should(mesh: Mesh, name: str, where: Islands) -> str:
    parts = -(-mesh.size(name) // where.room)
    return (
        f"No action if this size is intended: each group lies on {parts} {where.kind}s with "
        f"{count(mesh.size(name) // parts, 'rank')} on each, the least possible."
    )


def _remedy(job: Job, mesh: Mesh, name: str, where: Islands, bad: dict[str, list[range]]) -> tuple[Cause, Fix]:
    """Return the first remedy that places every group of a dimension well and no other one worse."""
    order = sorted(range(len(where.of)), key=lambda rank: (where.of[rank], where.node[rank], rank))
    blocks, packed = [where.of[rank] for rank in order], consecutive(job, where, order)
    ways: list[tuple[Cause, Mesh, Sequence[int], Fix]] = [("order", mesh, blocks, packed)]
    turned = _inner_first(job)
    if turned:
        text = f"Move {name} further in, so that neighbouring ranks form its groups."
        moved = Fix(text, mesh_lines(job, turned[0]))
        ways += [("mesh", turned[1], where.of, moved), ("mesh", turned[1], blocks, _both(moved, packed))]
    if size := _segment_size(mesh, where):
        ways.append(("nodes", mesh, _segments(where, size), in_segments(job, size)))
    if turned and (size := _segment_size(turned[1], where)):
        ways.append(("mesh", turned[1], _segments(where, size), _both(moved, in_segments(job, size))))
    for cause, other, of, fix in ways:
        after = _bad(other, of, where.room)
        if not after.get(name) and all(len(after.get(n, ())) <= len(bad[n]) for n in bad):
            return cause, fix
    resized = _other_size(job, name, where, bad)
    none = Fix("No action if this size is intended: no other order of ranks or dimensions is better.")
    return ("size", resized) if resized else ("none", none)


def _both(first: Fix, second: Fix) -> Fix:
    return Fix(f"{first.text} {second.text}", (*first.commands, *second.commands))


def _segment_size(mesh: Mesh, where: Islands) -> int:
    """Return how many consecutive nodes of one domain the largest groups need; 0 if no number helps."""
    return max(segment_size(mesh, name, where) for name in close_dimensions(mesh))


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


def _other_size(job: Job, name: str, where: Islands, bad: dict[str, list[range]]) -> Fix | None:
    """Return the fix that changes the size of a dimension to one that fits every island."""
    asked, mesh = job.asked.mesh, mesh_of(job)
    if asked is None or mesh is None or name not in asked.sizes:
        return None
    common = gcd(*Counter(where.of).values())
    size = mesh.size(name)
    sizes = [n for n in divisors(common) if n not in {1, size}]
    for new in sorted(sizes, key=lambda n: (n > size, abs(n - size))):
        other = _resized(asked, mesh, name, new)
        whole = resolved(other, job.world_size or 0, []) if other else None
        after = _bad(whole, where.of, where.room) if whole else {name: [range(0)]}
        if other and not after[name] and all(len(after[n]) <= len(bad.get(n, ())) for n in after if n != name):
            what = f"a {where.kind} holds whole groups of {new}"
            return Fix(f"Use a size of {name} that fits: {what}.", mesh_lines(job, other))
    return None


def _resized(asked: Mesh, mesh: Mesh, name: str, new: int) -> Mesh | None:
    """Return the mesh of --mesh with another size of a dimension, and as many ranks; None if there is none."""
    sizes = asked.sizes | {name: new}
    if not mesh.experts or name in mesh.sizes:
        data = next((n for n in mesh.sizes if role(n) in {"data", "shard", "replicate"}), None)
        old = mesh.size(name)
        if data is None and old % new:
            return None
        if data is None:
            sizes = {"dp": old // new, **sizes}
        elif asked.sizes[data]:
            if mesh.size(data) * old % new:
                return None
            sizes[data] = mesh.size(data) * old // new
    return msgspec.structs.replace(asked, sizes=sizes)
