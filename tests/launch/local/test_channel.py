"""The socket between distcheck and a rank."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.collectives.plan import Finished, Plan, Step, Task
from distcheck.launch.local import channel
from distcheck.launch.local.channel import Born, Exited, Imported, RankEnd
from distcheck.rollcall.wire import HEADER, MAGIC, frame

TASK = Task(Plan("gloo", ("all_reduce",), (4,), 9.0), rank=1, world_size=2, local_rank=1, store=("127.0.0.1", 5))


def read(raw: bytes):
    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        return await channel.read(reader)

    return asyncio.run(run())


@pytest.fixture
def pair():
    """Our socket and the rank's end."""
    ours, theirs = socket.socketpair()
    end = RankEnd(theirs.detach())
    with ours:
        yield ours, end
        end.close()


@pytest.mark.parametrize("said", [Born(1), Imported(0.5, "no torch"), Exited(0, -9), Step("process group")])
def test_a_ranks_messages_arrive(pair, said):
    ours, end = pair
    end.tell(said)
    end.tell(Finished())
    end.close()
    raw = b"".join(iter(lambda: ours.recv(4096), b""))
    assert read(raw) == said


def test_a_task_arrives_whole_in_any_pieces(pair):
    ours, end = pair
    pieces = [bytes([byte]) for byte in channel.encode_task(TASK)]
    # The socket holds some hundred pieces of any size, so the other end reads meanwhile.
    sending = threading.Thread(target=lambda: [ours.send(piece) for piece in pieces], daemon=True)
    sending.start()
    assert end.wait_for_task() == TASK
    sending.join()


def test_a_rank_gets_no_task_when_distcheck_is_gone(pair):
    ours, end = pair
    ours.close()
    assert end.wait_for_task() is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"DCK1\0\0",
        HEADER.pack(MAGIC, 5) + b"123",
        HEADER.pack(MAGIC, 0xFFFFFFFF),
        HEADER.pack(b"HTTP", 1) + b"x",
        frame(b"\xc1"),
        frame(b"\x82\xa4said\xa4Step\xa1z" + b"\x91" * 100_000),
        frame(b"\x82\xa4said\xa4Step\xa4text\xa1\xff"),
    ],
    ids=["empty", "cut header", "cut body", "huge", "another magic", "reserved", "nested", "no UTF-8"],
)
def test_an_invalid_message_ends_the_channel(raw):
    with pytest.raises(EOFError):
        read(raw)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_only_end_the_channel(body):
    with contextlib.suppress(EOFError):
        assert isinstance(read(frame(body)), msgspec.Struct)
