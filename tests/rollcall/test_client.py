"""Every way in which an endpoint can answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from distcheck.facts.network import A_STORE
from distcheck.rollcall import client, framing, handshake, identity, protocol, wire
from distcheck.rollcall.framing import encode
from distcheck.rollcall.handshake import Door
from distcheck.rollcall.protocol import Welcome
from distcheck.rollcall.server import Server


async def _attend(hello, *ways: Door, seconds: float = 0.5, connect_seconds: float = 0.4):
    start = asyncio.get_running_loop().time()
    came = await client.attend(ways, hello("follower", 1), seconds=seconds, connect_seconds=connect_seconds)
    if came.connection is not None:
        came.connection.writer.close()
    return came, asyncio.get_running_loop().time() - start


@contextlib.asynccontextmanager
async def _serving(serve):
    """Yield the port of a program that does this with each connection."""
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


async def _copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


async def _forward(reader, writer, port):
    there, back = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


def _door(port: int, **fields) -> Door:
    return Door("127.0.0.1", port, **{"side": False, **fields})


async def test_an_open_endpoint_is_joined_at_once(leading, hello):
    async with leading() as leader:
        came, seconds = await _attend(hello, _door(leader.port), seconds=9)
        assert [(a.outcome, a.door, a.tries) for a in came.attempts] == [("met", "master", 1)]
        assert came.connection.welcome.uid == "leader"
        assert came.connection.local_address == came.connection.leader_address == "127.0.0.1"
        assert seconds < 2


@pytest.mark.parametrize(
    ("answer", "close", "outcome", "detail"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", False, "foreign", "SSH-2.0-OpenSSH_9.6"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "foreign", "HTTP/1.1 400 Bad Request"),
        (encode(Welcome("stale nonce", "r", "u")), False, "stranger", "a wrong nonce"),
        (None, False, "silent", "sent nothing"),
        (None, True, "closed", ""),
        (wire.HEADER.pack(wire.MAGIC, 5000), False, "foreign", "5000 bytes"),
    ],
    ids=["ssh", "http", "stale", "silent", "closed", "huge"],
)
async def test_other_servers_are_reported_as_what_they_are(hello, answer, close, outcome, detail):
    async def serve(reader, writer):
        if answer is not None:
            writer.write(answer)
        if not close:
            with contextlib.suppress(OSError):
                await reader.read()
        writer.close()

    async with _serving(serve) as port:
        came, seconds = await _attend(hello, _door(port))
        assert came.connection is None
        assert [a.outcome for a in came.attempts] == [outcome]
        assert detail in came.attempts[0].detail
        assert seconds < 2


@pytest.mark.parametrize("side", [False, True])
async def test_a_store_of_torch_is_known_by_its_answer_to_a_ping(hello, side):
    """A TCPStore waits for the rest of what it takes for a request, and so does not answer a Hello."""

    heard: list[bytes] = []

    async def store(reader, writer):
        with contextlib.suppress(OSError, EOFError):
            said = await reader.readexactly(10)
            heard.append(said[:6])
            if said[0] == 0:
                writer.write(said[-4:])
            await reader.read()
        writer.close()

    async with _serving(store) as port:
        came, _ = await _attend(hello, _door(port, side=side))
    assert [a.outcome for a in came.attempts] == ["silent"]
    assert (came.attempts[0].detail == A_STORE) == (not side)
    assert (b"\x00\xce\xf7\x85\x3c\x0d" in heard) == (not side)


async def test_a_closed_port_is_refused_and_retried(hello, closed_port):
    came, _ = await _attend(hello, _door(closed_port))
    assert [a.outcome for a in came.attempts] == ["refused"]
    assert came.attempts[0].tries > 1


async def test_an_endpoint_that_drops_packets_is_a_timeout(hello):
    with _full_port() as port:
        came, seconds = await _attend(hello, _door(port))
        assert [a.outcome for a in came.attempts] == ["timeout"]
        assert seconds < 2


async def test_an_agent_gets_a_connection_and_no_data(hello):
    heard: list[bytes] = []

    async def agent(reader, writer):
        heard.append(await reader.read())
        writer.close()

    async with _serving(agent) as port:
        came, _ = await _attend(hello, _door(port, only_connect=True))
        assert [a.outcome for a in came.attempts] == ["agent"]
        await asyncio.sleep(0.05)
        assert set(heard) == {b""}


@pytest.mark.parametrize("outcome", ["agent", "refused"])
async def test_the_last_attempt_on_a_long_path_does_not_replace_an_earlier_answer(hello, monkeypatch, outcome):
    """It ends with the roll call, before its answer can arrive: no packet was dropped."""

    async def answer_after_a_round_trip(door, hello, seconds, *_):
        await asyncio.sleep(min(0.25, seconds))
        return (door.attempt(outcome) if seconds > 0.25 else door.attempt("timeout")), None

    monkeypatch.setattr(client, "shake_hands", answer_after_a_round_trip)
    came, _ = await _attend(hello, _door(1), seconds=0.5, connect_seconds=0.4)
    assert [(a.outcome, a.tries) for a in came.attempts] == [(outcome, 2)]


def test_a_side_port_is_used_soon_if_the_master_port_drops_packets(leading, live, hello):
    """A firewall that drops MASTER_PORT, a long --connect-timeout, and a leader that waits 10 s for the report."""

    async def main():
        with _full_port() as port:
            async with leading() as leader:
                ways = _door(port), _door(leader.port, side=True)
                came, seconds = await _attend(hello, *ways, seconds=30, connect_seconds=25)
                assert came.connection is not None
                assert seconds < 5
                (master,) = [a for a in came.attempts if a.door == "master"]
                assert (master.port, master.outcome) == (port, "timeout")
                assert master.detail.startswith("no answer within ")
                assert [a.outcome for a in came.attempts if a.door == "side"] == ["met"]


async def test_a_master_port_without_time_to_answer_is_not_called_closed(leading, hello, monkeypatch):
    """The kernel sends a second SYN after a second: one that is lost is no firewall."""
    monkeypatch.setattr(client, "_MASTER_PATIENCE_SECONDS", 0.2)

    with _full_port() as port:
        async with leading() as leader:
            came, _ = await _attend(hello, _door(port), _door(leader.port, side=True), seconds=30, connect_seconds=25)
            assert came.connection is not None
            assert [a.door for a in came.attempts] == ["side"]


async def test_a_master_port_that_is_slow_to_answer_is_reachable_though_a_side_port_answers_first(
    leading, hello, monkeypatch
):
    """A busy node, or a SYN that was lost twice: it is no firewall."""
    monkeypatch.setattr(client, "_MASTER_PATIENCE_SECONDS", 0.4)

    async with leading() as leader:

        async def forward(reader, writer):
            await asyncio.sleep(0.6)
            await _forward(reader, writer, leader.port)

        async with _serving(forward) as port:
            ways = _door(port), _door(leader.port, side=True)
            came, seconds = await _attend(hello, *ways, seconds=30, connect_seconds=25)
        assert {(a.door, a.outcome) for a in came.attempts} == {("master", "met"), ("side", "met")}
        assert seconds < 5


@pytest.mark.parametrize("seconds", [0.4, 60])
async def test_a_master_port_that_was_silent_is_tried_again_once_a_side_port_answers(
    leading, hello, monkeypatch, seconds
):
    """Rank 0's process was frozen, or another program listens there and never answers."""
    monkeypatch.setattr(client, "_MASTER_PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(client, "_ANSWER_SECONDS", 0.5)
    began = time.monotonic()

    async with leading() as leader, leading() as side:

        async def forward(reader, writer):
            if time.monotonic() < began + seconds:
                await reader.read()
                writer.close()
                return
            await _forward(reader, writer, leader.port)

        async with _serving(forward) as port:
            ways = _door(port), _door(side.port, side=True)
            came, took = await _attend(hello, *ways, seconds=30, connect_seconds=25)
        expected = "met" if seconds < 1 else "silent"
        assert {(a.door, a.outcome) for a in came.attempts} == {("master", expected), ("side", "met")}
        assert took < 5


@pytest.mark.parametrize(("patience", "expected"), [(0.3, []), (2.0, ["timeout"])])
async def test_a_refusal_before_the_leader_listened_is_not_what_is_reported_of_the_master_port(
    leading, hello, monkeypatch, patience, expected
):
    """The leader came up between two rounds, and packets of the second attempt were lost."""
    monkeypatch.setattr(client, "_MASTER_PATIENCE_SECONDS", patience)
    asked = []

    async def shake_hands(door, *said):
        if door.side:
            return await handshake.shake_hands(door, *said)
        asked.append(door)
        if len(asked) > 1:
            await asyncio.sleep(60)
        return door.attempt("refused"), None

    monkeypatch.setattr(client, "shake_hands", shake_hands)
    async with leading() as leader:
        came, _ = await _attend(hello, _door(1), _door(leader.port, side=True), seconds=30, connect_seconds=25)
    assert len(asked) == 2
    assert [a.outcome for a in came.attempts if a.door == "master"] == expected


@pytest.mark.long
@pytest.mark.parametrize("after", ["silent", "closed"])
async def test_who_was_told_that_the_leader_is_full_knows_it_though_nobody_answers_later(hello, after):
    asked = []

    async def serve(reader, writer):
        asked.append(writer)
        if len(asked) == 1:
            said = framing.decode(await framing.read_body(reader, 1 << 16), protocol.hello_decoder)
            writer.write(encode(protocol.Refused(said.nonce, "no more files", full=True)))
        if len(asked) == 1 or after == "closed":
            writer.close()

    async with _serving(serve) as port:
        came, _ = await _attend(hello, _door(port), seconds=1)
    assert len(asked) > 1
    assert [(a.outcome, a.detail) for a in came.attempts] == [("full", "no more files")]
    for writer in asked:
        writer.close()


@pytest.mark.parametrize("agent", [False, True])
async def test_a_master_port_that_turns_a_process_away_does_not_delay_the_side_ports(
    leading, hello, closed_port, monkeypatch, agent
):
    """It is closed, or torchrun's agent listens there."""
    answer, asked, began = Server.answer, [], time.monotonic()
    monkeypatch.setattr(Server, "answer", lambda self, said: asked.append(time.monotonic()) or answer(self, said))

    async with leading() as leader, leading() as other:
        master = _door(other.port, only_connect=True) if agent else _door(closed_port)
        came, _ = await _attend(hello, master, _door(leader.port, side=True), seconds=30, connect_seconds=5)
    assert {(a.door, a.outcome) for a in came.attempts} == {
        ("master", "agent" if agent else "refused"),
        ("side", "met"),
    }
    assert came.connection.leader_address == "127.0.0.1"
    assert asked[0] - began < client._MASTER_PATIENCE_SECONDS


async def test_no_side_port_is_asked_where_the_master_port_answers(leading, hello):
    knocks = []

    async def side(_reader, writer):
        knocks.append(1)
        writer.close()

    async with _serving(side) as port, leading() as leader:
        came, _ = await _attend(hello, _door(leader.port), _door(port, side=True))
    assert ([(a.door, a.outcome) for a in came.attempts], knocks) == ([("master", "met")], [])


async def test_the_master_port_is_tried_briefly_after_a_side_port_answered(leading, hello):
    async def greet(_reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    async with leading() as leader:
        with socket.socket() as late:
            late.bind(("127.0.0.1", 0))
            ways = _door(late.getsockname()[1]), _door(leader.port, side=True)
            attending = asyncio.ensure_future(_attend(hello, *ways, seconds=30, connect_seconds=25))
            await asyncio.sleep(0.3)
            server = await asyncio.start_server(greet, sock=late)
            came, _ = await attending
            server.close()
        assert [(a.door, a.outcome) for a in came.attempts] == [("master", "foreign"), ("side", "met")]


async def test_closed_side_ports_are_not_reported(hello, closed_port):
    came, _ = await _attend(hello, _door(closed_port), _door(closed_port, side=True))
    assert [a.door for a in came.attempts] == ["master"]


@pytest.mark.long
async def test_a_follower_finds_the_leader_by_an_endpoint_added_meanwhile(leading, hello, closed_port):
    async with leading() as leader:
        leads = []
        ways = (_door(closed_port),)
        attending = asyncio.ensure_future(
            client.attend(ways, hello("follower", 1), seconds=20, connect_seconds=1, leads=leads)
        )
        await asyncio.sleep(0.5)
        assert not attending.done()
        leads.append(_door(leader.port, side=True, found="job"))
        came = await asyncio.wait_for(attending, 10)
        came.connection.writer.close()
        assert [(a.door, a.outcome) for a in came.attempts] == [("master", "refused"), ("side", "met")]


@pytest.mark.long
async def test_a_follower_follows_a_redirect_and_reports_it(leading, hello, closed_port):
    async with leading() as leader, leading() as post:
        # Both listen on one port, as side doors do, at different addresses.
        post.server.leader_at = "127.0.0.1"
        here = socket.create_server(("127.0.0.1", 0))
        port = int(here.getsockname()[1])
        await leader.server.open(here)
        await post.server.open(socket.create_server(("127.0.0.2", port)))
        ways = (_door(closed_port), Door("127.0.0.2", port, side=True))
        came, seconds = await _attend(hello, *ways, seconds=20)
        assert came.connection is not None
        assert seconds < 5
        assert {(a.address, a.outcome, a.detail) for a in came.attempts if a.door == "side"} == {
            ("127.0.0.2", "elsewhere", "127.0.0.1"),
            ("127.0.0.1", "met", ""),
        }


@pytest.mark.parametrize("named", ["a name that a resolver would be asked for", "", "127.0.0.1:80", "[::1]"])
async def test_a_redirect_without_a_valid_address_is_ignored(leading, hello, named):
    async with leading() as post:
        post.server.leader_at = named or "x"
        leads = []
        ways = (_door(post.port, side=True),)
        came = await client.attend(ways, hello("follower", 1), seconds=0.5, connect_seconds=0.4, leads=leads)
        assert (came.connection, leads) == (None, [])


@pytest.mark.long
async def test_possible_endpoints_are_tried_once_a_second_and_reported_only_if_they_answer(hello):
    knocks = []

    async def serve(_reader, writer):
        knocks.append(time.monotonic())
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    async with _serving(serve) as port:
        leads = [_door(port, side=True, found="job")]
        came = await client.attend((), hello("follower", 1), seconds=2.6, connect_seconds=0.4, leads=leads)
    assert came == (None, ())
    assert len(knocks) in {2, 3}


def test_all_endpoints_are_listed_with_the_master_port_first():
    found = client.doors(["127.0.0.1", "::1"], 5, "job", agent=True)
    assert [d.port for d in found[:2]] == [5, 5]
    assert all(d.only_connect and not d.side for d in found[:2])
    assert {d.port for d in found[2:]} == set(identity.side_ports("job"))
    assert len(client.doors(["127.0.0.1"], 5, "job", side=False)) == 1
