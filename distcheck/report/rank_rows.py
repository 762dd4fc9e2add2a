"""The rows of the table of ranks: with many ranks, those without a problem are folded over their nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from distcheck.facts.quantities import count, tally
from distcheck.facts.ranges import fold
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.document import Document, RankRow, Status
from distcheck.rules.wording import grouped

ROWS = 16
"""With more ranks than this, ranks without a problem are folded; so many with a problem have a row each."""
_PIECES = 4
"""Most ranges of local ranks in a row."""
_LONGEST = 36
"""With longer folded names, only the number of nodes is shown."""
_SHORT = 16
"""With longer folded ranks, only their number is shown."""
_HEALTHY = frozenset({"listening", "reached", "agent"})


class FoldedRanks(NamedTuple):
    """Several ranks as one row, with the columns of a rank's row."""

    rank: str
    node: str | None
    local_rank: str
    models: str
    """Their GPUs: 16 x NVIDIA H200."""
    master: str
    stage: str | None
    status: Status
    gpu: None = None
    mesh: None = None


def rank_rows(report: Document, *, everything: bool) -> list[RankRow | FoldedRanks]:
    """Return the rows, those with a problem first if any are folded."""
    if everything or len(report.ranks) <= ROWS:
        return list(report.ranks)
    odd = [row for row in report.ranks if row.status != "ok"]
    plain = (row for row in report.ranks if row.status == "ok")
    return [*_odd(odd), *_folded(plain, lambda row: (row.stage, row.master in _HEALTHY or row.master))]


def _odd(rows: list[RankRow]) -> list[RankRow | FoldedRanks]:
    """Return a row for each rank; if they are many, for each node; if these are many, for each status."""
    if len(rows) <= ROWS:
        return list(rows)
    by_node = _folded(rows, lambda row: (row.node, row.status, row.stage, row.master))
    if len(by_node) <= ROWS:
        return by_node
    kept = grouped(rows, lambda row: row.status)
    return [found for same in kept.values() for found in _folded(same, lambda row: (row.status, row.stage))]


def _folded(rows: Iterable[RankRow], key: Callable[[RankRow], Hashable]) -> list[RankRow | FoldedRanks]:
    groups = grouped(rows, key).values()
    return [same[0] if len(same) == 1 else _fold(same) for same in groups]


def _fold(rows: list[RankRow]) -> FoldedRanks:
    nodes = {row.node for row in rows if row.node is not None}
    named = fold_nodes(nodes)
    numbers = fold(row.rank for row in rows if row.rank is not None) or "?"
    return FoldedRanks(
        rank=numbers if len(numbers) <= _SHORT else count(len(rows), "rank"),
        node=(named if len(named) <= _LONGEST else count(len(nodes), "node")) if nodes else None,
        local_rank=fold((row.local_rank for row in rows if row.local_rank is not None), _PIECES) or "-",
        models=tally(row.gpu.name or "GPU" for row in rows if row.gpu is not None),
        master=", ".join(sorted({row.master for row in rows})),
        stage=rows[0].stage,
        status=rows[0].status,
    )
