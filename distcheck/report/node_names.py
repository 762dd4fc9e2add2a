"""Node names folded into ranges: node[1-4]."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Any other character has a meaning for ClusterShell: a range, a set operator or a group.
_SIMPLE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


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
