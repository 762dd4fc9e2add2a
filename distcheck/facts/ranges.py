"""Folds numbers into ranges, as Linux writes CPUs and Slurm writes ranks: 0-3,7."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

_NUMBER = re.compile(r"[0-9]{1,5}")
"""No CPU number has more digits; a longer one comes from a broken file."""


def fold(numbers: Iterable[int], limit: int | None = None) -> str:
    """Return numbers as ascending ranges: (0, 1, 2, 5) is 0-2,5.

    After `limit` ranges the rest is only counted. A negative number, which is no valid rank, is never in a range.
    """
    ordered = sorted(set(numbers))
    pieces = _pieces(ordered)
    if limit is None:
        return ",".join(pieces)
    shown = list(islice(pieces, limit))
    rest = next(pieces, None)
    return ",".join(shown) + (f",… ({len(ordered)} in all)" if rest is not None else "")


def numbered(ranks: Iterable[int], limit: int | None = None) -> str:
    """Return ranks by number: rank 1, ranks 0-3,7."""
    distinct = set(ranks)
    return f"{'rank' if len(distinct) == 1 else 'ranks'} {fold(distinct, limit)}"


def span(number: int) -> str:
    """Return the numbers of this many things, counted from 0: 0 to 7, or just 0."""
    return f"0 to {number - 1}" if number > 1 else "0"


def _pieces(numbers: list[int]) -> Iterator[str]:
    start = 0
    for end in range(1, len(numbers) + 1):
        if end < len(numbers) and numbers[end] == numbers[end - 1] + 1 and numbers[start] >= 0:
            continue
        first, last = numbers[start], numbers[end - 1]
        yield str(first) if first == last else f"{first}-{last}"
        start = end


@lru_cache(32)  # each may hold 100,000 numbers
def unfold(text: str) -> frozenset[int]:
    """Return the numbers of ranges; empty for any other text."""
    found: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        last = last if dash else first
        if not (_NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)):
            return frozenset()
        found.update(range(int(first), int(last) + 1))
    return frozenset(found)
