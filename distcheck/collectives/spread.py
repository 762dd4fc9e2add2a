"""The confidence interval of a median; imported without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

CONFIDENCE = 0.95
STEADY = 0.02
"""A figure is steady if its median is known to this share of itself."""


def interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the two samples that enclose the true median with at least 95 % confidence.

    It uses only their order, so any distribution is allowed; None for fewer than 6, which do not suffice.
    Source: https://en.wikipedia.org/wiki/Median#Confidence_interval (binomial order statistics)
    """
    number = len(samples)
    outside, cut = 0.0, 0
    # Fewer than `cut` samples below the median, or above it, occur in less than 1 of 20 cases.
    while (outside := outside + math.comb(number, cut) / 2**number) <= (1 - CONFIDENCE) / 2:
        cut += 1
    if cut == 0:
        return None
    ordered = sorted(samples)
    return ordered[cut - 1], ordered[number - cut]


def uncertainty(samples: Sequence[float]) -> float | None:
    """Return the median's relative uncertainty, None if it is unknown."""
    known = interval(samples)
    middle = median(samples) if samples else 0.0
    if known is None or middle <= 0:
        return None
    return max(middle - known[0], known[1] - middle) / middle


def at_least(samples: Sequence[float]) -> float | None:
    """Return the median's lower bound as a share of it, None if it is unknown.

    A few slow bursts make a median uncertain upwards, by more than itself, but not downwards.
    """
    known = interval(samples)
    middle = median(samples) if samples else 0.0
    return None if known is None or middle <= 0 else known[0] / middle
