"""Finds the lines of a log that match known spellings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import NamedTuple

from distcheck.explain.places import NOWHERE, Place, When, message, place, plain, when
from distcheck.explain.reading import Piece
from distcheck.explain.redaction import shown
from distcheck.explain.spelling import NOISE, Pattern, Spelling, anchors, precedence, trie

_AROUND_BYTES = 4000
"""How far `near` and `unless` look, and how much of a huge line is searched."""
_SHOWN_BEFORE, _SHOWN = 60, 160
_KNOWN_LINES = 200_000
"""Different lines without a known message that are remembered, so that repeated lines cost next to nothing."""
_LONGEST_KNOWN_BYTES = 500
"""A longer line is searched again when it is repeated, so that memory stays bounded."""
_MOST_READ = 100
"""Lines that differ in digits only, and are read for values, rank and time; further ones are only counted."""
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(
    r"""^(?:.*", line \d.*(?:\n(?!.*", line \d).* {4}\S.*)?(?:\n[^\w\n]*[~^][ ~^]*$)?|(?:\[\w+\]: ?)? {2,}\S.*)$""",
    re.MULTILINE,
)
"""A file's line in a traceback with the code below it and what marks a part of that, or an indented line."""
_MOST_SEEN = 1000
"""Lines of a log with one spelling that are read for values, rank and time; further ones are only counted."""
_NARROWEST, _WIDEST = 40, 250
"""Columns of a terminal."""
_SHINGLE_BYTES = 4
_DIGITS = b"0123456789"
_NO_ERROR = re.compile(rb" INFO |(?:^|[\s\[|:-])(?:WARNING|[A-Z][a-z]+Warning)[\s\]|:]")
"""The level of a line whose program goes on, so that only a known message counts."""
_WARNING = re.compile(r"(?:^|[\s\[|:-])WARNING[\s\]|:]")
_REASON = b"last error:"
_RECORD = 6
"""Lines of torchrun's report above an exit code that have its rank and node."""
_SETTING = re.compile(r"\b([A-Z][A-Z0-9_]{3,})['\"]?(?: ?[=:]| set (?:by|to)\b)")
_CLOCK = re.compile(r"\d:\d\d:\d")
_HOST, _RANK = re.compile(r"\bhost\s+: (\S+)"), re.compile(r"\brank\s*: (\d+) \(local_rank")


class Sighting(NamedTuple):
    """The earliest line of a log that has a spelling."""

    spelling: Spelling
    file: str
    line: int
    text: str
    """About 160 characters around the match, redacted."""
    place: Place
    time: When | None
    times: int
    values: dict[str, str]
    """The named groups of the patterns."""
    matched: str = ""
    warning: bool = False
    """Whether the line is of level WARNING: what writes it goes on."""
    reason: bool = False
    """Whether the line has what a library adds to its return code, as NCCL does after "Last error:"."""
    settings: frozenset[str] = frozenset()
    """Variables that the lines around show as set."""

    @property
    def tags(self) -> frozenset[str]:
        """What the code asks of the answer that the spelling leads to."""
        return self.spelling.tags


class _Candidate(NamedTuple):
    """A line that may have a spelling, by its place in a piece."""

    number: int
    start: int
    end: int
    key: bytes
    """The line in lower case, without digits."""
    glue: bytes | None
    """What joins two lines that are one, wrapped by a terminal or a logger; None for a line as it stands."""


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
        texts: dict[int, set[str]] = {}
        looked: dict[bytes, int] = {}
        dull: set[bytes] = set()
        before = b""
        for piece in pieces:
            surroundings = _Surroundings(before, piece.data)
            for candidate in self._candidates(piece, dull):
                key = candidate.key
                candidates = self._with[key]
                looked[key] = times = looked.get(key, 0) + 1
                if times > _MOST_READ:
                    alone = candidates if candidate.glue is None else ()
                    again = [id(one) for one in alone if id(one) in found and one.weight > NOISE]
                    found |= {one: found[one]._replace(times=found[one].times + 1) for one in again}
                    if not again and len(key) <= _LONGEST_KNOWN_BYTES:
                        dull.add(key)
                    continue
                line = _Line(surroundings, candidate, candidates[0].anchor)
                matched = False
                for spelling in candidates:
                    if spelling.fallback and (matched or line.halves or _NO_ERROR.search(line.raw)):
                        continue
                    known = found.get(id(spelling))
                    if known and known.times >= _MOST_SEEN and not spelling.twice:
                        if line.match(spelling.pattern):
                            matched = True
                            found[id(spelling)] = known._replace(times=known.times + 1)
                        continue
                    if seen := _sighting(spelling, line, file, candidate.number, of_file):
                        matched = True
                        found[id(spelling)] = _earliest(known, seen)
                        if spelling.twice:
                            texts.setdefault(id(spelling), set()).add(seen.matched)
            before = piece.data[-_AROUND_BYTES:]
            if len(looked) > _KNOWN_LINES:
                looked.clear()
                dull.clear()
        return [seen for one, seen in found.items() if not seen.spelling.twice or seen.times > len(texts[one])]

    def _candidates(self, piece: Piece, dull: set[bytes]) -> Iterator[_Candidate]:
        """Yield the lines that have an anchor, and are not dull; also lines that are one, wrapped at the edge."""
        lines = piece.data.split(b"\n")
        keys = piece.data.lower().translate(None, _DIGITS).split(b"\n")
        joined = [(at, glue, keys[at] + glue + keys[at + 1]) for at, glue in _wrapped(lines)]
        different = {*keys, *(key for _, _, key in joined)}
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
        every = ((at, at + 1, key, None) for at, key in enumerate(keys))
        for first, last, key, glue in (*every, *((at, at + 2, key, glue) for at, glue, key in joined)):
            if key in wanted and key not in dull:
                yield _Candidate(piece.first_line + first, starts[first], starts[last] - 1, key, glue)
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


