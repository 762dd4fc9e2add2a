"""Parse Slurm's short forms: node lists, tasks per node, and task distributions.

ClusterShell reads node lists too, but its import alone takes 20 ms at start-up, and it sorts them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_LONGEST = 1 << 20
"""No step has more nodes or tasks than this; a larger number is a mistake."""


def first_host(nodes: str) -> str:
    """Return the first host of a list such as ``node[01-04,7],login``, '' if invalid."""
    host = re.sub(r"\[(\w+)[^\[\]]*\]", r"\1", next(_parts(nodes)).strip())
    return host if re.fullmatch(r"[\w.:-]+", host) else ""


def expand(nodes: str) -> tuple[str, ...]:
    """Return the hosts of such a list in its own order, empty if invalid."""
    hosts: list[str] = []
    for part in _parts(nodes):
        texts = re.split(r"\[([^\[\]]*)\]", part.strip())
        if not re.fullmatch(r"[\w.:-]+", "".join(texts[::2]) or "?"):
            return ()
        choices = [[text] if n % 2 == 0 else _numbers(text) for n, text in enumerate(texts)]
        if not all(choices) or len(hosts) + math.prod(map(len, choices)) > _LONGEST:
            return ()
        hosts += map("".join, itertools.product(*choices))
    return tuple(hosts)


def folded(hosts: Sequence[str]) -> str:
    """Return hosts as such a list in their own order: node1, node2, node5 is node[1-2,5].

    Numbers in brackets ascend, because ClusterShell sorts them: node3, node1 is node3,node1.
    """
    found: list[tuple[str, list[str]]] = []
    for host in hosts:
        stem = host.rstrip("0123456789")
        number = host[len(stem) :]
        there = found[-1][1] if found and found[-1][0] == stem else []
        if number and there and _follows(number, there[-1]):
            there.append(number)
        else:
            found.append((stem if number else host, [number] if number else []))
    return ",".join(
        stem if not numbers else stem + numbers[0] if len(numbers) == 1 else f"{stem}[{_ranges(numbers)}]"
        for stem, numbers in found
    )


def _follows(number: str, last: str) -> bool:
    """Whether a number is larger than another one, and padded like it."""
    return int(number) > int(last) and len(number) == len(f"{int(number):0{len(last)}}")


def _ranges(numbers: Sequence[str]) -> str:
    pieces: list[list[str]] = []
    for number in numbers:
        last = pieces[-1][-1] if pieces else ""
        if last and int(number) == int(last) + 1:
            pieces[-1][1:] = [number]
        else:
            pieces.append([number])
    return ",".join("-".join(piece) for piece in pieces)


def _parts(nodes: str) -> Iterator[str]:
    """Split a list at the commas outside brackets."""
    depth, start = 0, 0
    for i, letter in enumerate(nodes):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield nodes[start:i]
            start = i + 1
    yield nodes[start:]


def _numbers(text: str) -> list[str]:
    """Return the numbers of ``01-04,7`` with their leading zeros, empty if invalid."""
    found: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not match or last < first or len(found) + last - first >= _LONGEST:
            return []
        found += (f"{number:0{len(match[1])}}" for number in range(first, last + 1))
    return found


def tasks_per_node(tasks: str) -> tuple[int, ...]:
    """Return the tasks of each node of ``5,1(x3)``: 5, 1, 1 and 1; empty if invalid."""
    counts: list[int] = []
    for part in tasks.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None or len(counts) + int(match[2] or 1) > _LONGEST:
            return ()
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def deal(tasks: Sequence[int], distribution: str, plane: int | None = None) -> tuple[int, ...]:
    """Return the node index of every task, empty if the distribution does not determine it.

    Args:
        tasks: tasks of each node.
        distribution: SLURM_DISTRIBUTION, such as ``cyclic:block`` or ``plane=4``; '' is Slurm's default, block.
        plane: SLURM_DIST_PLANESIZE.

    Source: slurm, src/common/slurm_step_layout.c (_task_layout_block, _cyclic and _plane). Slurm first
    decides how many tasks each node has; nodes then get theirs in turn, a block, one, or a plane at a time.
    """
    kind, _, own = re.split("[:,]", distribution)[0].partition("=")
    plane = int(own) if own.isdecimal() else plane
    most = max(tasks, default=0)
    size = {"": most, "block": most, "cyclic": 1, "plane": plane}.get(kind)
    if not size or size < 1:
        return ()
    rounds = range(0, most, size)
    return tuple(
        node for start in rounds for node, all_ in enumerate(tasks) for _ in range(max(0, min(size, all_ - start)))
    )
