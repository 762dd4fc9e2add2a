"""The charts of an operation's bus bandwidth over sizes: measured with its noise, expected, and the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from distcheck.collectives.plan import label
from distcheck.expectation.of_job import saved
from distcheck.facts.job import Job
from distcheck.facts.quantities import size
from distcheck.report.figures import figure
from distcheck.report.schema.document import Document
from distcheck.report.schema.figures import Bandwidth
from distcheck.rules.wording import grouped

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 424, 16, 214
"""The plot's edges in the drawing."""

Point = tuple[float, float]


class Chart(NamedTuple):
    """One operation, in SVG coordinates; a line is in the format of a polyline."""

    name: str
    points: list[tuple[float, float, str]]
    """x, y and tooltip of each measured figure."""
    measured: str
    noise: str
    """Outline of the band of uncertainty; empty if it is unknown."""
    expected: str
    baseline: str
    sizes: list[tuple[float, str]]
    speeds: list[tuple[float, str]]
    summary: str
    """The chart in one sentence, for those who do not see it."""


def charts(job: Job, report: Document) -> list[Chart]:
    """Return a chart of each operation that was measured at two sizes or more, on the same axes."""
    known = [row for row in report.bandwidth if row.busbw_GBps is not None and row.bytes > 0 and row.group == "world"]
    by_name = grouped(known, lambda row: label(row.op, row.dtype)).items()
    curves = {name: sorted(rows, key=lambda row: row.bytes) for name, rows in by_name if len(rows) > 1}
    before = saved(job)
    return [_chart(name, rows, before[name].by_size or {} if name in before else {}) for name, rows in curves.items()]


def _chart(name: str, rows: list[Bandwidth], before: Mapping[int, float]) -> Chart:
    speeds = [(row.bytes, row.busbw_GBps or 0.0) for row in rows]
    expected = [(row.bytes, row.expected_GBps.value) for row in rows if row.expected_GBps.value is not None]
    old = sorted((number, speed) for number, speed in before.items() if rows[0].bytes <= number <= rows[-1].bytes)
    top = _round_up(max(speed for _, speed in (*speeds, *expected, *old)))
    first, last = rows[0].bytes, rows[-1].bytes

    def at(number: float, speed: float) -> Point:
        share = math.log(number / first) / math.log(last / first) if last > first else 0.5
        return LEFT + share * (RIGHT - LEFT), BOTTOM - speed / top * (BOTTOM - TOP)

    every = -(-len(rows) // 5)
    (small, slow), (large, fast) = speeds[0], speeds[-1]
    return Chart(
        name=name,
        points=[(*at(row.bytes, row.busbw_GBps or 0.0), _tooltip(name, row)) for row in rows],
        measured=_line(speeds, at),
        noise=_band(rows, at, top),
        expected=_line(expected, at),
        baseline=_line(old, at),
        sizes=[(at(row.bytes, 0)[0], size(row.bytes)) for row in rows[::every]],
        speeds=[(at(first, top * n / 4)[1], f"{top * n / 4:g}") for n in range(5)],
        summary=f"{name}: bus bandwidth from {figure(slow)} GB/s at {size(small)} "
        f"to {figure(fast)} GB/s at {size(large)}",
    )


def _tooltip(name: str, row: Bandwidth) -> str:
    noise = f" ± {row.uncertainty:.1%}" if row.uncertainty is not None else ""
    wanted = row.expected_GBps.value
    expected = f", expected {figure(wanted)} GB/s" if wanted is not None else ""
    return f"{name}, {size(row.bytes)}: {figure(row.busbw_GBps)} GB/s{noise}{expected}"


def _line(figures: Iterable[tuple[int, float]], at: Callable[[float, float], Point]) -> str:
    points = [at(*one) for one in figures]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points) if len(points) > 1 else ""


def _band(rows: list[Bandwidth], at: Callable[[float, float], Point], top: float) -> str:
    """Return the outline of what the figures may be, given their uncertainty."""
    known = [(row.bytes, row.busbw_GBps or 0.0, min(row.uncertainty, 0.9)) for row in rows if row.uncertainty]
    if len(known) < 2:
        return ""
    upper = [(number, min(top, speed / (1 - off))) for number, speed, off in known]
    lower = [(number, speed / (1 + off)) for number, speed, off in reversed(known)]
    return _line([*upper, *lower], at)


def _round_up(speed: float) -> float:
    """Return the next 1, 2, 4 or 8 times a power of ten, whose quarters are short numbers."""
    power = 10.0 ** math.floor(math.log10(speed)) if speed > 0 else 1.0
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= speed)
