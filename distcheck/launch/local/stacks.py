"""Where ranks that do not end are: the kernel's calls in which they wait, and their Python stacks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from distcheck.launch.local.forkserver import TELL_STACK
from distcheck.launch.local.output import Tail
from distcheck.launch.local.rank import LocalRank
from distcheck.probe.process import mask_of, state_of, waits_in

_MOST_STACKS, _STACKS_SECONDS = 8, 1.0
_MUTE_STATES = frozenset({"T", "t", "D", "Z", "X", ""})
"""States of processes that do not handle a signal now."""


async def look_closer(ranks: Sequence[LocalRank], output: Tail) -> None:
    """Record in unfinished ranks where they are; ranks write their stacks into `output`, the first few only."""
    busy = [r for r in ranks if not r.over and r.pid is not None]
    for rank in busy:
        rank.note_silence()  # the signal may wake a hanging rank long enough to report that it is alive
    until = time.monotonic() + _STACKS_SECONDS
    for rank in busy[:_MOST_STACKS]:
        if time.monotonic() > until:
            break
        rank.waits_in = waits_in(rank.pid or 0)
        rank.stack = await stack_of(rank.pid or 0, output)


async def stack_of(pid: int, output: Tail) -> tuple[str, ...]:
    """Return a process's Python stack, innermost call first; empty if it cannot answer."""
    if state_of(pid) in _MUTE_STATES or not mask_of(pid, "SigCgt") >> TELL_STACK - 1 & 1:
        return ()
    return await output.asked(lambda: os.kill(pid, TELL_STACK))
