"""The doors for peers: at every address that NCCL, Gloo or the roll call uses, a TCP and a UDP port of the kernel's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping

from distcheck.facts import Use
from distcheck.probe.waiting import waited_for_cpu
from distcheck.rollcall import protocol
from distcheck.rollcall.protocol import PeerDoor

_BACKLOG = 1024
_ROSTER_SECONDS = 10.0
_CONVERSATION_SECONDS = 10.0
_CHUNK_BYTES = 1 << 18
_MOST_BYTES = 1 << 24
"""Whoever sends more than a peer does is none."""
COUNT_BYTES = 8
ANSWER = struct.Struct("!Qd")
"""What is said after a transfer: the bytes that came, and the seconds for which the reader waited for a CPU."""


class PeerListener:
    """Doors for peers: each says who is there, swallows what it is sent, and answers datagrams with their size."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._nonce: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._servers: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._talking: set[asyncio.StreamWriter] = set()
        self.doors: tuple[PeerDoor, ...] = ()

    async def open(self, addresses: Mapping[str, tuple[Use, ...]]) -> None:
        """Listen at these addresses, given with their uses; those that cannot be had are left out."""
        for address, uses in addresses.items():
            with contextlib.suppress(OSError):
                self.doors += (await self._open(address, uses),)

    async def _open(self, address: str, uses: tuple[Use, ...]) -> PeerDoor:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._servers.append(await asyncio.start_server(self._answer, sock=sock, backlog=_BACKLOG))
        datagram_port = None
        with contextlib.suppress(OSError):
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(lambda: _Echo(self._word), local_addr=(address, 0))
            self._datagrams.append(transport)
            datagram_port = int(transport.get_extra_info("sockname")[1])
        return PeerDoor(self._uid, address, int(sock.getsockname()[1]), uses, datagram_port)

    def expect(self, nonce: str) -> None:
        """Answer peers with this roster's nonce."""
        if not self._nonce.done():
            self._nonce.set_result(nonce)

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        for transport in self._datagrams:
            transport.close()
        for writer in self._talking:
            writer.close()
        self._nonce.cancel()

    def _word(self) -> bytes | None:
        """Return what is said at these doors, None as long as there is no roster."""
        settled = self._nonce.done() and not self._nonce.cancelled()
        return greeting(self._nonce.result(), self._uid) if settled else None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talking.add(writer)
        try:
            nonce = await asyncio.wait_for(asyncio.shield(self._nonce), _ROSTER_SECONDS)
            writer.write(greeting(nonce, self._uid))
            waited = waited_for_cpu()
            count = await protocol.within(_swallow(reader), _CONVERSATION_SECONDS)
            writer.write(ANSWER.pack(count, waited_for_cpu() - waited))
            await writer.drain()
        except (OSError, asyncio.CancelledError, asyncio.TimeoutError):
            pass
        finally:
            self._talking.discard(writer)
            writer.close()


class _Echo(asyncio.DatagramProtocol):
    """Answers a peer's datagram with the word of the door and the datagram's size: always less than was sent."""

    def __init__(self, word: object) -> None:
        self._word = word
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a datagram transport for this protocol

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        word = self._word()  # type: ignore[operator]
        if word and data.startswith(word) and self._transport is not None:
            self._transport.sendto(word + len(data).to_bytes(COUNT_BYTES, "big"), addr)


def greeting(nonce: str, uid: str) -> bytes:
    """Return what a door says: the roster's nonce and who is there, so that nobody takes himself for another."""
    return f"{nonce} {uid}\n".encode()


async def _swallow(reader: asyncio.StreamReader) -> int:
    """Read to the end and return how many bytes came; a peer that only knocks sends none."""
    count = 0
    while count < _MOST_BYTES and (chunk := await reader.read(_CHUNK_BYTES)):
        count += len(chunk)
    return count
