"""The functions of libraries in which ranks are, on request: py-spy stops a rank meanwhile and may double its step.

A rank with a thread in state D would stop py-spy for ever, and one that is stopped cannot be read; both are left alone.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.hang import Frame, RankProcess, RunningJob, Thread
from distcheck.probe.hang import stacks
from distcheck.probe.kernel_files import contents


def added(job: RunningJob, program: str, seconds: float) -> RunningJob:
    """Return a job with the native functions of its ranks, read in `seconds`; none stays stopped."""
    able = [rank.pid for rank in job.ranks if not _states(rank.pid) & set("DTtZX")]
    found = stacks.dumps(program, able, seconds, native=True)
    for pid in able:
        if "T" in _states(pid):  # py-spy was killed in between
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)
    return replace(job, ranks=tuple(replace(r, native=_native(r, found.get(r.pid))) for r in job.ranks))


def _native(rank: RankProcess, dump: stacks.Dump | None) -> tuple[Frame, ...] | Missing:
    if dump is None:
        return Missing(reason="a thread is stopped or in state D: py-spy --native would wait for it")
    if isinstance(dump.threads, Missing):
        return dump.threads
    if _innermost(dump.threads) != _innermost(rank.moments[-1].threads):
        return Missing(reason="it went on meanwhile")
    return dump.native


def _innermost(threads: tuple[Thread, ...] | Missing | None) -> Frame | None:
    main = next((each for each in threads if each.main), None) if isinstance(threads, tuple) else None
    return next(iter(main.frames), None) if main else None


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads; X if it is gone."""
    found = (contents(path).rpartition(")")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {fields[0] for fields in found if fields} or {"X"}
