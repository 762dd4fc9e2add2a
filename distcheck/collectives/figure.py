"""One figure: bursts of an operation at one size until their median is steady, after an exact check."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distcheck.collectives import nccl_debug
from distcheck.collectives.operations import check_elements, prepare, wrong_elements
from distcheck.collectives.plan import Checked, Ended, FirstBurst, Plan, Timing
from distcheck.collectives.spread import STEADY, uncertainty
from distcheck.collectives.store import agree
from distcheck.collectives.timing import first_call, iterations_for, meet, seconds_per_call, warm_up
from distcheck.facts.base import SHORTEST_SECONDS
from distcheck.probe.waiting import CpuWait

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

    from distcheck.collectives.operations import Group

_STEADY, _OVER = 1, 2
_FEWEST_ROUGH = 2
_LONGER = 9.0
"""How many times its share of time a figure may take beyond it for the fewest bursts."""


def check(op: str, dtype: str, group: Group, name: str = "") -> Checked:
    """Return the exact check of an operation, called `name` if given, and the time of its first call."""
    exercise = prepare(op, group, check_elements(op, group.ranks))
    first = first_call(exercise.call, group.device)
    wrong = wrong_elements(exercise)
    return Checked(name or op, dtype, exercise.received.numel(), wrong, first)


def measure(
    plan: Plan,
    op: str,
    dtype: str,
    moved: int,
    group: Group,
    store: Store,
    gather: Callable[[], None] | None = None,
    fewest: int = 1,
    say: Callable[[FirstBurst], None] | None = None,
    *,
    watch_cpus: bool = False,
) -> Timing:
    """Return one size's timing; its buffers are freed before the next size's are made.

    Rank 0 of the world decides how many calls a burst has and whether another one follows: with unequal numbers some
    ranks would wait forever. `gather` waits for all ranks that take part; by default they are the whole world. The
    `fewest` bursts are made unless they take far longer than a figure may. Rank 0 tells `say` of the first one, if more
    follow. With `watch_cpus` the timing has how long this rank waited for CPUs.
    """
    leads = group.in_world(group.rank) == 0
    gather = gather or (lambda: meet(group.device))
    key = f"{op} {dtype} {moved}"
    start = time.perf_counter()
    call = prepare(op, group, moved // group.exact.dtype.itemsize).call
    seconds = warm_up(call, gather, calls=1 if plan.rough else 3)
    iterations = plan.iterations
    if iterations is None:
        iterations = agree(store, key, _calls(plan, seconds) if leads else None)
    bursts: list[float] = []
    waited: list[float] = []
    ended: Ended = "asked"
    while True:
        with nccl_debug.quiet(backend=plan.backend):
            gather()
            wait = CpuWait() if watch_cpus else None
            bursts.append(max(seconds_per_call(call, iterations, group.device), SHORTEST_SECONDS))
            waited += [wait.seconds() / iterations] if wait else []
        if len(bursts) >= fewest and (plan.iterations is not None or not plan.size_seconds):
            break
        verdict = None
        if leads and say is not None and len(bursts) == 1:
            say(FirstBurst(moved, bursts[0]))
        if leads:
            # Another burst takes about as long as the last one.
            left = plan.size_seconds - (time.perf_counter() - start) - bursts[-1] * iterations
            verdict = _how_it_stands(bursts, left if len(bursts) >= fewest else left + _LONGER * plan.size_seconds)
        said = agree(store, f"{key} after {len(bursts)}", verdict)
        if said:
            ended = "steady" if said == _STEADY else "time"
            break
    return Timing(op, moved, dtype, iterations, tuple(bursts), ended, tuple(waited))


def _calls(plan: Plan, seconds: float) -> int:
    """Return how many calls of this duration fill a burst; of slow ones two are enough for a rough figure."""
    slow = plan.rough and _FEWEST_ROUGH * seconds >= plan.burst_seconds
    return _FEWEST_ROUGH if slow else iterations_for(seconds, plan.burst_seconds)


def _how_it_stands(bursts: list[float], seconds_left: float) -> int:
    """Return whether a figure is steady, its time is up, or (0) another burst is needed."""
    off = uncertainty(bursts)
    if off is not None and off <= STEADY:
        return _STEADY
    return _OVER if seconds_left < 0 else 0
