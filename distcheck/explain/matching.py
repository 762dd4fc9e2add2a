"""Finds the lines of a log that match known spellings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate

from distcheck.explain.lines import AROUND_BYTES, Candidate, LogLine
from distcheck.explain.places import NOWHERE, Place
from distcheck.explain.reading import Piece
from distcheck.explain.sighting import Sighting, earliest, sighting
from distcheck.explain.spelling import NOISE, Spelling, precedence, trie

_KNOWN_LINES = 200_000
"""Different lines without a known message that are remembered, so that repeated lines cost next to nothing."""
_LONGEST_KNOWN_BYTES = 500
"""A longer line is searched again when it is repeated, so that memory stays bounded."""
_MOST_READ = 100
"""Lines that differ in digits only, and are read for values, rank and time; further ones are only counted."""
_MOST_SEEN = 1000
"""Lines of a log with one spelling that are read for values, rank and time; further ones are only counted."""
_SHINGLE_BYTES = 4
_DIGITS = b"0123456789"
_NO_ERROR = re.compile(rb" INFO |(?:^|[\s\[|:-])(?:WARNING|[A-Z][a-z]+Warning)[\s\]|:]")
"""The level of a line whose program goes on, so that only a known message counts."""


class Matcher:
    """Searches logs for spellings; keeps which lines it has seen, since logs repeat themselves."""

    def __init__(self, spellings: Iterable[Spelling]) -> None:
        self._spellings = tuple(sorted(spellings, key=precedence))
        self._by_shingle = _by_shingle(tuple(spelling.anchor for spelling in self._spellings))
        self._any = trie(tuple(spelling.anchor for spelling in self._spellings))
        self._without: set[bytes] = set()
        self._with: dict[bytes, tuple[Spelling, ...]] = {}

    def search(self, pieces: Iterable[Piece], file: str, of_file: Place = NOWHERE) -> list[Sighting]:
        """Return the spellings that a log has: of each the line with the earliest time, or else the first line."""
        found: dict[int, Sighting] = {}  # by the id of the spelling: to hash one costs more than to look for most
        looked: dict[bytes, int] = {}
        dull: set[bytes] = set()
        before = b""
        for piece in pieces:
            for candidate in self._candidates(piece, dull):
                key = candidate.key
                candidates = self._with[key]
                looked[key] = times = looked.get(key, 0) + 1
                if times > _MOST_READ:
                    again = [id(one) for one in candidates if id(one) in found and one.weight > NOISE]
                    found |= {one: found[one]._replace(times=found[one].times + 1) for one in again}
                    if not again and len(key) <= _LONGEST_KNOWN_BYTES:
                        dull.add(key)
                    continue
                line = LogLine(before, piece.data, candidate, candidates[0].anchor)
                matched = False
                for spelling in candidates:
                    if spelling.fallback and (matched or _NO_ERROR.search(line.raw)):
                        continue
                    known = found.get(id(spelling))
                    if known and known.times >= _MOST_SEEN:
                        if line.match(spelling.pattern):
                            matched = True
                            found[id(spelling)] = known._replace(times=known.times + 1)
                        continue
                    if seen := sighting(spelling, line, file, candidate.number, of_file):
                        matched = True
                        found[id(spelling)] = earliest(known, seen)
            before = piece.data[-AROUND_BYTES:]
            if len(looked) > _KNOWN_LINES:
                looked.clear()
                dull.clear()
        return list(found.values())

    def _candidates(self, piece: Piece, dull: set[bytes]) -> Iterator[Candidate]:
        """Yield the lines that have an anchor, and are not dull."""
        lines = piece.data.split(b"\n")
        keys = piece.data.lower().translate(None, _DIGITS).split(b"\n")
        different = set(keys)
        fresh = different - self._without - self._with.keys()
        for key in self._lines_with_an_anchor(b"\n".join(fresh)):
            self._with[key] = self._with_an_anchor_in(key)
        if len(self._without) + len(self._with) > _KNOWN_LINES:
            self._without.clear()
            self._with = {key: known for key, known in self._with.items() if key in different}
        self._without |= {key for key in fresh - self._with.keys() if len(key) <= _LONGEST_KNOWN_BYTES}
        wanted = {key for key in different - dull if key in self._with}
        if not wanted:
            return
        starts = [0, *accumulate(len(line) + 1 for line in lines)]
        for at, key in enumerate(keys):
            if key in wanted and key not in dull:
                yield Candidate(piece.first_line + at, starts[at], starts[at + 1] - 1, key)
        for key in [key for key in fresh if len(key) > _LONGEST_KNOWN_BYTES]:
            self._with.pop(key, None)

    def _with_an_anchor_in(self, key: bytes) -> tuple[Spelling, ...]:
        """Return the spellings whose anchor a line has; looks only for anchors that share a rare part with it."""
        parts = {key[at : at + _SHINGLE_BYTES] for at in range(len(key))} & self._by_shingle.keys()
        numbers = [number for part in parts | {b""} for number in self._by_shingle.get(part, ())]
        return tuple(s for s in map(self._spellings.__getitem__, sorted(numbers)) if s.anchor in key)

    def _lines_with_an_anchor(self, lines: bytes) -> Iterator[bytes]:
        position = 0
        while match := self._any.search(lines, position):
            start = lines.rfind(b"\n", 0, match.start()) + 1
            end = lines.find(b"\n", match.end())
            end = len(lines) if end < 0 else end
            yield lines[start:end]
            position = end


@cache
def _by_shingle(anchors: tuple[bytes, ...]) -> dict[bytes, list[int]]:
    """Return the numbers of anchors by the part of each, 4 bytes long, that the fewest others have."""
    parts = [[a[at : at + _SHINGLE_BYTES] for at in range(len(a) - _SHINGLE_BYTES + 1)] or [b""] for a in anchors]
    common = Counter(part for own in parts for part in set(own))
    found: dict[bytes, list[int]] = {}
    for number, own in enumerate(parts):
        found.setdefault(min(own, key=lambda part: (common[part], part)), []).append(number)
    return found
