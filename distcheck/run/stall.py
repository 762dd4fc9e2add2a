"""Detects collectives that hang, so that time is left to find the cause.

They are ended after 10 s without progress after the first figure, or without a first figure in half of the time that
remains; slow ones continue. The time begins when every process has imported torch.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from distcheck.collectives.plan import Plan

STALL_SECONDS, LOOK_SECONDS = 10.0, 0.5
"""Seconds without progress, after the first figure, that count as a hang."""
_REPEATS_SECONDS = {"gloo": 40.0, "nccl": 80.0}
"""For a few repetitions of a case that hangs, and the report."""
_FIRST_FIGURE_SECONDS = 60.0
"""A healthy first figure may take as long: the GPUs may have to be initialized first, or the network is slow."""


class Patience(NamedTuple):
    """How long progress may take, and how far it is watched."""

    first_seconds: float
    """For the first figure."""
    figures: float = math.inf
    """After so many figures nothing is a hang."""
    seconds: float = math.inf
    """After this time nothing is a hang: too little time would be left to find its cause."""


def before_a_search(left: float) -> Patience:
    """Return how long to wait if a search follows, which takes as much time as it gets."""
    return Patience(left / 2)


def before_repeats(plan: Plan, left: float) -> Patience:
    """Return how long to wait if only the repetition of a case of the sweep follows.

    A first figure that would have too little time then may take all that is left.
    """
    repeats = _REPEATS_SECONDS[plan.backend]
    first_seconds = max(left / 2, left - repeats)
    enough = first_seconds >= _FIRST_FIGURE_SECONDS
    return Patience(first_seconds if enough else math.inf, in_sweep(plan), left - repeats / 2)


def in_sweep(plan: Plan) -> int:
    """Return the number of figures of the sweep."""
    return len(plan.operations) * len(plan.dtypes) * len(plan.sizes_bytes)


class Pace:
    """The progress of the collectives at rank 0; all ranks go at the slowest one's pace."""

    def __init__(self, tell: Callable[[str, int], None]) -> None:
        self._tell = tell
        self._last = time.monotonic()
        self._longest = 0.0
        self._figures = 0
        self.stands_still = False
        """Whether a hang was reported."""

    def step(self, text: str, figures: int) -> None:
        """Note rank 0's next step and its number of figures."""
        now = time.monotonic()
        if figures:
            self._longest = max(self._longest, now - self._last)
        self._last, self._figures = now, figures
        self._tell(text, figures)

    def silent_seconds(self) -> float:
        """Return the seconds since the last step of rank 0."""
        return time.monotonic() - self._last

    async def watch(self, plan: Plan, trouble: Callable[[str], None], patience: Patience) -> None:
        """Call `trouble` once when progress stops; slow collectives are not a hang."""
        began = time.monotonic()
        first_seconds = max(patience.first_seconds, plan.size_seconds + STALL_SECONDS)
        growth = max((large / small for small, large in pairwise(plan.sizes_bytes)), default=1.0)
        while not self.stands_still and self._figures < patience.figures:
            await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() - began > patience.seconds:
                return
            # By default each size is four times the last one; a first figure may be as slow as the network.
            leap = min(2.5 * growth * self._longest, first_seconds)
            seconds = max(STALL_SECONDS, 4 * plan.size_seconds, 10 * self._longest, leap)
            silent = time.monotonic() - (self._last if self._figures else began)
            if silent > (seconds if self._figures else first_seconds):
                self.stands_still = True
                trouble(f"no progress for {silent:.0f} s" if self._figures else f"no figure within {silent:.0f} s")
