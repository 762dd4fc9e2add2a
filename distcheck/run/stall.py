"""Whether collectives go on: when they hang, the time that is left is for finding out by whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from distcheck.collectives.plan import Plan

STALL_SECONDS, LOOK_SECONDS = 10.0, 0.5
"""Collectives in which nothing goes on for so long, after the first figure, hang."""


class Pace:
    """Whether the collectives go on, as rank 0 shows it: they go at the pace of the slowest."""

    def __init__(self, tell: Callable[[str, int], None]) -> None:
        self._tell = tell
        self._last = time.monotonic()
        self._longest = 0.0
        self._figures = 0
        self.stands_still = False
        """Whether it was told that nothing goes on."""

    def step(self, text: str, figures: int) -> None:
        """Take note of what rank 0 does next, and of how many figures it has."""
        now = time.monotonic()
        if figures:
            self._longest = max(self._longest, now - self._last)
        self._last, self._figures = now, figures
        self._tell(text, figures)

    async def watch(self, plan: Plan, trouble: Callable[[str], None], first_seconds: float) -> None:
        """Tell when nothing goes on any more; the first figure may take `first_seconds`."""
        began = time.monotonic()
        while not self.stands_still:
            await asyncio.sleep(LOOK_SECONDS)
            # A size is four times the last one, and a slow network is no hang.
            patience = max(STALL_SECONDS, 4 * plan.size_seconds, 10 * self._longest)
            now = time.monotonic()
            silent = now - (self._last if self._figures else began)
            if silent > (patience if self._figures else first_seconds):
                self.stands_still = True
                trouble(f"no progress for {silent:.0f} s" if self._figures else f"no figure within {silent:.0f} s")
