"""The lines of a log that may have a known wording, each with what is around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from distcheck.explain.places import When, message, plain, when
from distcheck.explain.spelling import Pattern, anchors

AROUND_BYTES = 4000
"""How far `near` and `unless` look, and how much of a huge line is searched."""
_NARROWEST, _WIDEST = 40, 250
"""Columns of a terminal."""
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(
    r"""^(?:.*", line \d.*(?:\n(?!.*", line \d).* {4}\S.*)?(?:\n[^\w\n]*[~^][ ~^]*$)?|(?:\[\w+\]: ?)? {2,}\S.*)$""",
    re.MULTILINE,
)
"""A file's line in a traceback with the code below it and what marks a part of that, or an indented line."""
_REASON, _REASON_BYTES = b"Last error:", 20
"""What NCCL writes before the reason of a return code, and how far above that it may begin."""
_CLOCK = re.compile(r"\d:\d\d:\d")


class Candidate(NamedTuple):
    """A line that may have a spelling, by its place in a piece."""

    number: int
    start: int
    end: int
    key: bytes
    """The line in lower case, without digits."""
    glue: bytes | None
    """What joins two lines that are one, wrapped by a terminal or a logger; None for a line as it stands."""


def wrapped(lines: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return the number of each line that a terminal may have cut at its last column, and what joins it to the next.

    The next one begins after a space where the terminal cut there and the line has lost it.
    """
    lengths = [len(line) for line in lines]
    width = max(lengths)
    if not _NARROWEST <= width <= _WIDEST:
        return []
    return [(at, b"" if n == width else b" ") for at, n in enumerate(lengths[:-1]) if n >= width - 1]


class Surroundings:
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


class LogLine:
    """A line of a log with the lines around it, decoded once and only where needed."""

    def __init__(self, piece: Surroundings, line: Candidate, anchor: bytes) -> None:
        self._piece, self._start, self._end = piece, line.start, line.end
        self.raw = piece.data[line.start : line.end]
        self.halves: tuple[str, ...] = ()
        """The two lines that are one, wrapped by a terminal or a logger."""
        if line.glue is not None:
            first, _, second = self.raw.partition(b"\n")
            self.halves = tuple(plain(half.decode("utf-8", "replace")) for half in (first, second))
            self.raw = first + line.glue + second
        if len(self.raw) > 2 * AROUND_BYTES:  # its head, which names the rank, and the part with the anchor
            middle = self.raw.lower().find(anchor)
            self.raw = self.raw[:200] + b" " + self.raw[max(200, middle - AROUND_BYTES) : middle + AROUND_BYTES]

    @cached_property
    def text(self) -> str:
        """The line without control characters."""
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
        """The lines above it."""
        head = self._piece.data[max(0, self._start - AROUND_BYTES) : self._start]
        missing = AROUND_BYTES - len(head)
        return _plain_lines((self._piece.before[-missing:] if missing else b"") + head)

    @cached_property
    def around(self) -> str:
        """The line with those above and below it."""
        return f"{self.above}\n{self.text}\n{self._below}"

    @cached_property
    def _below(self) -> str:
        return _plain_lines(self._piece.data[self._end : self._end + AROUND_BYTES])

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
        """Whether the line has, or is the first below, what NCCL writes before the reason of a return code."""
        _, above, between = self._piece.data[max(0, self._start - _REASON_BYTES) : self._start].rpartition(_REASON)
        return bool(above and not between.strip()) or _REASON in self.raw

    @cached_property
    def _around_lower(self) -> str:
        return self.around.lower()

    def has_anchor(self, pattern: Pattern) -> bool:
        """Whether the lines around may match a pattern: whether they have one of its anchors."""
        return any(part in self._around_lower for part in self._piece.present(pattern.pattern))

    def find_around(self, pattern: Pattern) -> re.Match[str] | None:
        """Return the match of a pattern in the lines around."""
        return pattern.search(self.around) if self.has_anchor(pattern) else None


def _plain_lines(raw: bytes) -> str:
    """Return the text of several lines without control characters."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" not in text and text.replace("\n", "").isprintable():
        return text
    return "\n".join(plain(line) for line in text.split("\n"))
