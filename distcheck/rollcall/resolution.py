"""Name resolution with a time limit, although the system's resolver may block forever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.probe import network
from distcheck.rollcall import connection

_PAUSE_SECONDS = 0.5
_T = TypeVar("_T")


async def in_thread(call: Callable[[], _T]) -> _T:
    """Run a call that may block forever in a daemon thread; a cancelled wait abandons it.

    asyncio joins its own executor when the loop ends, so a hanging resolver would hang distcheck too.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # a result wherever there is no error

    def work() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 raised in the waiting task
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(settle, result, failed)

    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:  # no further thread may start; the watchdog ends a call that blocks
        return call()
    return await future


async def resolve(name: str, seconds: float, patience: float = 0.0) -> Resolution | Missing:
    """Resolve a name within `seconds`; an unknown name is retried for `patience` seconds."""
    loop = asyncio.get_running_loop()
    start, tries = loop.time(), 0
    while True:
        tries += 1
        try:
            found = await connection.within(in_thread(lambda: network.resolve(name)), seconds)
        except asyncio.TimeoutError:
            return network.unanswered(seconds)
        if isinstance(found, Resolution):
            took = loop.time() - start
            return msgspec.structs.replace(found, tries=tries, seconds=took) if tries > 1 else found
        if loop.time() - start + _PAUSE_SECONDS > patience:
            return found
        await asyncio.sleep(_PAUSE_SECONDS)
