"""Parses what NCCL's RAS answers to VERBOSE STATUS: text since NCCL 2.24, JSON since 2.28.7.

RAS reports by communicator; only those with as many ranks as the job are read, so that their rank numbers are the
job's. Each counts its own operations, so ranks are compared within one. The text names only groups of less than half of
the ranks; JSON has every rank.

Source: the RAS page of NCCL's user guide (troubleshooting/ras), and NVIDIA/nccl, src/ras/client_support.cc, from 2.24.3
to 2.30.7: rasClientRunComms writes the text, rasDumpCommsToJSON the JSON.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from distcheck.facts.base import Count, Missing, Rank, Whole
from distcheck.facts.nccl import Ras, RasBehind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

_MOST_WORDS, _LONGEST = 16, 160
_MOST_GROUPS, _DIGITS = 16, 9
_GROUP = re.compile(r"\s*(\d{1,9})\s+\d+\s+\d+\s+\d+(?:-\d+)?\s+(\d{1,9})\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*")
"""A row of the table of communicators: its number, and the ranks of each communicator."""
_SECTION = re.compile(r"#(?P<group>\d{1,9})-(?P<place>\d{1,9}) \([0-9a-f]+\) (?P<error>[A-Z]+)")
"""The heading of what is wrong with one communicator: its group in the table, and its place there."""
_MISSING_NUMBER = re.compile(r"  Missing communicator data from (\d{1,9}) ranks?")
_MISSING_RANKS = re.compile(r"  The missing ranks?: ([\d,]+)")
_COUNTS_DIFFER = re.compile(r"  Communicator ranks have different (\w{1,40}) operation counts")
_LAUNCHED = r"(?:launched up to operation (\d{1,18})|not launched any operations)"
_MANY = re.compile(rf"  (\d{{1,9}}) ranks have {_LAUNCHED}")
_ONE = re.compile(rf"  Rank (\d{{1,9}}) has {_LAUNCHED}")
_RANK = re.compile(r"  Rank (\d{1,9}) -- ")
_CODE_OK, _CODE_IN_PROGRESS = 0, 7
"""ncclSuccess and ncclInProgress, which are no errors."""


class _Status(msgspec.Struct):
    init_state: Whole = 0
    async_error: Whole = 0
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: Rank
    status: _Status
    collective_counts: dict[str, Count] = {}


class _Communicator(msgspec.Struct):
    size: Count
    ranks: list[_Rank]
    missing_ranks: list[_Rank]


class _Collection(msgspec.Struct):
    timeouts_count: Count = 0


class _Answer(msgspec.Struct):
    communicators: list[_Communicator]
    ras: _Collection


_DECODER = msgspec.json.Decoder(_Answer)


def parse(answer: bytes, asked: int, world_size: int) -> Ras | Missing:
    """Return what RAS says about the communicators of all ranks; `asked` is the rank that answered.

    A text or document that is incomplete, or of another format, is Missing.
    """
    if answer.lstrip()[:1] == b"{":
        try:
            said = _DECODER.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Missing(reason="its JSON is not the documented one")
        return _of_json(said, asked, world_size)
    text = answer.decode("utf-8", "replace")
    if not _is_complete(text):
        return Missing(reason="its text is incomplete or of an unknown format")
    return _of_text(text, asked, world_size)


def _is_complete(text: str) -> bool:
    """Return whether the headings are there, in order; the last one is, even if there are no warnings."""
    at = 0
    for heading in ("\nCommunicators...", "\nErrors\n", "\nWarnings\n"):
        at = text.find(heading, at) + 1
        if at == 0:
            return False
    return True


def _of_json(said: _Answer, asked: int, world_size: int) -> Ras | Missing:
    whole = [c for c in said.communicators if c.size == world_size]
    if not whole:
        return _no_communicator(world_size)
    theirs = [[rank for rank in c.ranks if 0 <= rank.rank < world_size] for c in whole]
    gone = [rank for c in whole for rank in c.missing_ranks if 0 <= rank.rank < world_size]
    dead = {rank.rank for rank in gone if rank.status.considered_dead}
    silent = dead | {rank.rank for rank in gone if rank.status.unresponsive}
    errors = [
        f"rank {rank.rank}: {name} {code}"
        for rank in chain(*theirs)
        for name, code in (("init_state", rank.status.init_state), ("async_error", rank.status.async_error))
        if code not in {_CODE_OK, _CODE_IN_PROGRESS}
    ]
    outside = {rank.rank for rank in gone} - silent
    errors += [f"rank {n} answers but is not in the communicator" for n in sorted(outside)]
    if said.ras.timeouts_count:
        errors.append(f"{said.ras.timeouts_count} timeouts while RAS collected data")
    return Ras(
        rank=asked,
        missing=tuple(sorted(silent)),
        missing_number=len(silent),
        dead=tuple(sorted(dead)),
        behind=_first(_MOST_GROUPS, chain(*map(_behind_in_json, theirs))),
        words=_first(_MOST_WORDS, errors),
    )


def _behind_in_json(ranks: Iterable[_Rank]) -> Iterable[RasBehind]:
    """Yield the ranks of one communicator that launched fewer operations than another one there."""
    counts: dict[str, dict[int, int]] = defaultdict(dict)
    for rank in ranks:
        for operation, count in rank.collective_counts.items():
            counts[_clean(operation)][rank.rank] = count
    for operation, of in counts.items():
        yield from _behind(operation, of)


def _behind(operation: str, counts: Mapping[int, int]) -> Iterable[RasBehind]:
    """Yield the ranks that launched fewer operations than another, the fewest first."""
    most = max(counts.values(), default=0)
    groups: dict[int, list[int]] = defaultdict(list)
    for rank, count in counts.items():
        if count < most:
            groups[count].append(rank)
    for launched in sorted(groups):
        ranks = sorted(groups[launched])
        yield RasBehind(operation=operation, launched=launched, most=most, number=len(ranks), ranks=tuple(ranks))


class _Counted:
    """Ranks with the same number of operations, in the text."""

    def __init__(self, launched: str | None, number: int) -> None:
        self.launched, self.number = int(launched or 0), number
        self.ranks: list[int] = []


def _of_text(text: str, asked: int, world_size: int) -> Ras | Missing:
    table, _, rest = text.partition("\nErrors\n")
    lines = rest.splitlines()
    rows = [row for row in map(_GROUP.fullmatch, table.splitlines()) if row]
    whole = {row[1] for row in rows if int(row[2]) == world_size}
    if not whole:
        return _no_communicator(world_size)
    missing: set[int] = set()
    number = 0
    counts: dict[tuple[str, str, str], list[_Counted]] = defaultdict(list)
    here, operation, communicator = "", "", ("", "")
    for line in lines:
        if section := _SECTION.match(line):
            here, operation = section["error"] if section["group"] in whole else "", ""
            communicator = section["group"], section["place"]
        elif not line.startswith(" "):
            here = ""
        elif here == "INCOMPLETE":
            if found := _MISSING_NUMBER.match(line):
                number = max(number, int(found[1]))
            elif found := _MISSING_RANKS.match(line):
                missing |= {int(n) for n in found[1].split(",") if 0 < len(n) <= _DIGITS}
            elif found := _RANK.match(line):
                missing.add(int(found[1]))
        elif here == "MISMATCH":
            if line.startswith("  Communicator ranks have different "):
                found = _COUNTS_DIFFER.match(line)
                operation = found[1] if found else ""
            elif operation:
                _count(counts[(*communicator, operation)], line)
    known = {n for n in missing if n < world_size}
    words = (line.strip() for line in lines if line.strip(" =") not in {"", "Warnings"})
    return Ras(
        rank=asked,
        missing=tuple(sorted(known)),
        missing_number=max(number, len(known)),
        behind=_first(
            _MOST_GROUPS,
            (b for (*_, name), groups in counts.items() for b in _behind_in_text(name, groups, world_size)),
        ),
        words=tuple(islice(map(_clean, words), _MOST_WORDS)),
    )


def _count(groups: list[_Counted], line: str) -> None:
    if found := _MANY.match(line):
        groups.append(_Counted(found[2], int(found[1])))
    elif found := _ONE.match(line):
        groups.append(_Counted(found[2], 1))
        groups[-1].ranks.append(int(found[1]))
    elif groups and (found := _RANK.match(line)):
        groups[-1].ranks.append(int(found[1]))


def _behind_in_text(operation: str, groups: list[_Counted], world_size: int) -> Iterable[RasBehind]:
    most = max((group.launched for group in groups), default=0)
    for group in sorted(groups, key=lambda g: g.launched):
        if group.launched < most:
            ranks = tuple(sorted({n for n in group.ranks if n < world_size}))
            yield RasBehind(operation=operation, launched=group.launched, most=most, number=group.number, ranks=ranks)


def _first(most: int, found: Iterable[T]) -> tuple[T, ...]:
    """Return the first of what was found, each once: two communicators may have the same to say."""
    return tuple(islice(dict.fromkeys(found), most))


def _no_communicator(world_size: int) -> Missing:
    return Missing(reason=f"it knows no communicator of {world_size} ranks")


def _clean(text: str) -> str:
    """Return a short text without control characters."""
    return "".join(c for c in text[:_LONGEST] if c.isprintable())
