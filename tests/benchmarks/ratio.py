"""Whether a measured ratio is within its goal, judged by the spread of its own repetitions.

Both sides of a row run in turn. Each pair of runs gives one ratio, from which what slows both alike is gone. The row's
ratio is the median of these, with an interval around it. The goal is met if the whole interval lies within it and not
met if all of it lies outside; otherwise the row is undecided, and the pairs go on until it is decided, or they are
many, or more of them would not decide it.

The interval is looked at up to ten times. Each look is wrong in 1 of 100 cases, all ten together in 1 of 20.
Source: S. J. Pocock, Group sequential methods in the design and analysis of clinical trials, Biometrika 64 (1977)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")
Interval = tuple[float, float]
Pair = tuple[float, float]
"""What ours and theirs took."""
Met = Literal["yes", "NO", "undecided"]

LOOKS = 10
CONFIDENCE = 0.99
"""Of one look."""
_STUDENT = {3: 9.925, 4: 5.841, 5: 4.604, 6: 4.032, 7: 3.707}
"""By the number of samples, Student's t for `CONFIDENCE` on both sides."""
_FEWEST_TO_GIVE_UP = 5
_NORMAL = 2.576
"""The same for many samples."""
_OF_A_MEDIAN = math.sqrt(math.pi / 2)
"""The standard error of a median in that of a mean, for normal samples; it is less for few."""


class Estimate(NamedTuple):
    """A median with the interval that holds the true one."""

    middle: float
    low: float
    high: float

    @property
    def off(self) -> float:
        """By how much the median may be off; infinite if that is unknown."""
        return max(self.middle - self.low, self.high - self.middle)


class Row(NamedTuple):
    """One line of the table; `ratio` is what `goal` bounds."""

    name: str
    ours: float | None
    theirs: float | None
    ratio: Estimate | None
    goal: Interval
    unit: str = "s"
    times: int = 1
    """How often it was measured."""
    noise: Estimate | None = None
    """The ratio of the other side to itself, where that was measured, too."""
    costs: Mapping[str, float] = {}
    """What one rank, node or host costs, by the names of docs/build_scale.py."""
    error: str = ""
    """Why it could not be measured."""

    @property
    def met(self) -> Met:
        return "NO" if self.ratio is None else judged(self.ratio, self.goal)


def at_most(bound: float) -> Interval:
    return (-math.inf, bound)


def at_least(bound: float) -> Interval:
    return (bound, math.inf)


