"""Finds the lines of a log that match known spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distcheck.cli.joblog.places import NOWHERE, Place, When, place, plain, when
from distcheck.cli.joblog.reading import Piece
from distcheck.cli.joblog.spelling import Spelling, trie

_AROUND_BYTES = 4000
"""How far `near` and `unless` look, and how much of a huge line is searched."""
_SHOWN_BEFORE, _SHOWN = 60, 160
_KNOWN_LINES = 200_000
"""Different lines without a known message that are remembered, so that repeated lines cost next to nothing."""
_MOST_READ = 1000
"""Matches of one spelling in a log that are read for rank and time; further ones are only counted."""
_DIGITS = b"0123456789"
_HOST, _RANK = re.compile(r"\bhost\s+: (\S+)"), re.compile(r"\brank\s+: (\d+) \(local_rank")


class Sighting(NamedTuple):
    """The earliest line of a log that has a spelling."""

    spelling: Spelling
    file: str
    line: int
    text: str
    """About 160 characters around the match, as they stand in the log (not yet redacted)."""
    place: Place
    time: When | None
    times: int
    values: dict[str, str]
    """The named groups of the pattern."""


class Matcher:
    """Searches logs for spellings; keeps which lines it has seen, since logs repeat themselves."""

    def __init__(self, spellings: Iterable[Spelling]) -> None:
        self._spellings = tuple(spellings)
        self._any = trie(spelling.anchor for spelling in self._spellings)
        self._without: set[bytes] = set()
        self._with: dict[bytes, tuple[Spelling, ...]] = {}

    def search(self, pieces: Iterable[Piece], file: str, of_file: Place = NOWHERE) -> list[Sighting]:
        """Return the spellings that a log has: of each the line with the earliest time, or else the first line."""
        found: dict[Spelling, Sighting] = {}
        texts: dict[Spelling, set[str]] = {}
        before = b""
        for piece in pieces:
            for number, start, end, candidates in self._candidates(piece):
                matched = False
                for spelling in candidates:  # those of the tables first
                    if not (spelling.fallback and matched):
                        at = before, piece.data, start, end
                        matched |= self._look(spelling, at, number, file, of_file, found, texts)
            before = piece.data[-_AROUND_BYTES:]
        return [seen for seen in found.values() if not seen.spelling.twice or seen.times > len(texts[seen.spelling])]

    def _candidates(self, piece: Piece) -> Iterator[tuple[int, int, int, tuple[Spelling, ...]]]:
        """Yield number, start, end and possible spellings of the lines that have an anchor."""
        keys = piece.data.lower().translate(None, _DIGITS).split(b"\n")
        different = set(keys)
        fresh = different - self._without - self._with.keys()
        if fresh and self._any.search(b"\n".join(fresh)):
            for key in fresh:
                if self._any.search(key):
                    self._with[key] = tuple(s for s in self._spellings if s.anchor in key)
        if len(self._without) + len(self._with) > _KNOWN_LINES:
            self._without.clear()
            self._with = {key: known for key, known in self._with.items() if key in different}
        self._without |= fresh - self._with.keys()
        if different.isdisjoint(self._with):
            return
        start = 0
        for offset, (key, line) in enumerate(zip(keys, piece.data.split(b"\n"), strict=True)):
            if key in self._with:
                yield piece.first_line + offset, start, start + len(line), self._with[key]
            start += len(line) + 1

    def _look(
        self,
        spelling: Spelling,
        at: tuple[bytes, bytes, int, int],
        number: int,
        file: str,
        of_file: Place,
        found: dict[Spelling, Sighting],
        texts: dict[Spelling, set[str]],
    ) -> bool:
        """Note the line if it has the spelling; return whether it has."""
        before, data, start, end = at
        earlier = found.get(spelling)
        if earlier and earlier.times >= _MOST_READ:
            found[spelling] = earlier._replace(times=earlier.times + 1)
            return True
        raw = data[start:end]
        if spelling.fallback and b" INFO " in raw:
            return False
        if len(raw) > 2 * _AROUND_BYTES:  # a huge line: its head, which names the rank, and the part with the anchor
            middle = raw.lower().find(spelling.anchor)
            raw = raw[:200] + b" " + raw[max(200, middle - _AROUND_BYTES) : middle + _AROUND_BYTES]
        line = plain(raw.decode("utf-8", "replace"))
        match = spelling.pattern.search(line)
        if match is None:
            return False
        values = match.groupdict()
        head = (
            (before + data[:start])[-_AROUND_BYTES:] if start < _AROUND_BYTES else data[start - _AROUND_BYTES : start]
        )
        above = plain_lines(head)
        if spelling.near or spelling.unless:
            around = "\n".join((above, line, plain_lines(data[end : end + _AROUND_BYTES])))
            beside = spelling.near.search(around) if spelling.near else None
            if (spelling.near and not beside) or (spelling.unless and spelling.unless.search(around)):
                return False
            values |= beside.groupdict() if beside else {}
        texts.setdefault(spelling, set()).add(match[0])
        record = _record(above) if "exitcode" in line else Place()
        time = when(line) or next(filter(None, map(when, reversed(above.split("\n")))), None)
        if earlier and not (time and earlier.time and time < earlier.time):
            found[spelling] = earlier._replace(times=earlier.times + 1)
            return True
        own = place(line, of_file)
        own = Place(own.rank if record.rank is None else record.rank, record.node or own.node)
        values = {name: value for name, value in values.items() if value}
        times = earlier.times + 1 if earlier else 1
        found[spelling] = Sighting(spelling, file, number, excerpt(line, match.start()), own, time, times, values)
        return True


def _record(above: str) -> Place:
    """Return the rank and node of a failure in torchrun's report, from the lines above its exit code."""
    hosts, ranks = _HOST.findall(above[-400:]), _RANK.findall(above[-400:])
    return Place(int(ranks[-1]) if ranks else None, hosts[-1] if hosts else None)


def plain_lines(raw: bytes) -> str:
    """Return the text of several lines without control characters."""
    return "\n".join(plain(line) for line in raw.decode("utf-8", "replace").split("\n"))


def excerpt(line: str, at: int) -> str:
    """Return about 160 characters of a line around a position, with ellipses where it is cut."""
    line, at = line.strip(), at - (len(line) - len(line.lstrip()))
    if len(line) <= _SHOWN:
        return line
    start = max(0, min(at - _SHOWN_BEFORE, len(line) - _SHOWN))
    return f"{'…' if start else ''}{line[start : start + _SHOWN].strip()}{'…' if start + _SHOWN < len(line) else ''}"
