"""What a path carries, measured on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

import pytest
from rollcall.conftest import endpoints

from distcheck.rollcall import path
from distcheck.rollcall.doors import COUNT_BYTES, peer_handshake
from distcheck.rollcall.path import TRANSFER_BYTES, datagrams, tcp_info, transfer
from distcheck.rollcall.protocol import PeerDoor

WORD = peer_handshake("nonce", "b")


@contextlib.asynccontextmanager
async def _door(address: str = "127.0.0.1"):
    async with endpoints(address) as listener:
        yield listener.doors[0]


@contextlib.asynccontextmanager
async def _accepting(behave):
    """Listen with a tiny buffer, and let `behave` do with the first connection what it likes."""
    loop = asyncio.get_running_loop()
    with socket.socket() as listening, contextlib.ExitStack() as talking:
        # The kernel itself confirms what the receive buffer holds, even when nobody reads.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        listening.settimeout(0)

        async def serve():
            connection, _ = await loop.sock_accept(listening)
            talking.enter_context(connection)
            connection.settimeout(0)
            await behave(connection)

        serving = asyncio.ensure_future(serve())
        yield PeerDoor("b", "127.0.0.1", listening.getsockname()[1])
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_all_arrives_at_a_listener_that_reads(address):
    async with _door(address) as door:
        sent = await transfer(door, WORD, 9.0)
    assert (sent.bytes, sent.stalled) == (TRANSFER_BYTES, False)
    assert 0 < sent.round_trip_seconds < sent.seconds
    assert sent.segments >= TRANSFER_BYTES // 65536
    assert sent.repeated < sent.segments / 10


async def test_packet_by_packet_goes_as_much_as_is_asked_for_rounded_up_to_a_packet():
    async with _door() as door:
        sent = await transfer(door, WORD, 9.0, 200_000)
    assert 200_000 <= sent.bytes < 200_000 + (1 << 16)
    assert not sent.stalled


async def test_what_was_sent_again_before_the_transfer_is_not_held_against_it(monkeypatch):
    monkeypatch.setattr(path, "tcp_info", lambda sock: tcp_info(sock)._replace(repeated=500))

    async with _door() as door:
        sent = await transfer(door, WORD, 9.0)
    assert sent.repeated == 0


@pytest.mark.long
async def test_a_peer_that_never_reads_stalls_the_transfer():
    async def greet(connection):
        await asyncio.get_running_loop().sock_sendall(connection, WORD.answer)
        await asyncio.sleep(60)

    async with _accepting(greet) as door:
        sent = await transfer(door, WORD, 9.0)
    assert sent.stalled
    assert 0 < sent.bytes < 64 * 1024
    assert sent.seconds >= 1.5


async def test_a_peer_that_reads_slowly_is_slow_but_does_not_stall(monkeypatch):
    monkeypatch.setattr(path, "_LONGEST_SECONDS", 0.4)

    async def sip(connection):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, WORD.answer)
        for _ in range(10_000):
            if not await loop.sock_recv(connection, 1024):
                break
            await asyncio.sleep(0.005)

    async with _accepting(sip) as door:
        sent = await transfer(door, WORD, 9.0)
    assert not sent.stalled
    assert 0 < sent.bytes < TRANSFER_BYTES


async def test_a_peer_that_closes_early_got_a_part_and_causes_no_wait():
    async def leave(connection):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, WORD.answer)
        await loop.sock_recv(connection, 1024)
        connection.close()

    async with _accepting(leave) as door:
        sent = await transfer(door, WORD, 9.0)
    assert not sent.stalled
    assert sent.bytes < TRANSFER_BYTES


@pytest.mark.parametrize(
    "said",
    [b"", peer_handshake("nonce", "c").answer, b"220 mail.example ESMTP\r\n", WORD.answer[:-1]],
    ids=["nothing", "another peer", "a mail server", "a part"],
)
def test_a_process_that_is_not_the_peer_gets_no_data(live, said):
    heard: list[bytes] = []

    async def speak(connection):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, said)
        connection.shutdown(socket.SHUT_WR)
        try:
            heard.append(await loop.sock_recv(connection, 1024))
        except ConnectionResetError:  # it has not even read all that was said
            heard.append(b"")

    async def main():
        async with _accepting(speak) as door:
            assert await transfer(door, WORD, 9.0) is None
            await asyncio.sleep(0.05)

    live(main())
    assert heard in ([b""], [WORD.knock])


async def test_without_a_listener_or_an_answer_there_is_no_transfer(closed_port):
    async def hush(_connection):
        await asyncio.sleep(60)

    assert await transfer(PeerDoor("b", "127.0.0.1", closed_port), WORD, 9.0) is None
    async with _accepting(hush) as door:
        assert await transfer(door, WORD, 0.2) is None


def test_the_kernels_counters_of_a_connection():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sending,
    ):
        receiving, _ = listening.accept()
        with receiving:
            before = tcp_info(sending)
            sending.sendall(bytes(1000))
            assert len(receiving.recv(1000, socket.MSG_WAITALL)) == 1000
            receiving.sendall(b"!")  # brings the confirmation with it
            sending.recv(1)
            after = tcp_info(sending)
    assert after.bytes_confirmed - before.bytes_confirmed == 1000
    assert after.segments > before.segments
    assert after.repeated == 0


def test_a_socket_without_such_counters_has_none():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert tcp_info(sock) is None


class _Telling:
    """A socket whose kernel gives this answer."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        return self._raw[:size]


