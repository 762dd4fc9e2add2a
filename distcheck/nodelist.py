"""Slurm's short forms: the first host of a node list, and how many tasks each node of a step has.

ClusterShell reads node lists too, but its import alone takes 20 ms of a start.
"""

from __future__ import annotations

import re

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_LONGEST = 1 << 20
"""No step has more nodes than this; a number that says so is a mistake."""


def first_host(nodes: str) -> str:
    """Return the first host of a list such as ``node[01-04,7],login``, '' for what is no list of hosts."""
    depth, end = 0, len(nodes)
    for i, letter in enumerate(nodes):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            end = i
            break
    host = re.sub(r"\[(\w+)[^\[\]]*\]", r"\1", nodes[:end].strip())
    return host if re.fullmatch(r"[\w.:-]+", host) else ""


def tasks_per_node(tasks: str) -> tuple[int, ...]:
    """Return the tasks of each node of ``5,1(x3)``: 5, 1, 1 and 1; nothing for what is not written so."""
    counts: list[int] = []
    for part in tasks.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None or len(counts) + int(match[2] or 1) > _LONGEST:
            return ()
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)
