"""Messages in frames: they survive encoding, and anything else is refused in one of two ways."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from distcheck.collectives.plan import GroupTiming, Timing
from distcheck.facts.network import PeerTrial, ReverseLookup, Transfer
from distcheck.rollcall import framing, protocol, wire
from distcheck.rollcall.protocol import (
    PeerDoor,
    PeerReport,
    RunReport,
)
from distcheck.rollcall.wire import ProtocolError


def read(raw: bytes, decoder, limit: int = framing.FRAME_LIMIT_BYTES):
    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        return await framing.read(reader, decoder, limit)

    return asyncio.run(run())


def frame(body: bytes) -> bytes:
    return wire.HEADER.pack(wire.MAGIC, len(body)) + body


def test_a_closed_connection_differs_from_another_protocol():
    with pytest.raises(EOFError):
        read(b"", protocol.hello_decoder)
    with pytest.raises(EOFError):
        read(frame(b"12345")[:-1], protocol.hello_decoder)
    with pytest.raises(ProtocolError, match="SSH"):
        read(b"SSH", protocol.hello_decoder)


def test_another_programs_first_line_is_quoted_without_control_characters():
    with pytest.raises(ProtocolError, match=r"^HTTP/1\.1 400 Bad Request  x$"):
        read(b"HTTP/1.1 400 Bad Request\r\nx\x1b", protocol.answer_decoder)
    with pytest.raises(ProtocolError, match="9 unprintable bytes"):
        read(b"\0" * 9, protocol.answer_decoder)


@pytest.mark.parametrize("magic", [b"DCK2", b"DCK0"])
def test_another_version_of_distcheck_differs_from_another_program(magic):
    with pytest.raises(ProtocolError, match=f"another version of distcheck.*{magic.decode()}"):
        read(magic + bytes(20), protocol.answer_decoder)


def test_a_huge_frame_is_refused_by_its_header_alone():
    with pytest.raises(ProtocolError, match="a frame of 4294967295 bytes"):
        read(wire.HEADER.pack(wire.MAGIC, 0xFFFFFFFF), protocol.follower_decoder)
    with pytest.raises(ProtocolError, match="the limit is 4"):
        read(frame(b"12345"), protocol.hello_decoder, 4)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_hello_with_impossible_seconds_is_refused(hello, seconds):
    with pytest.raises(ProtocolError):
        read(framing.encode(hello("u", 1, seconds_left=seconds)), protocol.hello_decoder)


def test_endpoints_and_trials_survive_encoding_unchanged(report):
    doors = (PeerDoor("u", "::1", 5, ("master", "nccl", "gloo"), 6), PeerDoor("u", "10.0.0.1", 7, ("nccl",)))
    said = msgspec.structs.replace(report("u", 0), peer_doors=doors, clock_seconds=1.5e9)
    assert read(framing.encode(said), protocol.follower_decoder) == said
    sent = Transfer(bytes=5, seconds=0.5, stalled=True, segments=9, repeated=2)
    trial = PeerTrial("a", "b", "::1", 5, "met", 0.1, uses=("nccl",), transfer=sent, datagrams={256: True, 1500: False})
    told = PeerReport((trial,), (ReverseLookup("10.0.0.1", "node1", 0.01),))
    assert read(framing.encode(told), protocol.follower_decoder) == told


@pytest.mark.parametrize(
    "doors",
    [
        *([PeerDoor("u", "127.0.0.1", port)] for port in (0, -1, 65536)),
        *([PeerDoor("u", "127.0.0.1", 5, datagram_port=port)] for port in (0, -1, 65536)),
        [PeerDoor("u", "127.0.0.1", 5, ("mail",))],
        [PeerDoor("u", "127.0.0.1", 1 + n) for n in range(9)],
    ],
)
def test_invalid_endpoints_and_too_many_are_refused(report, doors):
    with pytest.raises(ProtocolError):
        read(
            framing.encode(msgspec.structs.replace(report("u", 0), peer_doors=tuple(doors))), protocol.follower_decoder
        )


def test_a_timing_without_a_burst_is_refused():
    timing = Timing("all_reduce", 8, "float32", 3, (), "steady")
    for said in (
        RunReport({}, ((1, timing),)),
        RunReport({}, (), groups=((1, GroupTiming("dp", "all_reduce", timing)),)),
    ):
        with pytest.raises(ProtocolError, match="length"):
            read(framing.encode(said), protocol.follower_decoder)
