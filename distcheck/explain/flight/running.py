"""Says of a running job what the dumps tell that its ranks have written."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from distcheck.explain.flight.answer import flight_explained
from distcheck.facts.errors import UsageError
from distcheck.facts.hang import RankProcess, Recorded, RunningJob
from distcheck.probe.hang.dumps import file_of, written
from distcheck.rules.hang.judging import answer

_WAITED_SECONDS = 5
"""Ranks of a healthy job are in a call, too, but not for so long before they write their dumps."""
_MOST_BYTES = 8 << 20
"""Of all dumps together: 2,000 calls with their stacks are 0.3 MB, and take 0.5 s to read."""


def recorded(hang: RunningJob) -> RunningJob:
    """Return a job with what its ranks' dumps say together, if stacks do not decide and they can be read from here."""
    dumps = [rank.dump for rank in hang.ranks if rank.dump]
    if not dumps or sum(dump.size for dump in dumps) > _MOST_BYTES or not answer(hang).undecided:
        return hang
    files = tuple(file for rank in hang.ranks if (file := _file(rank)))
    return replace(hang, recorded=_said(files, min(dump.written for dump in dumps))) if files else hang


@lru_cache(4)  # a longer look finds the same dumps
def _said(files: tuple[Path, ...], at: float) -> Recorded | None:
    try:
        found = flight_explained(files, [])
    except UsageError:
        return None
    calls = [call for call in found.ranks if call.state not in {"completed", "ended"}]
    since = max((call.called_at_ns for call in calls), default=0) / 1e9
    waiting = tuple(sorted(rank for call in calls for rank in call.ranks))
    cause = min(found.causes, key=lambda cause: (cause.kind == "deadlock") * len(cause.ranks), default=None)
    if cause is None or cause.kind == "missing" or at < since + _WAITED_SECONDS:
        return None
    if cause.kind == "deadlock" and 2 * len(cause.ranks) >= len(waiting):  # each side waits for the other
        return None
    return Recorded(cause.text, cause.ranks, waiting)


def _file(rank: RankProcess) -> Path | None:
    """Return the file of a rank's dump; that of a rank on another node may be on a shared file system."""
    dump = rank.dump
    if dump is None:
        return None
    for root in (False, True):
        with suppress(OSError, ValueError):
            file = file_of(rank.pid, dump.path) if root else Path(dump.path)
            if written(file) == (dump.written, dump.size):
                return file
    return None
