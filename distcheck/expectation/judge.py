"""The expectation for an operation, and how a measured figure compares with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from distcheck.expectation.curve import LEAST_SHARE, share_at

Rung = Literal["given", "baseline", "nccl", "derived", "none"]
Standing = Literal["ok", "low", "too low", "not judged"]

LOW = 0.9
TOO_LOW = 0.8


class Expectation(msgspec.Struct, frozen=True):
    """The expected bus bandwidth of one operation on its plateau, and its source."""

    op: str
    ranks: int
    low_GBps: float | None = None  # noqa: N815 the unit's own spelling
    """The lower end of the usual range; only figures clearly below it are a shortfall."""
    value_GBps: float | None = None  # noqa: N815
    """The usual figure; None without an expectation."""
    most_GBps: float | None = None  # noqa: N815
    """The upper end of the usual range, with any algorithm."""
    high_GBps: float | None = None  # noqa: N815
    """The physical bound; None if unknown."""
    rung: Rung = "none"
    source: str = ""
    """One sentence: the numbers behind the expectation, or why there is none."""
    certain: bool = False
    """Whether a shortfall is a fault and cannot be an error of the model."""
    curve: Mapping[int, float] | None = None
    """Share of the plateau by size; None: the figure holds for every size."""
    figures: Mapping[int, float] | None = None
    """GB/s by size, if known; then other sizes have no expectation."""

    def share(self, size_bytes: int) -> float | None:
        """Return the usual share of the plateau at a size, None if unknown or latency dominates."""
        if self.figures is not None:
            return (
                self.figures[size_bytes] / self.value_GBps if self.value_GBps and size_bytes in self.figures else None
            )
        if self.curve is None:
            return 1.0
        share = share_at(self.curve, size_bytes)
        return None if share is None or share < LEAST_SHARE else share

    def at(self, size_bytes: int) -> float | None:
        """Return the usual figure at a size in GB/s, None without an expectation."""
        share = self.share(size_bytes)
        return None if share is None or self.value_GBps is None else share * self.value_GBps


def judge(measured_GBps: float | None, expected: Expectation, share_of_plateau: float | None = 1.0) -> Standing:  # noqa: N803
    """Return how a figure compares with the expectation.

    `share_of_plateau` is the share of the plateau that its size usually reaches.
    """
    if measured_GBps is None or expected.low_GBps is None or not share_of_plateau:
        return "not judged"
    least = expected.low_GBps * share_of_plateau
    if measured_GBps < TOO_LOW * least:
        return "too low"
    if measured_GBps < LOW * least:
        return "low"
    return "ok"


def impossible(threshold_GBps: float, expected: Expectation) -> bool:  # noqa: N803 the unit's own spelling
    """Return whether a threshold is above what the hardware can reach."""
    return expected.high_GBps is not None and threshold_GBps > expected.high_GBps
