"""How long the leader waits on one connection: for the Hello, for the report, and then without an end."""

import asyncio
import contextlib
import time

import pytest

from distcheck.rollcall import framing, protocol, visit
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Here, NotYet, Welcome

HELLO, REPORT = 0.4, 2.4


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(visit, "_HELLO_SECONDS", HELLO)
    monkeypatch.setattr(visit, "_REPORT_SECONDS", REPORT)


async def answer_to(hello, leader):
    """Connect and say Hello; return the connection and the answer."""
    reader, writer = await leader.connect()
    writer.write(encode(hello))
    return reader, writer, await framing.read(reader, protocol.answer_decoder)


async def ended(reader) -> float:
    """Return how long a connection stays open."""
    start = time.monotonic()
    with contextlib.suppress(ConnectionError):  # the leader aborts it
        assert await asyncio.wait_for(reader.read(), 10) == b""
    return time.monotonic() - start


@pytest.mark.usefixtures("patience")
async def test_a_connection_without_a_hello_ends(leading):
    async with leading() as leader:
        reader, _ = await leader.connect()
        assert HELLO / 2 < await ended(reader) < REPORT
        assert not leader.server._visits


@pytest.mark.usefixtures("patience")
async def test_a_follower_that_was_welcomed_has_the_time_for_its_report(leading, hello):
    async with leading() as leader:
        reader, _, answer = await answer_to(hello("follower", 1), leader)
        assert isinstance(answer, Welcome)
        assert await ended(reader) > HELLO + (REPORT - HELLO) / 2
        assert not leader.server.followers


@pytest.mark.usefixtures("patience")
async def test_a_follower_that_has_reported_stays_as_long_as_it_likes(leading, hello, report):
    async with leading() as leader:
        _, writer, _ = await answer_to(hello("follower", 1), leader)
        writer.write(encode(report("follower", 1)))
        await asyncio.sleep(REPORT + HELLO)
        assert not leader.server.followers["follower"].gone
        writer.write(encode(Here()))
        assert isinstance(await leader.server.followers["follower"].hear(), Here)


async def test_a_follower_that_is_turned_away_is_closed_at_once(leading, hello):
    async with leading() as leader:
        reader, _, answer = await answer_to(hello("follower", 1, master="another:1"), leader)
        assert isinstance(answer, NotYet)
        assert await ended(reader) < visit._HELLO_SECONDS
