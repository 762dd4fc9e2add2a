"""Folds numbers into ranges, as Linux and Slurm write CPUs: 0-3,7."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_NUMBER = re.compile(r"[0-9]{1,5}")
"""No CPU number has more digits; a longer one comes from a broken file."""


def fold(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 0-3,7."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


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
