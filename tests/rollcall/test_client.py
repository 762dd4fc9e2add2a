"""Every way in which a door can answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from distcheck.facts import Missing, Resolution
from distcheck.rollcall import client, protocol
from distcheck.rollcall.client import Door
from distcheck.rollcall.protocol import Welcome, encode


async def _attend(hello, *ways: Door, seconds: float = 0.5, connect_seconds: float = 0.4):
    start = asyncio.get_running_loop().time()
    came = await client.attend(ways, hello("guest", 1), seconds=seconds, connect_seconds=connect_seconds)
    return came, asyncio.get_running_loop().time() - start


@contextlib.asynccontextmanager
async def _program(answer: bytes | None, *, close: bool = False):
    """Serve something that is no roll call."""

    async def serve(reader, writer):
        if close:
            writer.close()
            return
        if answer is not None:
            writer.write(answer)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@contextlib.contextmanager
def _full_port():
    """Listen with a backlog that is full: the kernel drops what comes next, as a firewall does."""
    with socket.socket() as full, contextlib.ExitStack() as crowd:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = crowd.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
        time.sleep(0.1)
        yield int(full.getsockname()[1])


def _door(port: int, **fields) -> Door:
    return Door("127.0.0.1", port, **{"side": False, **fields})


def test_a_door_that_opens_is_met_at_once(hosting, live, hello):
    async def main():
        async with hosting() as host:
            came, seconds = await _attend(hello, _door(host.port), seconds=9)
            assert [(a.outcome, a.door, a.tries) for a in came.attempts] == [("met", "master", 1)]
            assert came.connection.welcome.uid == "host"
            assert came.connection.local_address == came.connection.host_address == "127.0.0.1"
            assert seconds < 2
            came.connection.writer.close()

    live(main())


@pytest.mark.parametrize(
    ("answer", "close", "outcome", "detail"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", False, "foreign", "SSH-2.0-OpenSSH_9.6"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "foreign", "HTTP/1.1 400 Bad Request"),
        (encode(Welcome("stale nonce", "r", "u")), False, "stranger", "another's nonce"),
        (None, False, "silent", "said nothing"),
        (None, True, "closed", ""),
        (protocol.HEADER.pack(protocol.MAGIC, 5000), False, "foreign", "5000 bytes"),
    ],
    ids=["ssh", "http", "stale", "silent", "closed", "huge"],
)
def test_what_is_no_roll_call_is_told_as_what_it_is(live, hello, answer, close, outcome, detail):
    async def main():
        async with _program(answer, close=close) as port:
            came, seconds = await _attend(hello, _door(port))
            assert came.connection is None
            assert [a.outcome for a in came.attempts] == [outcome]
            assert detail in came.attempts[0].detail
            assert seconds < 2

    live(main())


def test_a_shut_door_is_refused_and_tried_again(live, hello, closed_port):
    async def main():
        came, _ = await _attend(hello, _door(closed_port))
        assert [a.outcome for a in came.attempts] == ["refused"]
        assert came.attempts[0].tries > 1

    live(main())


def test_a_door_that_swallows_the_connection_is_a_timeout(live, hello):
    async def main():
        with _full_port() as port:
            came, seconds = await _attend(hello, _door(port))
            assert [a.outcome for a in came.attempts] == ["timeout"]
            assert seconds < 2

    live(main())


def test_an_agent_is_connected_to_and_nothing_is_said(live, hello):
    async def main():
        heard: list[bytes] = []

        async def agent(reader, writer):
            heard.append(await reader.read())
            writer.close()

        server = await asyncio.start_server(agent, "127.0.0.1", 0)
        came, _ = await _attend(hello, _door(server.sockets[0].getsockname()[1], only_connect=True))
        assert [a.outcome for a in came.attempts] == ["agent"]
        await asyncio.sleep(0.05)
        assert set(heard) == {b""}
        server.close()

    live(main())


def test_a_side_door_is_taken_within_moments_when_the_master_door_swallows(hosting, live, hello):
    """A firewall that drops MASTER_PORT, a long --connect-timeout, and a host that waits ten seconds for the report."""

    async def main():
        with _full_port() as port:
            async with hosting() as host:
                ways = _door(port), _door(host.port, side=True)
                came, seconds = await _attend(hello, *ways, seconds=30, connect_seconds=25)
                assert came.connection is not None
                assert seconds < 5
                came.connection.writer.close()

    live(main())


def test_side_doors_that_are_shut_are_not_worth_telling(live, hello, closed_port):
    async def main():
        came, _ = await _attend(hello, _door(closed_port), _door(closed_port, side=True))
        assert [a.door for a in came.attempts] == ["master"]

    live(main())


def test_all_doors_are_listed_master_first():
    found = client.doors(["127.0.0.1", "::1"], 5, "job", agent=True)
    assert [d.port for d in found[:2]] == [5, 5]
    assert all(d.only_connect and not d.side for d in found[:2])
    assert {d.port for d in found[2:]} == set(protocol.side_ports("job"))
    assert len(client.doors(["127.0.0.1"], 5, "job", side=False)) == 1


def test_a_name_is_resolved_or_missing_with_the_reason(live):
    async def main():
        assert isinstance(await client.resolve("127.0.0.1", 5), Resolution)
        found = await client.resolve("x" * 70 + ".invalid", 5)  # no label is so long: nobody is asked
        assert isinstance(found, Missing)
        assert found.reason

    live(main())


def test_a_resolver_that_hangs_is_given_up(live, monkeypatch):
    import threading

    hang = threading.Event()
    monkeypatch.setattr(client.network, "resolve", lambda _name: hang.wait(20))

    async def main():
        found = await client.resolve("node1", 0.2)
        assert isinstance(found, Missing)
        assert "no answer" in found.reason

    live(main())
    hang.set()


def test_a_name_that_comes_late_is_asked_for_again_while_patience_lasts(live, monkeypatch):
    unknown = Missing(reason="[Errno -2] Name or service not known")
    answers = [unknown, Resolution(name="trainer-0", addresses=("10.0.0.1",), seconds=0.001)]
    monkeypatch.setattr(client, "_RESOLVE_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(client.network, "resolve", lambda _name: answers.pop(0) if len(answers) > 1 else answers[0])
    found = live(client.resolve("trainer-0", 5, 5))
    assert (found.tries, found.addresses) == (2, ("10.0.0.1",))
    assert found.seconds >= 0.05
    answers[:] = [unknown]
    assert live(client.resolve("trainer-0", 5, 0.2)) == unknown
    assert live(client.resolve("trainer-0", 5)) == unknown
