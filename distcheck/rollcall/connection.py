"""The connections of the roll call: small segments, a few tries, an end when the other side is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

SEGMENT_BYTES = 536
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # Who has lost its power or its cable closes nothing: after 14 s without an answer the kernel does.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 14_000),
)
"""Maximum TCP segment: a path that loses large packets must not lose the facts that tell of it."""

_CONNECT_TRIES, _CONNECT_PAUSE_SECONDS = 4, 0.5
_T = TypeVar("_T")


async def within(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Return what `work` returns, or raise asyncio.TimeoutError when it takes longer.

    Unlike asyncio.wait_for it loses no exception when it is itself cancelled while `work` ends; the loop would print
    one that is lost.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


def prepare(sock: socket.socket) -> None:
    """Keep the segments small and the answers quick, and notice a host that is gone without a word.

    Sockets that cannot are used as they are.
    """
    for level, option, value in _OPTIONS:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)


async def connect(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a numeric address in small segments.

    Raises:
        OSError: as the kernel says it.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        prepare(sock)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
        return await asyncio.open_connection(sock=sock)
    except BaseException:
        sock.close()
        raise


async def connect_again(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as `connect` does, beginning anew every half second, a few times, while there is no answer.

    On a path that loses packets the kernel alone tries too rarely, and that is no shut door.
    """
    tries: list[asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = []
    kept = None
    try:
        while True:
            if len(tries) < _CONNECT_TRIES:
                tries.append(asyncio.create_task(connect(address, port)))
            patience = _CONNECT_PAUSE_SECONDS if len(tries) < _CONNECT_TRIES else None
            done, _ = await asyncio.wait(tries, timeout=patience, return_when="FIRST_COMPLETED")
            if done:
                kept = next((t for t in done if t.exception() is None), next(iter(done)))
                return kept.result()
    finally:
        for task in tries:
            if task is not kept:
                task.add_done_callback(_close_connection)
                task.cancel()


def _close_connection(task: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].close()


def words_of(error: OSError) -> str:
    """Return the system's own words for an error; asyncio's repeat the address instead."""
    return f"{os.strerror(error.errno)} (errno {error.errno})" if error.errno else str(error)


def plain_address(address: str) -> str:
    """Return the IPv4 address inside an IPv6-mapped one, any other address as it is."""
    return address.removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Whether an address reaches its own host only."""
    return address.startswith("127.") or address == "::1"


def is_address(text: str) -> bool:
    """Whether a text is an IP address, for which no resolver is asked."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, text)
            return True
    return False
