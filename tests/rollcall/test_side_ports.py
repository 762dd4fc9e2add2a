"""Side ports are for when MASTER_PORT does not lead to the leader: nothing is sent to them before."""

from __future__ import annotations

import asyncio
import time

import pytest

from distcheck.rollcall import client
from distcheck.rollcall.handshake import Door
from distcheck.rollcall.server import Server


async def _attend(hello, *ways: Door):
    """Join by these endpoints; return how they answered."""
    came = await client.attend(ways, hello("follower", 1), seconds=30, connect_seconds=5)
    assert came.connection is not None
    came.connection.writer.close()
    return {(a.door, a.outcome) for a in came.attempts}


def _door(port: int, *, side: bool = False) -> Door:
    return Door("127.0.0.1", port, side=side)


class _Times(list[float]):
    """The seconds from `start` to each Hello that a leader answers."""

    start = 0.0


@pytest.fixture
def asked_after(monkeypatch):
    """Note when leaders answer a Hello."""
    times = _Times()
    times.start = time.monotonic()
    answer = Server.answer

    def noted(self, said):
        times.append(time.monotonic() - times.start)
        return answer(self, said)

    monkeypatch.setattr(Server, "answer", noted)
    return times


def test_a_follower_that_the_master_port_admits_makes_one_connection(leading, live, hello):
    knocks = []

    async def main():
        async def side(_reader, writer):
            knocks.append(1)
            writer.close()

        server = await asyncio.start_server(side, "127.0.0.1", 0)
        async with leading() as leader:
            door = _door(server.sockets[0].getsockname()[1], side=True)
            outcomes = await _attend(hello, _door(leader.port), door)
        server.close()
        return outcomes

    assert live(main()) == {("master", "met")}
    assert knocks == []


@pytest.mark.parametrize("agent", [False, True])
def test_a_master_port_that_turns_a_process_away_does_not_delay_the_side_ports(
    leading, live, hello, closed_port, asked_after, agent
):
    """It is closed, or torchrun's agent listens there."""

    async def main():
        async with leading() as leader, leading() as other:
            master = _door(other.port)._replace(only_connect=True) if agent else _door(closed_port)
            return await _attend(hello, master, _door(leader.port, side=True))

    assert live(main()) == {("master", "agent" if agent else "refused"), ("side", "met")}
    assert asked_after[0] < client._MASTER_PATIENCE_SECONDS


def test_a_master_port_that_says_nothing_delays_the_side_ports_and_is_tried_as_long_again(
    leading, live, hello, asked_after
):
    async def main():
        async def silent(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with leading() as leader:
            master = _door(server.sockets[0].getsockname()[1])
            outcomes = await _attend(hello, master, _door(leader.port, side=True))
            ended = time.monotonic() - asked_after.start
            await asyncio.sleep(0.05)
        server.close()
        return outcomes, ended

    outcomes, ended = live(main())
    assert ("side", "met") in outcomes
    assert asked_after[0] >= client._MASTER_PATIENCE_SECONDS
    assert ended - asked_after[0] < client._MASTER_PATIENCE_SECONDS + 1
