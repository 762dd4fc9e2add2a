"""Tests a path between two nodes: a full-size transfer, and unfragmented datagrams."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from typing import NamedTuple

from distcheck.facts.network import Transfer
from distcheck.probe.waiting import waited_for_cpu
from distcheck.rollcall.doors import ANSWER, PeerHandshake
from distcheck.rollcall.protocol import PeerDoor

TRANSFER_BYTES = 1 << 21
_CHUNK_BYTES = 1 << 18
_LONGEST_SECONDS = 2.0
"""Long enough to recognize a link of 10 Mbit/s."""
_STALL_SECONDS = 1.5
"""Longer than the kernel needs to send a lost segment three times."""
_LOOK_SECONDS = 0.05
_SMALL_BYTES = 256
_DATAGRAM_TRIES = 4
_DATAGRAM_SECONDS = 0.15
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_DO = 10, 23, 2  # linux/in.h, linux/in6.h
_SETTLE_SECONDS = 0.1
"""Time for the other side to report that a repeated segment had arrived before (DSACK)."""
# struct tcp_info of linux/tcp.h: tcpi_total_retrans, tcpi_bytes_acked, tcpi_segs_out, tcpi_min_rtt, tcpi_busy_time,
# tcpi_rwnd_limited, tcpi_dsack_dups.
_TCP_INFO = struct.Struct("=100xI16xQ8xI8xI16xQQ32xI")
_TCP_NOTSENT_LOWAT = 25
"""linux/tcp.h; a Python that was built with older headers has no such constant."""
_NO_ROUND_TRIP = 0xFFFFFFFF
"""The value of tcpi_min_rtt while nothing was measured."""


class _TcpInfo(NamedTuple):
    repeated: int
    bytes_confirmed: int
    segments: int
    busy_seconds: float
    """Time with data in flight, without the time in which the other side did not read."""
    round_trip_seconds: float | None
    """The shortest so far, including the handshake's; the kernels answer, so a busy process does not matter."""


def tcp_info(sock: socket.socket) -> _TcpInfo | None:
    """Return the kernel's counters of a connection, None if some are missing (before 4.19).

    Segments that were repeated although the first copy arrived, as on a busy host, do not count as repeated.
    """
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(raw) < _TCP_INFO.size:
        return None
    repeated, confirmed, segments, shortest, busy, window_closed, needless = _TCP_INFO.unpack(raw)
    return _TcpInfo(
        repeated=max(0, repeated - needless),
        bytes_confirmed=confirmed,
        segments=segments,
        busy_seconds=max(0, busy - window_closed) / 1e6,
        round_trip_seconds=None if shortest == _NO_ROUND_TRIP else shortest / 1e6,
    )


async def transfer(door: PeerDoor, handshake: PeerHandshake, seconds: float, singly: int = 0) -> Transfer | None:
    """Send data to an endpoint for at most `seconds`; None if the connection failed.

    With `singly` it sends that many bytes, packet by packet. Otherwise the kernel passes on up to 64 KB at a time, and
    a software filter drops such a piece whole or not at all: of 2 MB in 32 pieces, 2 % loss often drops none.
    """
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in door.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(0)
        try:
            await asyncio.wait_for(loop.sock_connect(sock, (door.address, door.port)), seconds)
            await asyncio.wait_for(_greeted(sock, handshake), seconds)
        except (OSError, EOFError, asyncio.TimeoutError):
            return None
        greeted = tcp_info(sock)  # the handshake is not part of the transfer
        start, waited = loop.time(), waited_for_cpu()
        sending = asyncio.ensure_future(_send(sock, singly))
        stalled = False
        try:
            stalled = await _watch(sock, sending, start + min(seconds, _LONGEST_SECONDS))
            took, waited = loop.time() - start, waited_for_cpu() - waited
            counters = tcp_info(sock)
            if counters is not None and greeted is not None and counters.repeated > greeted.repeated:
                await asyncio.sleep(_SETTLE_SECONDS)
                counters = (tcp_info(sock) or counters)._replace(busy_seconds=counters.busy_seconds)
        finally:
            sending.cancel()
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await sending
        done = sending.done() and not sending.cancelled() and not sending.exception()
        arrived, reader_waited = sending.result() if done else (0, 0.0)
        return Transfer(
            bytes=arrived
            or (max(0, counters.bytes_confirmed - greeted.bytes_confirmed) if counters and greeted else 0),
            seconds=took,
            stalled=stalled,
            segments=counters.segments if counters else 0,
            repeated=max(0, counters.repeated - greeted.repeated) if counters and greeted else 0,
            # Waiting for a CPU does not excuse time in which the network was busy.
            waited_seconds=min(waited + reader_waited, max(0.0, took - (counters.busy_seconds if counters else 0.0))),
            round_trip_seconds=counters.round_trip_seconds if counters else None,
        )


