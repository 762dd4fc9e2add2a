"""The connections of the roll call: small segments, retries, dead peers detected."""

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
    # A host without power or cable closes nothing; the kernel closes the connection after 14 s without an answer.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 14_000),
)
"""Maximum TCP segment: a path that drops large packets must still carry the facts about it."""

_CONNECT_TRIES, _CONNECT_PAUSE_SECONDS = 4, 0.5
_T = TypeVar("_T")


async def within(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Return the result of `work`, or raise asyncio.TimeoutError after `seconds`.

    Unlike asyncio.wait_for it keeps the exception of `work` when it is cancelled at that moment; the loop would print a
    lost one.
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
    """Set small segments, no delay, and keepalive to detect a host that is gone.

    Options that a socket does not support are skipped.
    """
    for level, option, value in _OPTIONS:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)


async def connect(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a numeric address in small segments.

    Raises:
        OSError: the kernel's error.
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
    """Connect as `connect` does; without an answer, retry every half second, a few times.

    On a path that loses packets the kernel alone retries too rarely, which would look like a blocked port.
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
    """Return the system's text for an error; asyncio's text repeats the address instead."""
    return f"{os.strerror(error.errno)} (errno {error.errno})" if error.errno else str(error)


def plain_address(address: str) -> str:
    """Return the IPv4 address inside an IPv6-mapped one, any other address unchanged."""
    return address.removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Whether an address reaches only its own host."""
    return address.startswith("127.") or address == "::1"


def is_address(text: str) -> bool:
    """Whether a text is an IP address, which needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, text)
            return True
    return False
