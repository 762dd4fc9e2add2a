"""The lines of a log that may have a known wording, each with what is around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from distcheck.explain.places import When, message, plain, when
from distcheck.explain.spelling import Pattern

AROUND_BYTES = 4000
"""How far `near` and `unless` look, and how much of a huge line is searched."""
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


class LogLine:
    """A line of a log with the lines around it, decoded once and only where needed."""

    def __init__(self, before: bytes, data: bytes, line: Candidate, anchor: bytes) -> None:
        """Take a line of `data`, a piece of a log, and the end of the piece before it."""
        self._before, self._data, self._start, self._end = before, data, line.start, line.end
        self.raw = data[line.start : line.end]
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
        """Return the match of a pattern in the line, also if it begins behind prefixes."""
        return pattern.search(self.text) or (pattern.search(self._message) if pattern.at_start else None)

    @cached_property
    def above(self) -> str:
        """The lines above it."""
        head = self._data[max(0, self._start - AROUND_BYTES) : self._start]
        missing = AROUND_BYTES - len(head)
        return _plain_lines((self._before[-missing:] if missing else b"") + head)

    @cached_property
    def around(self) -> str:
        """The line with those above and below it."""
        return f"{self.above}\n{self.text}\n{self._below}"

    @cached_property
    def _below(self) -> str:
        return _plain_lines(self._data[self._end : self._end + AROUND_BYTES])

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
        _, above, between = self._data[max(0, self._start - _REASON_BYTES) : self._start].rpartition(_REASON)
        return bool(above and not between.strip()) or _REASON in self.raw


def _plain_lines(raw: bytes) -> str:
    """Return the text of several lines without control characters."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" not in text and text.replace("\n", "").isprintable():
        return text
    return "\n".join(plain(line) for line in text.split("\n"))
