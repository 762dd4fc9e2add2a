"""Large messages are compressed, if the leader accepts that; nothing compressed is taken on trust."""

from __future__ import annotations

import asyncio
import zlib

import msgspec
import pytest
from real.relay import relay
from real.waiting import soon

from distcheck.rollcall import framing, protocol, seal
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Deflated, Here, Trouble
from distcheck.rollcall.wire import HEADER, MAGIC, ProtocolError

SECRET = seal.secret_of("distcheck-" + 32 * "0")


def large(report, uid: str, rank: int):
    """A report with far more than a kilobyte of facts, which repeat themselves as those of local ranks do."""
    said = report(uid, rank)
    (facts,) = said.ranks
    environment = {f"NCCL_SETTING_{n}": "the same value on every rank" for n in range(200)}
    return msgspec.structs.replace(said, ranks=(msgspec.structs.replace(facts, environment=environment),))


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_large_report_is_compressed(leading, live, report, secret):
    async def main():
        async with leading(2, secret) as leader, relay(leader.port) as (port, said):
            sent = large(report, "follower", 1)
            await leader.come("follower", 1, said=sent, port=port, secret=secret)
            assert await leader.server.wait_for_all(10)
            assert leader.server.followers["follower"].report.ranks == sent.ranks
            return sum(map(len, said["follower"])), len(msgspec.msgpack.encode(sent))

    crossed, whole = live(main())
    assert crossed < whole / 3


def test_small_messages_are_sent_as_they_are():
    assert encode(Here(), deflates=True) == encode(Here())


def test_what_is_compressed_comes_out_as_it_went_in():
    word = Trouble("why " * 1000)
    body = encode(word, deflates=True)[HEADER.size :]
    wrapped = framing.decode(body, protocol.wrapped_decoder)
    assert isinstance(wrapped, Deflated)
    assert len(body) < 200
    assert framing.decode(framing.inflate(wrapped.data), protocol.follower_decoder) == word


@pytest.mark.parametrize(
    "data",
    [b"", b"no zlib", zlib.compress(b"x" * 5000)[:-8], zlib.compress(bytes(framing.FRAME_LIMIT_BYTES + 1))],
    ids=["empty", "foreign", "cut", "a bomb"],
)
def test_what_cannot_be_decompressed_within_a_frame_is_refused(data):
    with pytest.raises(ProtocolError, match="compressed"):
        framing.inflate(data)


async def test_compressed_messages_count_with_their_whole_size_and_are_not_nested(leading, hello):
    async with leading(3) as leader:
        for uid, inner in (("bomb", bytes(200_000)), ("nested", msgspec.msgpack.encode(Deflated(b"")))):
            leader.server._bytes_left = 100_000
            body = msgspec.msgpack.encode(Deflated(zlib.compress(inner)))
            reader, writer = await leader.connect()
            writer.write(encode(hello(uid, 1)) + HEADER.pack(MAGIC, len(body)) + body)
            await framing.read(reader, protocol.answer_decoder)
            assert await asyncio.wait_for(reader.read(), 5) == b"", "the leader has closed"
            await soon(lambda: leader.server._bytes_left == 100_000)
        assert leader.server.followers == {}
