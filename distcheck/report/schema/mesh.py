"""The mesh of --mesh, as the document shows it."""

from __future__ import annotations

from distcheck.report.schema.part import Part


class GroupPlace(Part, frozen=True, gc=False):
    """A rank's group in one dimension of --mesh."""

    group: int
    """Its number; groups are numbered by their first rank."""
    rank: int
    """The rank's number in it, which is its coordinate in this dimension."""


class Range(Part, frozen=True):
    """The least and the largest of several numbers."""

    min: int
    max: int


class DimensionRow(Part, frozen=True):
    """The groups of one dimension of --mesh."""

    name: str
    size: int
    """Ranks of each group."""
    groups: int
    example: tuple[int, ...]
    """The ranks of the first group, in the order of their group rank."""
    nodes: Range
    """On how many nodes a group lies."""
    domains: Range | None
    """On how many NVLink domains a group lies; None if no nodes are known to share one."""


class MeshRow(Part, frozen=True):
    """The mesh of --mesh, for this number of ranks."""

    mesh: str
    """Sizes, outermost dimension first: pp=2,dp=4,tp=8."""
    experts: str
    """The experts' own mesh over the same ranks; empty without one."""
    dimensions: tuple[DimensionRow, ...]
    """Empty if not every rank joined."""