def judged(ratio: Estimate, goal: Interval) -> Met:
    if goal[0] <= ratio.low and ratio.high <= goal[1]:
        return "yes"
    return "NO" if ratio.high < goal[0] or ratio.low > goal[1] else "undecided"


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median of samples with its interval, which is infinite for fewer than three.

    From eight samples on only their order counts, so that any distribution is allowed. Fewer do not suffice for that:
    they are taken as normal, and their few give a wide interval.
    Source: https://en.wikipedia.org/wiki/Median#Confidence_interval (binomial order statistics)
    """
    middle, number = statistics.median(samples), len(samples)
    if number < min(_STUDENT):
        return Estimate(middle, -math.inf, math.inf)
    if number in _STUDENT:
        off = _deviations(number) * statistics.stdev(samples)
        return Estimate(middle, middle - off, middle + off)
    outside, cut = 0.0, 0
    while (outside := outside + math.comb(number, cut) / 2**number) <= (1 - CONFIDENCE) / 2:
        cut += 1
    ordered = sorted(samples)
    return Estimate(middle, ordered[cut - 1], ordered[number - cut])


def _deviations(number: int) -> float:
    """Return how far off the median of so many normal samples may be, in their standard deviations."""
    return _STUDENT.get(number, _NORMAL) * _OF_A_MEDIAN / math.sqrt(number)


def hopeless(ratio: Estimate, goal: Interval, times: int, most: int) -> bool:
    """Return whether an undecided ratio would very likely be undecided after `most` repetitions, too.

    It would if even half of the interval that is expected then, around the median of now, did not decide it. What is
    expected from fewer than five repetitions says too little.
    """
    if times < _FEWEST_TO_GIVE_UP:
        return False
    shrunk = _deviations(most) / _deviations(times) / 2
    low, high = (ratio.middle + shrunk * (end - ratio.middle) for end in (ratio.low, ratio.high))
    return judged(Estimate(ratio.middle, low, high), goal) == "undecided"


def estimate_of_ratios(ratios: Iterable[float]) -> Estimate:
    """Return the same of ratios, whose logarithms are as far off upwards as downwards."""
    return Estimate(*(math.exp(value) for value in estimate([math.log(ratio) for ratio in ratios])))


def compared(name: str, pairs: Sequence[Pair], goal: Interval, costs: Mapping[str, float] | None = None) -> Row:
    """Return the row of ours / theirs."""
    ours, theirs = map(statistics.median, zip(*pairs, strict=True))
    ratio = estimate_of_ratios(a / b for a, b in pairs)
    return Row(name, ours, theirs, ratio, goal, times=len(pairs), costs=costs or {})


def beyond(name: str, pairs: Sequence[Pair], goal: Interval) -> Row:
    """Return the row of ours - theirs."""
    ours, theirs = map(statistics.median, zip(*pairs, strict=True))
    return Row(name, ours, theirs, estimate([a - b for a, b in pairs]), goal, times=len(pairs))


def of_growth(name: str, pairs: Sequence[Pair], parts: int, goal: Interval) -> Row:
    """Return the row of the exponent with which the cost of something grows with its size.

    Ours is a large one, theirs are `parts` small ones that make as much together: linear growth has exponent 1.
    """
    ours, theirs = map(statistics.median, zip(*pairs, strict=True))
    exponents = [1 + math.log(large / small) / math.log(parts) for large, small in pairs]
    return Row(name, ours, theirs, estimate(exponents), goal, times=len(pairs))


def alone(
    name: str, samples: Sequence[float], goal: Interval, unit: str = "s", costs: Mapping[str, float] | None = None
) -> Row:
    """Return the row of a figure that is compared with a fixed bound."""
    value = estimate(samples)
    return Row(name, value.middle, None, value, goal, unit, len(samples), costs=costs or {})


def counted(
    name: str, ours: float, theirs: float | None, value: float, goal: Interval, unit: str = "",
    costs: Mapping[str, float] | None = None,
) -> Row:  # fmt: skip
    """Return the row of something that is the same in every run, so that once is enough."""
    return Row(name, ours, theirs, Estimate(value, value, value), goal, unit, costs=costs or {})


def in_turn(
    ours: Callable[[], float], theirs: Callable[[], float], warm_up: Callable[[], object] | None = None
) -> Callable[[int], Pair]:
    """Return what measures a pair; who comes first changes. The warm-up is one run of each that does not count."""

    def once(number: int) -> Pair:
        if number == 0:
            warm_up() if warm_up else (ours(), theirs())
        if number % 2:
            other = theirs()
            return ours(), other
        return ours(), theirs()

    return once


def looks(fewest: int, most: int) -> list[int]:
    """Return after how many repetitions to look whether they suffice: `LOOKS` times at most."""
    return sorted({round(fewest * (most / fewest) ** (look / (LOOKS - 1))) for look in range(LOOKS)})


def until_decided(
    once: Callable[[int], T], rows: Callable[[list[T]], list[Row]], fewest: int = 3, most: int = 12
) -> list[Row]:
    """Repeat a measurement until each of its rows is decided or hopeless, and return them."""
    found: list[T] = []
    current: list[Row] = []
    for number in looks(fewest, most):
        found += [once(i) for i in range(len(found), number)]
        current = rows(found)
        if all(row.met != "undecided" or _is_hopeless(row, number, most) for row in current):
            break
    return current


def _is_hopeless(row: Row, times: int, most: int) -> bool:
    return row.ratio is not None and row.times == times and hopeless(row.ratio, row.goal, times, most)
