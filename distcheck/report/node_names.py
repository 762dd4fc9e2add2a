"""Node names folded into ranges: node[1-4]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from distcheck.facts.ranges import fold

# Any other character has a meaning for ClusterShell: a range, a set operator or a group.
_SIMPLE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_NUMBERED = re.compile(r"([A-Za-z._-]+)([0-9]{1,9})", re.ASCII)


def fold_nodes(names: Iterable[str]) -> str:
    """Return node names folded as Slurm, pdsh and ClusterShell do: node1,node2 is node[1-2].

    Names that could be parsed as a range or an operator are joined unfolded.
    """
    unique = sorted(set(names))
    simple = [name for name in unique if _SIMPLE.fullmatch(name)]
    others = [name for name in unique if not _SIMPLE.fullmatch(name)]
    if len(simple) < 2:
        return ",".join(simple + others)
    return ",".join([_numbered(simple) or _folded(simple), *others])


def _numbered(names: Sequence[str]) -> str:
    """Return names that are one word and a number, folded as ClusterShell does, but ten times faster; else ''."""
    parts = [match.groups() for match in map(_NUMBERED.fullmatch, names) if match]
    digits = [number for _, number in parts]
    shortest = min(map(len, digits), default=0)
    padded = any(number[0] == "0" and len(number) > 1 for number in digits)
    alike = len(parts) == len(names) and len({word for word, _ in parts}) == 1
    if not alike or (padded and max(map(len, digits)) > shortest):
        return ""
    ranges = re.sub("[0-9]+", lambda number: number[0].zfill(shortest), fold(map(int, digits)))
    return f"{parts[0][0]}[{ranges}]"


def _folded(names: Sequence[str]) -> str:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # takes 20 ms to import

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