def test_counters_of_a_kernel_that_lacks_some_has_not_measured_yet_or_counts_segments_that_arrived_twice():
    raw = path._TCP_INFO.pack(9, 70_000, 50, 120, 300_000, 100_000, 4)
    assert tcp_info(_Telling(raw)) == (5, 70_000, 50, 0.2, 0.00012)
    assert tcp_info(_Telling(raw[:-4])) is None
    told = tcp_info(_Telling(path._TCP_INFO.pack(3, 1, 9, 0xFFFFFFFF, 0, 0, 7)))
    assert (told.repeated, told.round_trip_seconds) == (0, None)


# -- datagrams


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("mtu", [1280, 1500, 9000, 65536])
async def test_datagrams_of_a_small_and_of_the_full_size_come_back(address, mtu):
    async with _door(address) as door:
        assert await datagrams(door, WORD, mtu) == {256: True, min(mtu, 65535): True}


def test_without_a_port_for_datagrams_nothing_is_known(live):
    assert live(datagrams(PeerDoor("b", "127.0.0.1", 5), WORD, 1500)) == {}


@pytest.mark.long
async def test_unanswered_datagrams_are_lost(closed_port):
    assert await datagrams(PeerDoor("b", "127.0.0.1", 5, ("nccl",), closed_port), WORD, 1500) == {
        256: False,
        1500: False,
    }
    async with _door() as door:
        assert await datagrams(door, peer_handshake("other", "b"), 1500) == {256: False, 1500: False}


class _Narrow(asyncio.DatagramProtocol):
    """Answers as an endpoint does, and from the second time on only what a narrow path carries."""

    def __init__(self, most: int, heard: list[int]) -> None:
        self._most, self._heard = most, heard

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, addr):
        self._heard.append(len(data))
        if len(data) <= self._most and self._heard.count(len(data)) > 1:
            self._transport.sendto(WORD.answer + len(data).to_bytes(COUNT_BYTES, "big"), addr)


def test_a_path_that_eats_large_packets_lets_the_small_ones_through(live):
    heard: list[int] = []

    async def main():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Narrow(1372, heard), local_addr=("127.0.0.1", 0))
        door = PeerDoor("b", "127.0.0.1", 5, ("nccl",), transport.get_extra_info("sockname")[1])
        assert await datagrams(door, WORD, 1500) == {256: True, 1500: False}
        transport.close()

    live(main())
    # IP and UDP take 28 bytes of each; what was answered is not sent again.
    assert set(heard) == {228, 1472}
    assert heard.count(228) == 2
    assert heard.count(1472) > 2


async def test_a_size_that_the_kernel_knows_to_be_too_large_is_not_tried(monkeypatch):
    """A router reports the path's MTU: no packet is dropped silently."""

    class Knowing(socket.socket):
        def send(self, data, *flags):
            if len(data) > 1400:
                raise OSError(errno.EMSGSIZE, "Message too long")
            return super().send(data, *flags)

    async with _door() as door:
        monkeypatch.setattr(path.socket, "socket", Knowing)
        assert await datagrams(door, WORD, 1500) == {256: True}
        monkeypatch.undo()
