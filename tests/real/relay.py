"""A relay between the followers of a roll call and its leader: it records all frames and can change them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from distcheck.rollcall.wire import HEADER

REFLECTED = b"reflected"
"""Stands for: back to whoever said it."""
Change = Callable[[str, int, bytes], list[bytes]]


def _unchanged(_who: str, _number: int, frame: bytes) -> list[bytes]:
    return [frame]


@contextlib.asynccontextmanager
async def relay(port: int, change: Change = _unchanged) -> AsyncIterator[tuple[int, dict[str, list[bytes]]]]:
    """Stand between followers and a leader; yield the port and what was sent. `change` alters each frame."""
    said: dict[str, list[bytes]] = {"follower": [], "leader": []}
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def carry(who, reader, writer, back):
        number = 0
        with contextlib.suppress(EOFError, OSError, asyncio.IncompleteReadError):
            while True:
                header = await reader.readexactly(HEADER.size)
                frame = header + await reader.readexactly(HEADER.unpack(header)[1])
                said[who].append(frame)
                for changed in change(who, number, frame):
                    (back if changed is REFLECTED else writer).write(frame if changed is REFLECTED else changed)
                number += 1
        writer.close()

    async def connect(reader, writer):
        to_leader = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, to_leader[1]))
        for task in (
            asyncio.ensure_future(carry("follower", reader, to_leader[1], writer)),
            asyncio.ensure_future(carry("leader", to_leader[0], writer, to_leader[1])),
        ):
            tasks.add(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], said
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)
