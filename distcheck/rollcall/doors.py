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
from distcheck.rollcall import connection
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
    """Sent by the peer first; empty without a token."""
    answer: bytes
    """Sent by the endpoint: who listens here, so that a process does not take itself for a peer."""

    @property
    def datagram(self) -> bytes:
        """The bytes that a datagram begins with."""
        return self.knock or self.answer


def peer_handshake(nonce: str, uid: str, secret: bytes | None = None) -> PeerHandshake:
    """Return the handshake at the endpoint of `uid` in the round of this nonce.

    With a token both sides prove that they know it, and neither proof can be replayed.
    """
    if secret is None:
        return PeerHandshake(b"", f"{nonce} {uid}\n".encode())
    from distcheck.rollcall import seal

    knock = seal.knock(secret, nonce)
    return PeerHandshake(knock, seal.answer(secret, nonce, uid, knock))


class PeerListener:
    """Endpoints for peers: they identify themselves and count the data that arrives."""

    def __init__(self, uid: str, secret: bytes | None = None) -> None:
        self._uid, self._secret = uid, secret
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
        """Return the answer to a datagram; None for a stranger's, or without a roster."""
        if not self._nonce.done() or self._nonce.cancelled():
            return None
        nonce = self._nonce.result()
        if self._secret is None:
            said = peer_handshake(nonce, self._uid).answer
            return said if data.startswith(said) else None
        from distcheck.rollcall import seal

        knock = data[: seal.KNOCK_BYTES]
        return seal.answer(self._secret, nonce, self._uid, knock) if seal.is_knock(self._secret, nonce, knock) else None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talking[writer] = None
        if len(self._talking) > _MOST_TALKING:
            oldest = next(iter(self._talking))
            del self._talking[oldest]
            oldest.transport.abort()
        try:
            nonce = await asyncio.wait_for(asyncio.shield(self._nonce), _ROSTER_SECONDS)
            writer.write(await self._greeting(reader, nonce))
            waited = waited_for_cpu()
            count = await connection.within(_swallow(reader), _CONVERSATION_SECONDS)
            writer.write(ANSWER.pack(count, waited_for_cpu() - waited))
            await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError, asyncio.TimeoutError):
            pass
        finally:
            self._talking.pop(writer, None)
            writer.close()

    async def _greeting(self, reader: asyncio.StreamReader, nonce: str) -> bytes:
        """Return the endpoint's answer; with a token, the peer must prove it first."""
        if self._secret is None:
            return peer_handshake(nonce, self._uid).answer
        from distcheck.rollcall import seal

        knock = await connection.within(reader.readexactly(seal.KNOCK_BYTES), _KNOCK_SECONDS)
        if not seal.is_knock(self._secret, nonce, knock):
            raise EOFError
        return seal.answer(self._secret, nonce, self._uid, knock)


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
