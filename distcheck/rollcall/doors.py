"""The endpoints for peers: ephemeral TCP and UDP ports at every address in use.

These are the addresses of NCCL, Gloo and the roll call.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from distcheck.facts.network import Use
from distcheck.probe.waiting import waited_for_cpu
from distcheck.rollcall import connection, seal
from distcheck.rollcall.protocol import PeerDoor

_BACKLOG = 1024
_ROSTER_SECONDS = 10.0
_KNOCK_SECONDS = 5.0
_CONVERSATION_SECONDS = 10.0
_MOST_TALKING = 512
"""At most 64 others test a node, at a few endpoints each; beyond that the oldest connection is closed."""
_CHUNK_BYTES = 1 << 18
_MOST_BYTES = 1 << 24
"""The most bytes read from one connection; a peer sends less."""
COUNT_BYTES = 8
ANSWER = struct.Struct("!Qd")
"""The reply after a transfer: the bytes received, and the seconds for which the reader waited for a CPU."""


class PeerHandshake(NamedTuple):
    """The handshake at a peer endpoint."""

    knock: bytes
    """Sent by the peer first."""
    answer: bytes
    """Sent by the endpoint: who listens here, so that a process does not take itself for a peer."""


def peer_handshake(nonce: str, uid: str, secret: bytes | None = None) -> PeerHandshake:
    """Return a new handshake at the endpoint of `uid` in the round of this nonce.

    Both sides prove that they know the round, and the token if there is one; neither proof can be replayed.
    """
    knock = seal.knock(secret or b"", nonce)
    return PeerHandshake(knock, seal.answer(secret or b"", nonce, uid, knock))


class PeerListener:
    """Endpoints for peers: they identify themselves and count the data that arrives."""

    def __init__(self, uid: str, secret: bytes | None = None) -> None:
        self._uid, self._secret = uid, secret or b""
        self._nonce: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._servers: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._talking: dict[asyncio.StreamWriter, None] = {}
        self.doors: tuple[PeerDoor, ...] = ()

    async def open(self, addresses: Mapping[str, tuple[Use, ...]]) -> None:
        """Listen at these addresses, given with their uses; skip those that cannot be bound."""
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
            transport, _ = await loop.create_datagram_endpoint(lambda: _Echo(self._answer_to), local_addr=(address, 0))
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

    def _answer_to(self, data: bytes) -> bytes | None:
        """Return the answer to a peer's knock; None for a stranger's, or without a roster."""
        if not self._nonce.done() or self._nonce.cancelled():
            return None
        nonce, knock = self._nonce.result(), data[: seal.KNOCK_BYTES]
        return seal.answer(self._secret, nonce, self._uid, knock) if seal.is_knock(self._secret, nonce, knock) else None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talking[writer] = None
        if len(self._talking) > _MOST_TALKING:
            oldest = next(iter(self._talking))
            del self._talking[oldest]
            oldest.transport.abort()
        try:
            await asyncio.wait_for(asyncio.shield(self._nonce), _ROSTER_SECONDS)
            knock = await connection.within(reader.readexactly(seal.KNOCK_BYTES), _KNOCK_SECONDS)
            if (answer := self._answer_to(knock)) is None:
                return
            writer.write(answer)
            waited = waited_for_cpu()
            count = await connection.within(_swallow(reader), _CONVERSATION_SECONDS)
            writer.write(ANSWER.pack(count, waited_for_cpu() - waited))
            await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError, asyncio.TimeoutError):
            pass
        finally:
            self._talking.pop(writer, None)
            writer.close()


class _Echo(asyncio.DatagramProtocol):
    """Answers a peer's datagram with a shorter one: the endpoint's answer and the size."""

    def __init__(self, answer_to: Callable[[bytes], bytes | None]) -> None:
        self._answer_to = answer_to
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a datagram transport for this protocol

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        word = self._answer_to(data)
        if word and self._transport is not None:
            self._transport.sendto(word + len(data).to_bytes(COUNT_BYTES, "big"), addr)


async def _swallow(reader: asyncio.StreamReader) -> int:
    """Read to the end and return the number of bytes; after a mere handshake it is 0."""
    count = 0
    while count < _MOST_BYTES and (chunk := await reader.read(_CHUNK_BYTES)):
        count += len(chunk)
    return count
