"""The facts of every rank on demand: what all share is listed once, and each node lists what is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from distcheck.facts.job import Job
from distcheck.report.attributes import Attributes, Spread, absent, of_node, of_ranks, spread
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.document import Document
from distcheck.report.sections import where
from distcheck.rules.wording import grouped

FEW = 6
"""An attribute with at most this many values is listed once, each value with its ranks."""
BUDGET = 2_500_000
"""Characters that the facts of single nodes may take; nodes with a problem come first."""
_HEAD, _RANK, _TAGS = 250, 25, 12
"""Characters of a node's markup, of a rank's title and of a cell's tags."""
_LISTED = 16
"""With more nodes than this, those without a problem are behind one more click."""


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
    splits: list[tuple[str, list[tuple[str, str]]]]
    """Attributes with few values, each with the ranks that have it."""
    nodes: list[NodeSheet]
    left_out: int = 0
    """Nodes that would make the page too large."""

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
    if not known:  # distcheck node: nodes without ranks
        known = {number: of_node(node) for number, node in enumerate(job.nodes)}
        names = [job.node_names[node.key] for node in job.nodes]
        return _sheet(spread(known), lambda numbers: fold_nodes(names[number] for number in numbers), [])
    spreads = spread(known)
    own = [one.name for one in spreads if len(one.values) > FEW]
    nodes = _nodes(report, known, own)
    left_out = len({row.node for row in report.ranks if row.rank in known}) - len(nodes) if own else 0
    return _sheet(spreads, lambda ranks: where(ranks, ()), nodes)._replace(left_out=left_out)


def _sheet(spreads: list[Spread], place: Callable[[tuple[int, ...]], str], nodes: list[NodeSheet]) -> Sheet:
    few = [one for one in spreads if 1 < len(one.values) <= FEW]
    return Sheet(
        [(one.name, one.values[0][0]) for one in spreads if len(one.values) == 1],
        [(one.name, [(value, place(having)) for value, having in one.values]) for one in few],
        nodes,
    )


def _nodes(report: Document, known: dict[int, Attributes], names: list[str]) -> list[NodeSheet]:
    placed = [(row.node, row.rank, row.status) for row in report.ranks if row.node is not None and row.rank in known]
    odd = {node for node, _, status in placed if status != "ok"}
    by_node = grouped(placed, lambda row: row[0]).items()
    left, sheets = BUDGET, []
    for node, here in sorted(by_node, key=lambda item: item[0] not in odd) if names else ():
        ranks = [rank for _, rank, _ in here]
        rows = [(name, _merged([known[rank].get(name, absent(name)) for rank in ranks])) for name in names]
        left -= (
            _HEAD
            + _RANK * len(ranks)
            + sum(len(name) + _TAGS + sum(len(value) + _TAGS for value in values) for name, values in rows)
        )
        if left < 0:
            break
        sheets.append(NodeSheet(node, ranks, rows, node in odd))
    return sheets


def _merged(values: list[str]) -> list[str]:
    return values[:1] if len(set(values)) == 1 else values
