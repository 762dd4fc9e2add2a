"""Fits an operation's time to a straight line over its size: a latency and a bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from statistics import median
from typing import NamedTuple

_FEWEST = 3
_ROUNDS = 20
_FAR = 4.685
"""Tukey's biweight: a point this many deviations away has no weight.
Source: https://en.wikipedia.org/wiki/Robust_regression (M-estimation)"""
_SMALLEST_DEVIATION = 1e-3
_ROUNDING_SECONDS = 1e-9
"""No call is as quick: a smaller latency is what rounding leaves of none."""


class Curve(NamedTuple):
    """t = latency + bytes / rate."""

    latency_seconds: float
    bytes_per_second: float
    error: float
    """The median over the sizes of the relative distance from the line."""

    @property
    def half_bytes(self) -> float:
        """The size that reaches half of the bandwidth."""
        return self.latency_seconds * self.bytes_per_second


def fit(points: Iterable[tuple[int, float]]) -> Curve | None:
    """Return the line through sizes in bytes and their seconds.

    None for fewer than three sizes, and if larger ones take no longer. Every size has the same weight: its distance
    from the line counts as a share of its time. A size that is far off (another algorithm, a disturbance) gradually
    loses its weight.
    """
    known = [(float(size), seconds) for size, seconds in points if seconds > 0]
    if len({size for size, _ in known}) < _FEWEST:
        return None
    weights = [1.0] * len(known)
    line = _line(known, weights)
    for _ in range(_ROUNDS):
        if line is None:
            return None
        off = [(line[0] + line[1] * size) / seconds - 1 for size, seconds in known]
        scale = max(median(map(abs, off)) / 0.6745, _SMALLEST_DEVIATION)
        weights = [(1 - min(1.0, (o / (_FAR * scale)) ** 2)) ** 2 for o in off]
        before, line = line, _line(known, weights)
        if line is not None and abs(line[1] - before[1]) <= 1e-9 * before[1] and abs(line[0] - before[0]) <= 1e-12:
            break
    if line is None:
        return None
    off = [abs((line[0] + line[1] * size) / seconds - 1) for size, seconds in known]
    return Curve(line[0], 1 / line[1], median(off))


def _line(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float] | None:
    """Return latency and seconds per byte by weighted least squares, neither negative."""
    # Divided by its time, every point should satisfy latency * (1 / t) + slope * (s / t) = 1. fsum, because from Python
    # 3.12 on sum rounds in another way than before.
    rows = [(1 / t, s / t, w) for (s, t), w in zip(points, weights, strict=True)]
    aa = fsum(w * a * a for a, _, w in rows)
    ab = fsum(w * a * b for a, b, w in rows)
    bb = fsum(w * b * b for _, b, w in rows)
    a1 = fsum(w * a for a, _, w in rows)
    b1 = fsum(w * b for _, b, w in rows)
    determinant = aa * bb - ab * ab
    if bb <= 0 or determinant <= 1e-12 * aa * bb:
        return None
    latency = (a1 * bb - b1 * ab) / determinant
    slope = (b1 * aa - a1 * ab) / determinant
    if latency < _ROUNDING_SECONDS:
        latency, slope = 0.0, b1 / bb
    return (latency, slope) if slope > 0 else None
