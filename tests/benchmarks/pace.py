"""Goals in seconds, met or not at any hour: what something takes beside a walk over many objects in the same run.

The cores of a virtual machine are at some hours half as fast as at others, its memory too, and not by the same factor.
A goal in seconds is meant for a machine at its usual speed. So the row compares what was measured with what a walk
takes, right before and after, that lasts as long as the goal at that speed. A leader waits for memory as much as for
the core: it reads a few fields of many objects, and the walk does the same. On one machine, beside a program that
copies memory, judging 65,536 ranks took 45 % longer, the walk 30 % and an empty loop no longer at all.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.ratio import Pair, Row, at_most, compared

USUAL_SECONDS = 0.068
"""Of a round at the usual speed: what commit 7464c27f takes to judge 65,536 ranks is 88.3 rounds, and usually took
6.0 s. That is in the tables of 27 November 2026, of hosts whose loops were as fast as most (70 to 78 million steps/s).
"""
_OBJECTS = 200_000
_ROUNDS = 10


class _Facts(msgspec.Struct, gc=False):
    """What is walked over, as large as a part of a rank's facts."""

    number: int
    name: str
    variables: dict[str, str]


def _round(several: Sequence[_Facts]) -> float:
    """Return the seconds of CPU to read all of them, to group them, and to note something about each."""
    start = time.process_time()
    odd = [f for f in several if f.number < 0 or f.variables.get("rank") != f.name[4:]]
    odd += [f for f in several if f.variables["size"] != "1024"]
    alike = len(several) - len({f.variables["rank"] for f in several})
    rows = [(f, f.name, f.variables) for f in several]
    took = time.process_time() - start
    if odd or alike or len(rows) != len(several):
        raise AssertionError("the facts are not those that were made")
    return took


def main() -> None:
    gc.disable()
    several = [_Facts(n, f"node{n}", {"rank": str(n), "size": "1024"}) for n in range(_OBJECTS)]
    _round(several)  # the first one waits for memory that is new to the process
    print(sum(_round(several) for _ in range(_ROUNDS)) / (_ROUNDS * USUAL_SECONDS))


def slowness() -> float:
    """Return how many seconds of CPU the walk of one usual second takes now; a process of its own has its own heap."""
    return float(subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True).stdout)


def beside_a_walk(measure: Callable[[], float]) -> Pair:
    """Return what something takes and the slowness around it."""
    before = slowness()
    return measure(), (before + slowness()) / 2


def against_a_walk(
    name: str, runs: Sequence[Pair], goal: float, unit: str = "s", costs: Mapping[str, float] | None = None
) -> Row:
    """Return the row of something, of which each run has what it took and the slowness.

    Args:
        name: what was measured.
        runs: what `beside_a_walk` returns.
        goal: what it may take at most at the usual speed, in `unit`.
        unit: of what it took: s or ms.
        costs: as a row has them; see `usual`.
    """
    pairs = [(took, goal * slow) for took, slow in runs]
    return compared(f"{name} / a walk of {goal:.3g} {unit}", pairs, at_most(1.0), costs)._replace(unit=unit)


def usual(runs: Sequence[Pair]) -> float:
    """Return what something takes at the usual speed."""
    return median(took / slow for took, slow in runs)


if __name__ == "__main__":
    main()
