"""The endpoints for peers: who answers, what is discarded, and which datagrams are answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from distcheck.rollcall import doors, seal
from distcheck.rollcall.doors import ANSWER, COUNT_BYTES, PeerListener, peer_handshake


async def _opened(*addresses: str) -> PeerListener:
    listener = PeerListener("b")
    await listener.open(dict.fromkeys(addresses or ("127.0.0.1",), ("master",)))
    return listener


async def test_each_address_has_a_tcp_and_a_udp_endpoint():
    listener = PeerListener("b")
    await listener.open({"127.0.0.1": ("master", "gloo"), "::1": ("nccl",)})
    assert [(d.uid, d.address, d.uses) for d in listener.doors] == [
        ("b", "127.0.0.1", ("master", "gloo")),
        ("b", "::1", ("nccl",)),
    ]
    assert len({d.port for d in listener.doors}) == 2
    assert all(d.datagram_port for d in listener.doors)
    await listener.close()


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8::9", "node1.invalid"])
async def test_an_address_of_another_host_is_left_out(address):
    listener = await _opened(address, "127.0.0.1")
    assert [d.address for d in listener.doors] == ["127.0.0.1"]
    await listener.close()


async def test_an_endpoint_identifies_itself_and_reports_the_bytes_received():
    listener = await _opened()
    listener.expect("nonce")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    word = peer_handshake("nonce", "b").answer
    assert await reader.readexactly(len(word)) == word
    writer.write(bytes(300_000))
    writer.write_eof()
    count, waited = ANSWER.unpack(await reader.readexactly(ANSWER.size))
    assert (count, waited >= 0) == (300_000, True)
    assert await reader.read() == b""
    writer.close()
    await listener.close()


async def test_the_first_roster_counts():
    listener = await _opened()
    listener.expect("nonce")
    listener.expect("other")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    assert await reader.readline() == b"nonce b\n"
    writer.close()
    await listener.close()


async def test_a_peer_that_sends_endlessly_is_dropped(monkeypatch):
    monkeypatch.setattr(doors, "_MOST_BYTES", 1 << 16)

    listener = await _opened()
    listener.expect("nonce")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)

    async def flood():
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    with pytest.raises(OSError, match=r"[Rr]eset|[Bb]roken|lost"):
        await flood()
    writer.close()
    await listener.close()
    del reader


async def test_a_silent_peer_is_dropped_after_a_timeout(monkeypatch):
    monkeypatch.setattr(doors, "_CONVERSATION_SECONDS", 0.1)

    listener = await _opened()
    listener.expect("nonce")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    assert await reader.read() == b"nonce b\n"
    writer.close()
    await listener.close()


async def test_without_a_roster_an_endpoint_sends_nothing_and_closes_in_the_end(monkeypatch):
    monkeypatch.setattr(doors, "_ROSTER_SECONDS", 0.1)

    listener = await _opened()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    assert await reader.read() == b""
    writer.close()
    await listener.close()


async def _answer(port: int, data: bytes) -> bytes | None:
    """Send a datagram, and then one that is surely answered: what came before it is the first one's answer."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        sock.connect(("127.0.0.1", port))
        last = peer_handshake("nonce", "b").answer + b"last"
        sock.send(data)
        sock.send(last)
        heard = await asyncio.wait_for(loop.sock_recv(sock, 1024), 5)
        return None if heard == _echo(len(last)) else heard


def _echo(size: int) -> bytes:
    return peer_handshake("nonce", "b").answer + size.to_bytes(COUNT_BYTES, "big")


@pytest.mark.parametrize("size", [8, 228, 1472, 65507])
async def test_a_datagram_of_a_peer_is_answered_with_its_size(size):
    listener = await _opened()
    listener.expect("nonce")
    data = peer_handshake("nonce", "b").answer.ljust(size, b"\0")
    assert await _answer(listener.doors[0].datagram_port, data) == _echo(len(data))
    await listener.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", peer_handshake("other", "b").answer.ljust(100), peer_handshake("nonce", "c").answer.ljust(100)],
)
async def test_a_strangers_datagram_is_not_answered(data):
    """Its sender's address may be forged: no host may be flooded from here."""

    listener = await _opened()
    listener.expect("nonce")
    assert await _answer(listener.doors[0].datagram_port, data) is None
    await listener.close()


async def test_datagrams_before_the_roster_are_not_answered():
    listener = await _opened()
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        sock.connect(("127.0.0.1", listener.doors[0].datagram_port))
        sock.send(peer_handshake("nonce", "b").answer.ljust(50))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loop.sock_recv(sock, 100), 0.2)
    await listener.close()


async def test_a_closed_endpoint_answers_no_more():
    listener = await _opened("127.0.0.1", "::1")
    listener.expect("nonce")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    assert await reader.readline() == b"nonce b\n"
    await listener.close()
    assert await reader.read() == b""
    writer.close()
    await asyncio.sleep(0.05)
    for door in listener.doors:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(door.address, door.port)


SECRET, OTHER = seal.secret_of("distcheck-" + 32 * "0"), seal.secret_of("distcheck-" + 32 * "1")


async def _sealed() -> PeerListener:
    listener = PeerListener("b", SECRET)
    await listener.open({"127.0.0.1": ("master",)})
    listener.expect("nonce")
    return listener


async def test_with_a_token_an_endpoint_answers_a_peer_that_knows_it():
    listener = await _sealed()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    said = peer_handshake("nonce", "b", SECRET)
    writer.write(said.knock + bytes(5000))
    writer.write_eof()
    assert await reader.readexactly(len(said.answer)) == said.answer
    assert said.answer.endswith(b" b\n")
    assert ANSWER.unpack(await reader.readexactly(ANSWER.size))[0] == 5000
    writer.close()
    await listener.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: b\r\n\r\n".ljust(5000),
        peer_handshake("nonce", "b").answer.ljust(5000),
        peer_handshake("nonce", "b", OTHER).knock.ljust(5000),
        peer_handshake("other", "b", SECRET).knock.ljust(5000),
    ],
    ids=["nothing", "http", "no token", "another token", "another round"],
)
async def test_with_a_token_an_endpoint_does_not_answer_a_process_without_it(monkeypatch, said):
    monkeypatch.setattr(doors, "_KNOCK_SECONDS", 0.2)

    listener = await _sealed()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    writer.write(said)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        heard = await asyncio.wait_for(reader.read(), 5)
    assert heard == b""
    writer.close()
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        sock.connect(("127.0.0.1", listener.doors[0].datagram_port))
        good = peer_handshake("nonce", "b", SECRET)
        sock.send(said)
        sock.send(good.datagram.ljust(100))  # what is answered first came after what is not answered
        assert await asyncio.wait_for(loop.sock_recv(sock, 200), 5) == good.answer + (100).to_bytes(8, "big")
    await listener.close()


async def test_many_connections_to_an_endpoint_do_not_keep_peers_out(monkeypatch):
    monkeypatch.setattr(doors, "_MOST_TALKING", 8)

    listener = await _sealed()
    crowd = [await asyncio.open_connection("127.0.0.1", listener.doors[0].port) for _ in range(50)]
    said = peer_handshake("nonce", "b", SECRET)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.doors[0].port)
    writer.write(said.knock)
    assert await asyncio.wait_for(reader.readexactly(len(said.answer)), 5) == said.answer
    for _, other in [*crowd, (reader, writer)]:
        other.close()
    await listener.close()
