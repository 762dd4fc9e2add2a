"""Recorded frames, damaged: they are refused, and the roll call goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real.waiting import soon

from distcheck.collectives.plan import Plan, Timing
from distcheck.facts.network import PeerTrial, Transfer
from distcheck.facts.rank import RankRun
from distcheck.rollcall import framing, protocol, seal
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import (
    Bye,
    Challenge,
    Here,
    PeerDoor,
    PeerReport,
    Proof,
    Refused,
    Roster,
    RunReport,
    Start,
    Trouble,
    Welcome,
)
from distcheck.rollcall.wire import HEADER, MAGIC, ProtocolError

SECRET = seal.secret_of("distcheck-" + 32 * "0")
DECODERS = (
    protocol.hello_decoder,
    protocol.proof_decoder,
    protocol.answer_decoder,
    protocol.follower_decoder,
    protocol.leader_decoder,
)
_POISON = (
    b"\x91" * 70_000,
    b"\x81" * 70_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
)
_TRIAL = PeerTrial(
    "a",
    "b",
    "::1",
    5,
    "met",
    0.1,
    transfer=Transfer(5, 0.5, stalled=False, segments=9, repeated=2),
    datagrams={256: True},
)


def recorded(hello, report) -> list[bytes]:
    """One frame of each kind, and sealed ones."""
    follower, leader = seal.seals(SECRET, b"hello", b"challenge")
    return [
        encode(hello("one", 1)),
        encode(report("one", 1)),
        encode(PeerReport((_TRIAL,))),
        encode(
            RunReport(
                {1: RankRun(7, "all_reduce", "done")}, ((1, Timing("all_reduce", 8, "float32", 3, (0.1,), "steady")),)
            )
        ),
        encode(Trouble("rank 1 died")),
        encode(Here()),
        encode(Challenge("n", "f" * 32)),
        encode(Welcome("n", "run", "leader")),
        encode(Refused("n", "no")),
        encode(Roster("n", (PeerDoor("b", "127.0.0.1", 5),), 3.0)),
        encode(Start(Plan("gloo", ("all_reduce",), (4,), 9.0), 8.0, 2, ("", 5))),
        encode(Bye(0, "", "", 0)),
        encode(Proof(), follower),
        encode(Welcome("n", "run", "leader"), leader),
    ]


@st.composite
def spoilt(draw, frames: list[bytes]) -> bytes:
    """A few recorded frames one after the other, with something done to them."""
    raw = bytearray(b"".join(draw(st.lists(st.sampled_from(frames), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(["flip", "cut", "splice", "length", "random", "poison"])):
            case "flip" if raw:
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del raw[at:]
            case "splice":
                other = draw(st.sampled_from(frames))
                raw[at:] = other[draw(st.integers(0, len(other) - 1)) :]
            case "length":
                raw[4:8] = draw(st.integers(0, 2**32 - 1)).to_bytes(4, "big")
            case "random":
                raw[at:at] = draw(st.binary(max_size=60))
            case "poison":
                body = bytes(raw[HEADER.size : at]) + draw(st.sampled_from(_POISON))
                raw[:] = HEADER.pack(MAGIC, len(body)) + body
    return bytes(raw)


def _read_all(raw: bytes, decoder) -> None:
    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        while True:
            await framing.read(reader, decoder)

    with contextlib.suppress(ProtocolError, EOFError):
        asyncio.run(run())


def test_damaged_frames_are_only_refused(hello, report):
    frames = recorded(hello, report)

    @given(spoilt(frames))
    def spoil(raw):
        for decoder in DECODERS:
            _read_all(raw, decoder)

    spoil()


def test_a_small_frame_takes_neither_much_memory_nor_much_time(hello, report):
    """Lengths that promise a lot, and structures within structures."""
    frames = recorded(hello, report)
    start = time.process_time()
    tracemalloc.start()
    try:
        for poison in _POISON:
            for frame in frames:
                for at in range(HEADER.size, min(len(frame), 300), 7):
                    body = frame[HEADER.size : at] + poison
                    for decoder in DECODERS:
                        with contextlib.suppress(ProtocolError):
                            framing.decode(body, decoder)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20
    assert time.process_time() - start < 30


@pytest.mark.long
@pytest.mark.parametrize("secret", [None, SECRET])
def test_damaged_frames_keep_no_follower_out(leading, live, hello, report, secret):
    """Without a token a stranger that sends all messages of a follower is taken for one, with a token nobody is."""
    frames = recorded(hello, report)

    async def meet(streams):
        async with leading(3, secret) as leader:
            troubles: list[str] = []
            leader.server.on_trouble = troubles.append
            for raw in streams:
                _, writer = await leader.connect()
                writer.write(raw)
            await asyncio.gather(*(leader.come(f"follower {n}", n, secret=secret) for n in (1, 2)))
            await soon(lambda: {"follower 1", "follower 2"} <= set(leader.server.followers))
            for follower in leader.server.followers.values():
                assert follower.report.process.uid == follower.uid
                assert {r.placement.rank for r in follower.report.ranks} == follower.ranks
            assert not secret or (len(leader.server.followers), troubles) == (2, [])

    @given(st.lists(spoilt(frames), min_size=1, max_size=12))
    def fuzz(streams):
        live(meet(streams))

    fuzz()


async def test_a_report_with_absurd_facts_ends_only_its_own_connection(leading, hello, report):
    """Numbers that break arithmetic: they never reach the rules."""
    absurd = msgspec.msgpack.decode(msgspec.msgpack.encode(report("absurd", 1)))
    absurd["node"]["cpus"] = -(2**63)
    body = msgspec.msgpack.encode(absurd)

    async with leading(3) as leader:
        reader, writer = await leader.connect()
        writer.write(encode(hello("absurd", 1)) + HEADER.pack(MAGIC, len(body)) + body)
        await framing.read(reader, protocol.answer_decoder)
        assert await asyncio.wait_for(reader.read(), 5) == b"", "the leader has closed"
        await asyncio.gather(*(leader.come(f"follower {n}", n) for n in (1, 2)))
        assert await leader.server.wait_for_all(10)
        assert sorted(leader.server.followers) == ["follower 1", "follower 2"]


async def test_the_bytes_of_all_followers_together_are_limited(leading, monkeypatch, hello, report):
    async with leading(2) as leader:
        leader.server._bytes_left = 100_000
        greedy = [await leader.connect() for _ in range(3)]
        for n, (_, writer) in enumerate(greedy):
            writer.write(encode(hello(f"greedy {n}", 1)) + HEADER.pack(MAGIC, 60_000) + bytes(1000))
        await soon(lambda: leader.server._bytes_left == 40_000)  # one of them is waited for
        assert [writer.transport.is_closing() or reader.at_eof() for reader, writer in greedy].count(True) <= 2
        for _, writer in greedy:
            writer.transport.abort()
        await soon(lambda: leader.server._bytes_left == 100_000)
        await leader.come("follower", 1)
        assert await leader.server.wait_for_all(5)
        assert leader.server._bytes_left < 100_000


@pytest.mark.long
async def test_more_processes_than_the_world_has_ranks_are_turned_away(leading):
    async with leading(2) as leader:
        for n in range(80):
            await leader.come(f"follower {n}", 1, seconds=0.2)
        assert len(leader.server.followers) < 70
