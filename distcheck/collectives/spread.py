"""How sure a median is; imported without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

CONFIDENCE = 0.95
STEADY = 0.02
"""A figure is steady when its median is known to this share of itself."""


def interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return between which two of the samples their true median lies, with a confidence of 95 % or more.

    By their order alone, whatever their distribution; None for fewer than 6, which cannot tell.
    Source: https://en.wikipedia.org/wiki/Median#Confidence_interval (binomial order statistics)
    """
    number = len(samples)
    outside, cut = 0.0, 0
    # Fewer than `cut` samples below the median, or above it, come about in less than 1 of 20 cases.
    while (outside := outside + math.comb(number, cut) / 2**number) <= (1 - CONFIDENCE) / 2:
        cut += 1
    if cut == 0:
        return None
    ordered = sorted(samples)
    return ordered[cut - 1], ordered[number - cut]


def uncertainty(samples: Sequence[float]) -> float | None:
    """Return by which share of itself the median may be off, None when that cannot be told."""
    known = interval(samples)
    middle = median(samples) if samples else 0.0
    if known is None or middle <= 0:
        return None
    return max(middle - known[0], known[1] - middle) / middle


def at_least(samples: Sequence[float]) -> float | None:
    """Return the share of the median that it surely is, None when that cannot be told.

    A few slow bursts make a median uncertain upwards, by more than itself; they do not make it smaller.
    """
    known = interval(samples)
    middle = median(samples) if samples else 0.0
    return None if known is None or middle <= 0 else known[0] / middle
