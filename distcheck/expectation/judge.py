"""What is expected of an operation, and how a measured figure stands to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from distcheck.expectation.curve import LEAST_SHARE, share_at

Rung = Literal["given", "baseline", "nccl", "derived", "published", "none"]
Standing = Literal["ok", "low", "too low", "above", "not judged"]

LOW = 0.9
TOO_LOW = 0.8
ABOVE = 1.1


class Expectation(msgspec.Struct, frozen=True):
    """The bus bandwidth of one operation on its plateau, and where that comes from."""

    op: str
    ranks: int
    low_GBps: float | None = None  # noqa: N815 the unit's own spelling
    """The least that is usual; only what is clearly below it is a shortfall."""
    value_GBps: float | None = None  # noqa: N815
    """What is usual; None where nothing is expected."""
    most_GBps: float | None = None  # noqa: N815
    """The most that is usual, by whatever algorithm may be used."""
    high_GBps: float | None = None  # noqa: N815
    """What cannot be exceeded; None where that is not known."""
    rung: Rung = "none"
    source: str = ""
    """One sentence: the numbers it was made of, or why there is none."""
    certain: bool = False
    """Whether a shortfall is a fault, and not perhaps the model's."""
    curve: Mapping[int, float] | None = None
    """Share of the plateau by size; None: the figure holds for every size."""
    figures: Mapping[int, float] | None = None
    """GB/s by size, where they are known as such; then nothing is expected of other sizes."""

    def share(self, size_bytes: int) -> float | None:
        """Return what a size usually reaches of the plateau, None where latency decides or nothing is known."""
        if self.figures is not None:
            return (
                self.figures[size_bytes] / self.value_GBps if self.value_GBps and size_bytes in self.figures else None
            )
        if self.curve is None:
            return 1.0
        share = share_at(self.curve, size_bytes)
        return None if share is None or share < LEAST_SHARE else share

    def at(self, size_bytes: int) -> float | None:
        """Return what is usual at a size in GB/s, None where nothing is expected."""
        share = self.share(size_bytes)
        return None if share is None or self.value_GBps is None else share * self.value_GBps


def judge(measured_GBps: float | None, expected: Expectation, share_of_plateau: float | None = 1.0) -> Standing:  # noqa: N803
    """Say how a figure stands to what is expected; `share_of_plateau` is what its size usually reaches of it."""
    if measured_GBps is None or expected.low_GBps is None or expected.most_GBps is None or not share_of_plateau:
        return "not judged"
    least = expected.low_GBps * share_of_plateau
    if measured_GBps < TOO_LOW * least:
        return "too low"
    if measured_GBps < LOW * least:
        return "low"
    # A small message may be quicker here than where the curve was measured; the plateau is no matter of size.
    return "above" if measured_GBps > ABOVE * expected.most_GBps else "ok"


def impossible(threshold_GBps: float, expected: Expectation) -> bool:  # noqa: N803 the unit's own spelling
    """Tell whether a threshold is above what the hardware can reach."""
    return expected.high_GBps is not None and threshold_GBps > expected.high_GBps
