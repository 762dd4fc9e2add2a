"""A line that has a known wording: who wrote it, when, and what it says."""

from __future__ import annotations

import re
from typing import NamedTuple

from distcheck.explain.lines import LogLine
from distcheck.explain.places import Place, When, place
from distcheck.explain.redaction import shown
from distcheck.explain.spelling import Spelling

_SHOWN_BEFORE, _SHOWN = 60, 160
_WARNING = re.compile(r"(?:^|[\s\[|:-])WARNING[\s\]|:]")
_RECORD = 6
"""Lines of torchrun's report above an exit code that have its rank and node."""
_SETTING = re.compile(r"\b([A-Z][A-Z0-9_]{3,})['\"]?(?: ?[=:]| set (?:by|to)\b)")
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
    warning: bool = False
    """Whether the line is of level WARNING and no reason of an error: what writes it goes on."""
    reason: bool = False
    """Whether the line has what a library adds to its return code, as NCCL does after "Last error:"."""
    settings: frozenset[str] = frozenset()
    """Variables that the lines around show as set."""

    @property
    def tags(self) -> frozenset[str]:
        """What the code asks of the answer that the spelling leads to."""
        return self.spelling.tags


def sighting(spelling: Spelling, line: LogLine, file: str, number: int, of_file: Place) -> Sighting | None:
    """Return the sighting of a spelling in a line; None if the line, or what is around it, does not have it."""
    match = line.match(spelling.pattern)
    if match is None or (spelling.unless and spelling.unless.search(line.around)):
        return None
    if spelling.trace and not spelling.trace.search(line.trace):
        return None
    values = match.groupdict()
    if spelling.near:
        beside = spelling.near.search(line.around)
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
    warning = not line.is_reason and bool(_WARNING.search(line.text, 0, match.start() + 1))
    return Sighting(
        spelling, file, number, excerpt(text, at.start()), own, time, 1, values, warning, line.is_reason,
        frozenset(_SETTING.findall(line.around)) if spelling.rules else frozenset(),
    )  # fmt: skip


def earliest(known: Sighting | None, seen: Sighting) -> Sighting:
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


def excerpt(line: str, at: int) -> str:
    """Return about 160 characters of a line around a position, with ellipses where it is cut."""
    line, at = line.strip(), at - (len(line) - len(line.lstrip()))
    if len(line) <= _SHOWN:
        return line
    start = max(0, min(at - _SHOWN_BEFORE, len(line) - _SHOWN))
    return f"{'…' if start else ''}{line[start : start + _SHOWN].strip()}{'…' if start + _SHOWN < len(line) else ''}"
