"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run_live(main: Coroutine[object, object, T], seconds: float = 30) -> T:
    """Run a coroutine and return its result; whatever asyncio's loop would complain of fails the test."""
    complaints: list[dict[str, object]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        return await asyncio.wait_for(main, seconds)

    result = asyncio.run(watched())
    assert complaints == []
    return result