async def _greeted(sock: socket.socket, handshake: PeerHandshake) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, handshake.knock)
    if await _exactly(sock, len(handshake.answer)) != handshake.answer:
        raise EOFError


async def _exactly(sock: socket.socket, size: int) -> bytes:
    """Return the next bytes, this many."""
    heard = b""
    while len(heard) < size:
        more = await asyncio.get_running_loop().sock_recv(sock, size - len(heard))
        if not more:
            raise EOFError
        heard += more
    return heard


async def _send(sock: socket.socket, singly: int) -> tuple[int, float]:
    """Send all data; return the bytes that arrived and how long the reader waited for a CPU."""
    loop = asyncio.get_running_loop()
    chunk, count = bytes(_CHUNK_BYTES), TRANSFER_BYTES // _CHUNK_BYTES
    if singly:
        # The kernel must not hold back and merge writes: each write is one packet, or waits for its turn.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 1)
        chunk = bytes(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
        count = -(-singly // len(chunk))
    for _ in range(count):
        await loop.sock_sendall(sock, chunk)
    sock.shutdown(socket.SHUT_WR)
    arrived, waited = ANSWER.unpack(await _exactly(sock, ANSWER.size))
    # A stranger may have sent it: clamp it.
    return min(arrived, TRANSFER_BYTES), waited if 0 <= waited <= _LONGEST_SECONDS else 0.0


async def _watch(sock: socket.socket, sending: asyncio.Future[tuple[int, float]], until: float) -> bool:
    """Wait until a transfer ends or no more data is acknowledged; return whether it stalled."""
    loop = asyncio.get_running_loop()
    confirmed, since = -1, loop.time()
    while not sending.done():
        await asyncio.wait({sending}, timeout=_LOOK_SECONDS)
        counters, now = tcp_info(sock), loop.time()
        if counters is not None and counters.bytes_confirmed > confirmed:
            confirmed, since = counters.bytes_confirmed, now
        elif now - since >= _STALL_SECONDS:
            return not sending.done()
        if now >= until and now - since < _LOOK_SECONDS:
            return False
    return False


async def datagrams(door: PeerDoor, handshake: PeerHandshake, mtu_bytes: int) -> dict[int, bool]:
    """Return, by packet size, whether small and MTU-sized datagrams arrive unfragmented."""
    if door.datagram_port is None:
        return {}
    ipv6 = ":" in door.address
    headers = 48 if ipv6 else 28
    sizes = {_SMALL_BYTES, min(mtu_bytes, 65535)}
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        level, option = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if ipv6 else (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
        answered: set[int] = set()
        try:
            sock.setsockopt(level, option, _PMTUDISC_DO)
            sock.connect((door.address, door.datagram_port))
        except OSError:
            return {}
        for _ in range(_DATAGRAM_TRIES):
            for size in sizes - answered:
                try:
                    sock.send(handshake.knock.ljust(size - headers, b"\0"))
                except OSError as error:
                    if error.errno == errno.EMSGSIZE:  # a router has reported the path's MTU, as it should
                        sizes = {_SMALL_BYTES}
            until = loop.time() + _DATAGRAM_SECONDS
            while answered != sizes and (left := until - loop.time()) > 0:
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    heard = await asyncio.wait_for(loop.sock_recv(sock, 512), left)
                    if heard.startswith(handshake.answer):
                        answered.add(int.from_bytes(heard[len(handshake.answer) :], "big") + headers)
            if answered >= sizes:
                break
    return {size: size in answered for size in sorted(sizes)}
