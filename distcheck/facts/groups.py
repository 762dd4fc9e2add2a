"""What was measured in the groups of a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from distcheck.facts.base import Count, Facts, Measured
from distcheck.facts.mesh import Mesh


class GroupFigure(Facts, frozen=True):
    """One operation in the groups of one dimension: the first group alone, then all of them at the same time.

    A group's time per call is the mean over its ranks, as that of the whole world.
    """

    dimension: str
    op: str
    bytes: Count = 0
    """The payload of one group; 0 if nothing was measured."""
    dtype: str = "float32"
    bursts: Count = 0
    """Bursts of all groups at the same time."""
    alone_seconds: Measured | None = None
    """The first group's median while all other ranks wait; None if the dimension has one group."""
    seconds: tuple[Measured | None, ...] = ()
    """Each group's median, by the groups' first ranks, while all of them work; None if a rank of it has no figure."""
    best_seconds: tuple[Measured | None, ...] = ()
    """Each group's quickest burst: what slows some of them only is no property of the group."""
    lacks: str = ""
    """Why it was not measured."""
    own_seconds: tuple[Measured | None, ...] = ()
    """Each group's median without the time for which its ranks waited for CPUs that others used; empty on GPUs."""


def with_groups(
    mesh: Mesh | None, figures: Iterable[GroupFigure], ranks: int
) -> Iterator[tuple[GroupFigure, list[range]]]:
    """Yield figures with the groups of their dimension; none if the mesh is not that of so many ranks."""
    if mesh is None or not all(prod(sizes.values()) == ranks > 0 for sizes in (mesh.sizes, mesh.experts) if sizes):
        return
    for figure in figures:
        if figure.dimension in mesh.names:
            yield figure, mesh.groups(figure.dimension)