def _wrapped(lines: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return the number of each line that a terminal may have cut at its last column, and what joins it to the next.

    The next one begins after a space where the terminal cut there and the line has lost it.
    """
    lengths = [len(line) for line in lines]
    width = max(lengths)
    if not _NARROWEST <= width <= _WIDEST:
        return []
    return [(at, b"" if n == width else b" ") for at, n in enumerate(lengths[:-1]) if n >= width - 1]


class _Surroundings:
    """A piece of a log with the end of the piece before it."""

    def __init__(self, before: bytes, data: bytes) -> None:
        self.before, self.data = before, data
        self._present: dict[str, tuple[str, ...]] = {}

    @cached_property
    def _lower(self) -> bytes:
        return (self.before + self.data).lower()

    def present(self, pattern: str) -> tuple[str, ...]:
        """Return the anchors of a pattern that occur in the piece; all if escape sequences may hide them."""
        if pattern not in self._present:
            escapes = b"\x1b" in self._lower
            found = tuple(part for part in anchors(pattern) if escapes or part.encode() in self._lower)
            self._present[pattern] = found
        return self._present[pattern]


class _Line:
    """A line of a log with the lines around it, decoded once and only where needed."""

    def __init__(self, piece: _Surroundings, line: _Candidate, anchor: bytes) -> None:
        self._piece, self._start, self._end = piece, line.start, line.end
        self.raw = piece.data[line.start : line.end]
        self.halves: tuple[str, ...] = ()
        """The two lines that are one, wrapped by a terminal or a logger."""
        if line.glue is not None:
            first, _, second = self.raw.partition(b"\n")
            self.halves = tuple(plain(half.decode("utf-8", "replace")) for half in (first, second))
            self.raw = first + line.glue + second
        if (
            len(self.raw) > 2 * _AROUND_BYTES
        ):  # a huge line: its head, which names the rank, and the part with the anchor
            middle = self.raw.lower().find(anchor)
            self.raw = self.raw[:200] + b" " + self.raw[max(200, middle - _AROUND_BYTES) : middle + _AROUND_BYTES]

    @cached_property
    def text(self) -> str:
        return plain(self.raw.decode("utf-8", "replace"))

    @cached_property
    def _message(self) -> str:
        return message(self.text)

    def match(self, pattern: Pattern) -> re.Match[str] | None:
        """Return the match of a pattern in the line, also if it begins behind prefixes, or only both halves have it."""
        match = pattern.search(self.text)
        if match is None and pattern.at_start:
            match = pattern.search(self._message)
        return None if match and any(map(pattern.search, self.halves)) else match

    @cached_property
    def above(self) -> str:
        head = self._piece.data[max(0, self._start - _AROUND_BYTES) : self._start]
        missing = _AROUND_BYTES - len(head)
        return plain_lines((self._piece.before[-missing:] if missing else b"") + head)

    @cached_property
    def around(self) -> str:
        return f"{self.above}\n{self.text}\n{self._below}"

    @cached_property
    def _below(self) -> str:
        return plain_lines(self._piece.data[self._end : self._end + _AROUND_BYTES])

    @cached_property
    def trace(self) -> str:
        """The frames of the traceback that ends in this line, or begins there; without what others write between."""
        if _TRACEBACK in self.text:
            return "\n".join(_FRAME.findall(self._below))
        _, head, frames = self.above.rpartition(_TRACEBACK)
        return "\n".join([head, *_FRAME.findall(frames), self.text])

    @cached_property
    def time(self) -> When | None:
        """The line's own time, or that of the nearest line above."""
        return when(self.text) or next(filter(None, map(when, self._clocks())), None)

    def _clocks(self) -> Iterator[str]:
        """Yield the lines above that have a time of day, the nearest first."""
        if _CLOCK.search(self.above):
            yield from (line for line in reversed(self.above.split("\n")) if _CLOCK.search(line))

    @cached_property
    def is_reason(self) -> bool:
        """Whether the line has, or is below, the words with which NCCL adds the reason to its return code."""
        return _REASON in self._piece.data[max(0, self._start - _SHOWN) : self._end].lower()

    @cached_property
    def around_lower(self) -> str:
        return self.around.lower()

    def has_anchor(self, pattern: Pattern) -> bool:
        """Whether the lines around may match a pattern: whether they have one of its anchors."""
        return any(part in self.around_lower for part in self._piece.present(pattern.pattern))

    def find_around(self, pattern: Pattern) -> re.Match[str] | None:
        """Return the match of a pattern in the lines around."""
        return pattern.search(self.around) if self.has_anchor(pattern) else None


def _sighting(spelling: Spelling, line: _Line, file: str, number: int, of_file: Place) -> Sighting | None:
    """Return the sighting of a spelling in a line; None if the line, or what is around it, does not have it."""
    match = line.match(spelling.pattern)
    if match is None or (spelling.unless and line.find_around(spelling.unless)):
        return None
    if spelling.trace and not (line.has_anchor(spelling.trace) and spelling.trace.search(line.trace)):
        return None
    values = match.groupdict()
    if spelling.near:
        beside = line.find_around(spelling.near)
        if beside is None:
            return None
        values |= beside.groupdict()
    values = {name: value for name, value in values.items() if value}
    if spelling.only and not spelling.only(values):
        return None
    own, time = place(line.text, of_file), line.time
    if "exitcode" in match[0]:
        record = _record(line.above)
        own = own._replace(node=record.node or own.node)
        own = own if record.rank is None else own._replace(rank=record.rank, of_task=False)
        if time and "Root Cause" in _last_lines(line.above):  # of failures in the same second, it is the first
            time = (*time[:2], time[2] - 1)
    text = shown(line.text)  # before it is cut: "password=" may be cut off, and the password not
    at = spelling.pattern.search(text) or match
    warning = bool(_WARNING.search(line.text, 0, match.start() + 1))
    return Sighting(
        spelling, file, number, excerpt(text, at.start()), own, time, 1, values, match[0], warning, line.is_reason,
        frozenset(_SETTING.findall(line.around)) if spelling.rules else frozenset(),
    )  # fmt: skip


def _earliest(known: Sighting | None, seen: Sighting) -> Sighting:
    """Return the earlier of two sightings of a spelling, rather one that is no warning, with the number of both."""
    if known is None:
        return seen
    earlier = seen if known.time and seen.time and seen.time < known.time else known
    if known.warning != seen.warning:
        earlier = seen if known.warning else known
    return earlier._replace(times=known.times + 1)


def _record(above: str) -> Place:
    """Return the rank and node of a failure in torchrun's report, from the lines above its exit code."""
    record = _last_lines(above)
    hosts, ranks = _HOST.findall(record), _RANK.findall(record)
    return Place(int(ranks[-1]) if ranks else None, hosts[-1] if hosts else None)


def _last_lines(above: str) -> str:
    return "\n".join(above.rstrip("\n").rsplit("\n", _RECORD)[-_RECORD:])


def plain_lines(raw: bytes) -> str:
    """Return the text of several lines without control characters."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" not in text and text.replace("\n", "").isprintable():
        return text
    return "\n".join(plain(line) for line in text.split("\n"))


def excerpt(line: str, at: int) -> str:
    """Return about 160 characters of a line around a position, with ellipses where it is cut."""
    line, at = line.strip(), at - (len(line) - len(line.lstrip()))
    if len(line) <= _SHOWN:
        return line
    start = max(0, min(at - _SHOWN_BEFORE, len(line) - _SHOWN))
    return f"{'…' if start else ''}{line[start : start + _SHOWN].strip()}{'…' if start + _SHOWN < len(line) else ''}"
