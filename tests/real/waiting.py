"""Wait until something holds, and fail if it does not in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 40.0
"""More than anything takes here, on a machine on which other tests run."""


def until(condition: Callable[[], T], seconds: float = SECONDS) -> T:
    """Return the condition's value as soon as it is true."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"it did not come to that within {seconds:g} s"
        time.sleep(0.05)
    return answer


async def soon(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Let other tasks run until the condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come to that within {seconds:g} s"
        await asyncio.sleep(0.01)
