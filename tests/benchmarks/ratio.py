"""Whether a measured ratio is within its goal, judged by the spread of its own repetitions.

Both sides of a row run in turn. Each pair of runs gives one ratio, from which what slows both alike is gone. The row's
ratio is the median of these, with an interval around it that is wrong in 1 of 100 cases. The goal is met if the whole
interval lies within it and not met if all of it lies outside; otherwise the row is undecided, and stays so.
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

CONFIDENCE = 0.99
_STUDENT = {3: 9.925, 4: 5.841, 5: 4.604, 6: 4.032, 7: 3.707}
"""By the number of samples, Student's t for `CONFIDENCE` on both sides."""
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
        off = _STUDENT[number] * _OF_A_MEDIAN / math.sqrt(number) * statistics.stdev(samples)
        return Estimate(middle, middle - off, middle + off)
    outside, cut = 0.0, 0
    while (outside := outside + math.comb(number, cut) / 2**number) <= (1 - CONFIDENCE) / 2:
        cut += 1
    ordered = sorted(samples)
    return Estimate(middle, ordered[cut - 1], ordered[number - cut])


def quantile(samples: Sequence[float], share: float) -> Estimate:
    """Return what this share of samples does not exceed, with its interval, which is infinite where they are too few.

    Source: https://en.wikipedia.org/wiki/Order_statistic#Confidence_intervals_for_quantiles
    """
    ordered, number, below = sorted(samples), len(samples), 0.0
    low, high = -math.inf, math.inf
    for rank, value in enumerate(ordered):  # `below`: the probability that at most `rank` samples lie below it
        below += math.comb(number, rank) * share**rank * (1 - share) ** (number - rank)
        if below <= (1 - CONFIDENCE) / 2:
            low = value
        if below >= (1 + CONFIDENCE) / 2 and high == math.inf:
            high = value
    return Estimate(ordered[math.ceil(share * number) - 1], low, high)


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
    ours: Callable[[], T], theirs: Callable[[], T], times: int, warm_up: Callable[[], object] | None = None
) -> list[tuple[T, T]]:
    """Measure so many pairs; who comes first changes. The warm-up is one run of each that does not count."""
    warm_up() if warm_up else (ours(), theirs())
    pairs = []
    for number in range(times):
        if number % 2:
            other = theirs()
            pairs.append((ours(), other))
        else:
            pairs.append((ours(), theirs()))
    return pairs
