"""The facts of every rank on demand: what all share is listed once, and each node lists what is its own."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from distcheck.facts.job import Job
from distcheck.facts.ranges import fold
from distcheck.report.attributes import ABSENT, Attributes, Spread, of_ranks, spread
from distcheck.report.schema import Document
from distcheck.report.sections import PIECES

FEW = 6
"""An attribute with at most this many values is listed once, each value with its ranks."""
DETAILED = 16_384
"""With more ranks than this, only nodes with a problem are listed."""

_LISTED = 16
"""With more nodes than this, those without a problem are behind one more click."""


class Differing(NamedTuple):
    """An attribute with few values, each with the ranks that have it."""

    name: str
    values: list[tuple[str, str]]


class NodeSheet(NamedTuple):
    """What differs from rank to rank, for the ranks of one node."""

    name: str
    ranks: list[int]
    rows: list[tuple[str, list[str]]]
    """Name and the ranks' values; a single value holds for all of them."""
    odd: bool


class Sheet(NamedTuple):
    """All attributes of all ranks."""

    common: list[tuple[str, str]]
    splits: list[Differing]
    nodes: list[NodeSheet]

    @property
    def shown(self) -> list[NodeSheet]:
        """The nodes to list first: all, or of many those with a problem."""
        return self.nodes if len(self.nodes) <= _LISTED else [node for node in self.nodes if node.odd][:_LISTED]

    @property
    def others(self) -> list[NodeSheet]:
        """The other nodes."""
        names = {node.name for node in self.shown}
        return [node for node in self.nodes if node.name not in names]


def sheet(job: Job, report: Document) -> Sheet:
    """Return the facts of all ranks."""
    known = of_ranks(job)
    spreads = spread(known)
    own = [one.name for one in spreads if len(one.values) > FEW]
    return Sheet(
        [(one.name, one.values[0][0]) for one in spreads if len(one.values) == 1],
        [_split(one) for one in spreads if 1 < len(one.values) <= FEW],
        _nodes(report, known, own),
    )


def _split(one: Spread) -> Differing:
    return Differing(one.name, [(value, f"ranks {fold(ranks, PIECES)}") for value, ranks in one.values])


def _nodes(report: Document, known: dict[int, Attributes], names: list[str]) -> list[NodeSheet]:
    ranks_of: defaultdict[str, list[int]] = defaultdict(list)
    odd = set()
    for row in report.ranks:
        if row.node is not None and row.rank in known:
            ranks_of[row.node].append(row.rank)
            if row.status != "ok":
                odd.add(row.node)
    listed = ranks_of if len(known) <= DETAILED else {node: ranks_of[node] for node in ranks_of if node in odd}
    return [
        NodeSheet(
            node,
            ranks,
            [(name, _merged([known[rank].get(name, ABSENT) for rank in ranks])) for name in names],
            node in odd,
        )
        for node, ranks in listed.items()
        if names
    ]


def _merged(values: list[str]) -> list[str]:
    return values[:1] if len(set(values)) == 1 else values
