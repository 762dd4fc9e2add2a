"""Ranks and nodes folded into ranges: 0-7,16 and node[1-4]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

# Any other character has a meaning for ClusterShell: a range, a set operator or a group.
_SIMPLE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def fold(ranks: Iterable[int], limit: int | None = None) -> str:
    """Return ranks folded into ascending ranges: (0, 1, 2, 5) is 0-2,5.

    After `limit` ranges the rest is only counted. A negative number, which is no valid rank, is never in a range.
    """
    numbers = sorted(set(ranks))
    pieces = _pieces(numbers)
    if limit is None:
        return ",".join(pieces)
    shown = list(islice(pieces, limit))
    rest = next(pieces, None)
    return ",".join(shown) + (f",… ({len(numbers)} in all)" if rest is not None else "")


def _pieces(numbers: list[int]) -> Iterator[str]:
    start = 0
    for end in range(1, len(numbers) + 1):
        if end < len(numbers) and numbers[end] == numbers[end - 1] + 1 and numbers[start] >= 0:
            continue
        first, last = numbers[start], numbers[end - 1]
        yield str(first) if first == last else f"{first}-{last}"
        start = end


def fold_nodes(names: Iterable[str]) -> str:
    """Return node names folded as Slurm, pdsh and ClusterShell do: node1,node2 is node[1-2].

    Names that could be parsed as a range or an operator are joined unfolded.
    """
    unique = sorted(set(names))
    simple = [name for name in unique if _SIMPLE.fullmatch(name)]
    others = [name for name in unique if not _SIMPLE.fullmatch(name)]
    if len(simple) < 2:
        return ",".join(simple + others)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return ",".join([str(NodeSet.fromlist(simple, resolver=RESOLVER_NOGROUP)), *others])
