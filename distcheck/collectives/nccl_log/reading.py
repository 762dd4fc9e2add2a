"""The facts read so far from a log of NCCL, and the register of its lines' formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

MOST, LONGEST = 64, 300
"""The most entries kept of each kind, and the most characters of quoted text."""


class LogReading:
    """The facts read so far from one log."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.lists: dict[str, dict[Any, None]] = {}
        self.maps: dict[str, dict[str, Any]] = {}
        self.counts: Counter[str] = Counter()
        self.rank: int | None = None
        self.peers: dict[str, set[int]] = {}
        self.other = False
        """Whether a later communicator than the first is being set up; its ranks have other numbers."""

    def first(self, name: str, value: object) -> None:
        """Set a field unless it is set."""
        self.told.setdefault(name, value)

    def append(self, name: str, value: object) -> None:
        """Add a new entry to a field."""
        found = self.lists.setdefault(name, {})
        if len(found) < MOST:
            found.setdefault(value)

    def put(self, name: str, key: str, value: object) -> None:
        """Set one entry of a field."""
        found = self.maps.setdefault(name, {})
        if key in found or len(found) < MOST:
            found[key] = value


_Take = Callable[[LogReading, "re.Match[str]"], None]
_takers: list[tuple[re.Pattern[str], _Take]] = []


def take(reading: LogReading, words: str) -> None:
    """Read the facts from a line's text, without its prefix."""
    for pattern, taker in _takers:
        if match := pattern.fullmatch(words):
            taker(reading, match)
            return


def line(*parts: str) -> Callable[[_Take], _Take]:
    """Register a line's format; the most frequent formats come first."""

    def register(taker: _Take) -> _Take:
        _takers.append((re.compile("".join(parts)), taker))
        return taker

    return register
