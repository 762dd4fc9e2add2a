"""Goals in seconds, met or not at any hour: what something takes beside a Python loop in the same run.

The cores of a virtual machine are at some hours half as fast as at others. A goal in seconds is meant for a core at its
usual speed, so the row compares what was measured with what a loop takes, right before and after, that lasts as long as
the goal at that speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.ratio import Pair, Row, at_most, compared

STEPS = 75_000_000
"""Of an empty loop in a second: the middle of the tables of November 2026 in hours without a slow host (65 to 88)."""
_SHARE = 0.2


def slowness() -> float:
    """Return how many seconds of CPU the steps of one usual second take now."""
    steps = range(int(_SHARE * STEPS))
    start = time.process_time()
    for _ in steps:
        pass
    return (time.process_time() - start) / _SHARE


def beside_a_loop(measure: Callable[[], float]) -> Pair:
    """Return what something takes and the slowness around it."""
    before = slowness()
    return measure(), (before + slowness()) / 2


def against_a_loop(
    name: str, runs: Sequence[Pair], goal: float, unit: str = "s", costs: Mapping[str, float] | None = None
) -> Row:
    """Return the row of something, of which each run has what it took and the slowness.

    Args:
        name: what was measured.
        runs: what `beside_a_loop` returns.
        goal: what it may take at most at the usual speed, in `unit`.
        unit: of what it took: s or ms.
        costs: as a row has them; see `usual`.
    """
    pairs = [(took, goal * slow) for took, slow in runs]
    return compared(f"{name} / a loop of {goal:.3g} {unit}", pairs, at_most(1.0), costs)._replace(unit=unit)


def usual(runs: Sequence[Pair]) -> float:
    """Return what something takes at the usual speed."""
    return median(took / slow for took, slow in runs)
