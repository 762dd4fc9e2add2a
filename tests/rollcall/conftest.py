"""A leader of the roll call and its followers, on the loopback only."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec
import pytest
from forms.coroutines import run_live
from made.jobs import node_of

from distcheck.facts.base import Missing
from distcheck.facts.pci import Pci
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts
from distcheck.probe import network
from distcheck.rollcall import client, identity
from distcheck.rollcall.client import Attendance
from distcheck.rollcall.doors import PeerListener
from distcheck.rollcall.protocol import Found, Hello, Report
from distcheck.rollcall.server import Server

PYTHON = Installed("3.11.7", "/usr", Missing(reason="not installed"))
JOB, MASTER = "a job", "127.0.0.1:29500"


def report_of(
    uid: str, *ranks: int, node: str = "node1", world_size: int = 4, pci: Pci | Missing | None = None
) -> Report:
    facts = msgspec.structs.replace(node_of(1, 0), key=node, name=node, hostname=node, pci=pci)
    place = Placement(world_size=world_size, master_addr="127.0.0.1", master_port=29500)
    return Report(
        facts,
        ProcessFacts(uid=uid, node=node, pid=1, command=("distcheck",), installed=PYTHON),
        tuple(RankFacts(process=uid, placement=msgspec.structs.replace(place, rank=n), environment={}) for n in ranks),
    )


def hello_of(uid: str, *ranks: int, **fields) -> Hello:
    said = {"nonce": "n", "job": identity.public_key(JOB), "master": MASTER, "world_size": 4}
    return Hello(**{**said, "uid": uid, "ranks": ranks, "seconds_left": 60.0, **fields})


class Leader:
    """A server and its port."""

    def __init__(self, world_size: int, secret: bytes | None = None) -> None:
        self.server = Server(
            run="run", uid="leader", job=JOB, master=MASTER, ranks=[0], world_size=world_size, secret=secret
        )
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []
        """Our ends of the connections, closed at the end."""

    async def come(
        self,
        uid: str,
        *ranks: int,
        seconds: float = 5,
        secret: bytes | None = None,
        port: int | None = None,
        found: Found = "master",
        said: Report | None = None,
        **fields,
    ) -> Attendance:
        """Join as a well-behaved follower that reports `said`, through a `port` if one is given."""
        ways = client.doors(["127.0.0.1"], port or self.port, JOB, side=False)
        came = await client.attend(
            tuple(door._replace(found=found) for door in ways),
            hello_of(uid, *ranks, **fields),
            seconds=seconds,
            connect_seconds=2,
            secret=secret,
        )
        if came.connection is not None:
            self.writers.append(came.connection.writer)
            came.connection.say(said or report_of(uid, *ranks))
        return came

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and send nothing."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def _leading(world_size: int = 4, secret: bytes | None = None) -> AsyncIterator[Leader]:
    leader = Leader(world_size, secret)
    sock = network.listen(0)
    leader.port = int(sock.getsockname()[1])
    await leader.server.open(sock)
    try:
        yield leader
    finally:
        await leader.server.close()
        for writer in leader.writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def endpoints(
    *addresses: str,
    uid: str = "b",
    nonce: str = "nonce",
    secret: bytes | None = None,
    uses: Iterable[str] = ("master",),
) -> AsyncIterator[PeerListener]:
    """Open the endpoints of a process, which has its roster unless `nonce` is empty."""
    listener = PeerListener(uid, secret)
    await listener.open(dict.fromkeys(addresses or ("127.0.0.1",), tuple(uses)))
    if nonce:
        listener.expect(nonce)
    try:
        yield listener
    finally:
        await listener.close()


@pytest.fixture
def leading():
    """Open a roll call: ``async with leading(world_size) as leader``."""
    return _leading


@pytest.fixture
def report():
    """Build a small report: see `report_of`."""
    return report_of


@pytest.fixture
def hello():
    """Build a Hello: see `hello_of`."""
    return hello_of


@pytest.fixture
def live() -> Callable[..., object]:
    """Run a coroutine inside of a test: see `run_live`."""
    return run_live


@pytest.fixture
def closed_port():
    """A port without a listener, kept by a socket that is bound only."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])
