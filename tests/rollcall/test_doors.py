"""The endpoints for peers: who answers, what is discarded, and which datagrams are answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from rollcall.conftest import endpoints

from distcheck.rollcall import doors, seal
from distcheck.rollcall.doors import ANSWER, COUNT_BYTES, PeerListener, peer_handshake


@contextlib.asynccontextmanager
async def _connected(listener: PeerListener):
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_each_address_has_a_tcp_and_a_udp_endpoint():
    async with endpoints("127.0.0.1", "::1") as listener:
        assert [(d.uid, d.address) for d in listener.doors] == [("b", "127.0.0.1"), ("b", "::1")]
        assert len({d.port for d in listener.doors}) == 2
        assert all(d.datagram_port for d in listener.doors)


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9", "node1.invalid"])
async def test_an_address_of_another_host_is_left_out(address):
    async with endpoints(address, "127.0.0.1") as listener:
        assert [d.address for d in listener.doors] == ["127.0.0.1"]


async def test_an_endpoint_identifies_itself_and_reports_the_bytes_received():
    async with endpoints() as listener, _connected(listener) as (reader, writer):
        listener.expect("other")  # the first roster counts
        said = peer_handshake("nonce", "b")
        writer.write(said.knock)
        assert await reader.readexactly(len(said.answer)) == said.answer
        assert said.answer.endswith(b" b\n")
        writer.write(bytes(300_000))
        writer.write_eof()
        count, waited = ANSWER.unpack(await reader.readexactly(ANSWER.size))
        assert (count, waited >= 0) == (300_000, True)
        assert await reader.read() == b""


async def test_a_peer_that_sends_endlessly_is_dropped(monkeypatch):
    monkeypatch.setattr(doors, "_MOST_BYTES", 1 << 16)

    async with endpoints() as listener, _connected(listener) as (_reader, writer):
        writer.write(peer_handshake("nonce", "b").knock)
        with pytest.raises(OSError, match=r"[Rr]eset|[Bb]roken|lost"):  # noqa: PT012
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()


@pytest.mark.parametrize(
    ("limit", "nonce"), [("_CONVERSATION_SECONDS", "nonce"), ("_ROSTER_SECONDS", ""), ("_KNOCK_SECONDS", "nonce")]
)
async def test_a_silent_peer_is_dropped_after_a_timeout_and_hears_nothing_without_a_roster(monkeypatch, limit, nonce):
    monkeypatch.setattr(doors, limit, 0.1)
    said = peer_handshake("nonce", "b")

    async with endpoints(nonce=nonce) as listener, _connected(listener) as (reader, writer):
        writer.write(b"" if limit == "_KNOCK_SECONDS" else said.knock)
        assert await reader.read() == (said.answer if limit == "_CONVERSATION_SECONDS" else b"")


@contextlib.contextmanager
def _datagrams(port: int):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        sock.connect(("127.0.0.1", port))
        yield sock


@pytest.mark.parametrize("size", [32, 228, 1472, 65507])
async def test_a_datagram_of_a_peer_is_answered_with_its_size(size):
    said = peer_handshake("nonce", "b")
    async with endpoints() as listener:
        with _datagrams(listener.doors[0].datagram_port) as sock:
            sock.send(said.knock.ljust(size, b"\0"))
            heard = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1024), 5)
    assert heard == said.answer + size.to_bytes(COUNT_BYTES, "big")


async def test_datagrams_before_the_roster_are_not_answered():
    loop = asyncio.get_running_loop()
    async with endpoints(nonce="") as listener:
        with _datagrams(listener.doors[0].datagram_port) as sock:
            sock.send(peer_handshake("nonce", "b").knock.ljust(50))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(loop.sock_recv(sock, 100), 0.2)


async def test_a_closed_endpoint_answers_no_more():
    said = peer_handshake("nonce", "b")
    async with endpoints("127.0.0.1", "::1") as listener, _connected(listener) as (reader, writer):
        writer.write(said.knock)
        assert await reader.readline() == said.answer
        await listener.close()
        assert await reader.read() == b""
    await asyncio.sleep(0.05)
    for door in listener.doors:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(door.address, door.port)


SECRET, OTHER = seal.secret_of("distcheck-" + 32 * "0"), seal.secret_of("distcheck-" + 32 * "1")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: b\r\n\r\n".ljust(5000),
        peer_handshake("nonce", "b").knock.ljust(5000),
        peer_handshake("nonce", "b", OTHER).knock.ljust(5000),
        peer_handshake("other", "b", SECRET).knock.ljust(5000),
    ],
    ids=["nothing", "http", "no token", "another token", "another round"],
)
async def test_a_stranger_is_not_answered(monkeypatch, said):
    """A datagram's sender address may be forged: no host may be flooded from here."""
    monkeypatch.setattr(doors, "_KNOCK_SECONDS", 0.2)
    loop, heard, good = asyncio.get_running_loop(), b"", peer_handshake("nonce", "b", SECRET)

    async with endpoints(secret=SECRET) as listener:
        async with _connected(listener) as (reader, writer):
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                heard = await asyncio.wait_for(reader.read(), 5)
            assert heard == b""
        with _datagrams(listener.doors[0].datagram_port) as sock:
            sock.send(said)
            sock.send(good.knock.ljust(100))  # what is answered first came after what is not answered
            assert await asyncio.wait_for(loop.sock_recv(sock, 200), 5) == good.answer + (100).to_bytes(8, "big")


async def test_many_connections_to_an_endpoint_do_not_keep_peers_out(monkeypatch):
    monkeypatch.setattr(doors, "_MOST_TALKING", 8)
    said = peer_handshake("nonce", "b", SECRET)

    async with endpoints(secret=SECRET) as listener, contextlib.AsyncExitStack() as crowd:
        for _ in range(50):
            await crowd.enter_async_context(_connected(listener))
        reader, writer = await crowd.enter_async_context(_connected(listener))
        writer.write(said.knock)
        assert await asyncio.wait_for(reader.readexactly(len(said.answer)), 5) == said.answer
