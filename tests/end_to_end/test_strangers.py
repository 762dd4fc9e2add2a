"""Strangers on the loopback during a real roll call: it ends in time, and with a token unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import psutil
import pytest

from distcheck.facts.placement import Placement
from distcheck.probe import host
from distcheck.probe.own import process_facts, rank_facts
from distcheck.rollcall import framing, identity, protocol, wire
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Hello, Refused, Report
from distcheck.rollcall.wire import HEADER, MAGIC

TABLE = ["--sizes", "64K:64K", "--iters", "3"]
RANKS = 3


class Job:
    """What strangers know of a job: all that crosses the network, and all that is not secret."""

    def __init__(self, token: str, port: int) -> None:
        self.place = Placement(
            rank=1, world_size=RANKS, master_addr="127.0.0.1", master_port=port, launcher="by hand", by_options=True
        )
        environ = {"DISTCHECK_TOKEN": token}
        self.name = identity.job_key(environ, self.place)
        self.secret = identity.job_secret(environ)
        self.port = port
        self.ports = (port, *identity.side_ports(self.name))
        self.done: Counter[str] = Counter()
        """How often each stranger came."""
        self.node = host.collect(dict(os.environ))
        self.writers: list[asyncio.StreamWriter] = []

    def hello(self, uid: str, rank: int = 1, **fields: Any) -> Hello:
        said = {
            "nonce": "n", "job": identity.public_key(self.name), "seconds_left": 60.0,
            "master": f"127.0.0.1:{self.port}", "uid": uid, "ranks": (rank,), "world_size": RANKS,
        }  # fmt: skip
        return Hello(**{**said, **fields})

    def report(self, uid: str, rank: int = 1) -> Report:
        process = msgspec.structs.replace(process_facts(uid, self.node), stage="meeting")
        place = msgspec.structs.replace(self.place, rank=rank)
        return Report(self.node, process, (rank_facts(uid, self.node, place, {}),))


async def _connect(job: Job, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    job.writers.append(writer)
    return reader, writer


async def random_bytes(job: Job, port: int) -> None:
    _, writer = await _connect(job, port)
    writer.write(random.randbytes(random.randint(1, 2000)))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()


async def half_open(job: Job, port: int) -> None:
    _, writer = await _connect(job, port)
    await asyncio.sleep(3)
    writer.close()


async def slow_writer(job: Job, port: int) -> None:
    """A good Hello, byte by byte, which is never finished."""
    _, writer = await _connect(job, port)
    for byte in encode(job.hello("slow"))[:-1]:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.03)
    writer.close()


async def huge_frame(job: Job, port: int) -> None:
    reader, writer = await _connect(job, port)
    writer.write(HEADER.pack(MAGIC, 0xFFFFFFFF) + bytes(5000))
    await asyncio.wait_for(reader.read(100), 2)
    writer.close()


async def port_scanner(job: Job, port: int) -> None:
    _, writer = await _connect(job, port)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def stale_job(job: Job, port: int) -> None:
    """A distcheck of another job, which takes the port for its own."""
    reader, writer = await _connect(job, port)
    writer.write(encode(job.hello("stale", job=identity.public_key("another job"))))
    answer = await asyncio.wait_for(framing.read(reader, protocol.answer_decoder), 2)
    writer.close()
    job.done["refused"] += isinstance(answer, Refused)


async def other_versions(job: Job, port: int) -> None:
    good = encode(job.hello("other"))
    told = msgspec.msgpack.decode(good[HEADER.size :])
    newer = msgspec.msgpack.encode({**told, "word": "Greeting", "more": [1, 2]})
    older = msgspec.msgpack.encode({"word": "Hello", "nonce": "n", "job": told["job"]})
    for said in (b"DCK2" + good[4:], b"DCK0" + good[4:], *(HEADER.pack(MAGIC, len(b)) + b for b in (newer, older))):
        reader, writer = await _connect(job, port)
        writer.write(said)
        await asyncio.wait_for(reader.read(100), 2)
        writer.close()


async def claims_a_rank(job: Job, port: int) -> None:
    """Says the Hello of rank 1, and whatever it is asked, its report: it does not know the token."""
    reader, writer = await _connect(job, port)
    uid = os.urandom(4).hex()
    writer.write(encode(job.hello(uid)))
    answer = await asyncio.wait_for(framing.read(reader, protocol.answer_decoder), 2)
    writer.write(encode(job.report(uid)))
    if isinstance(answer, protocol.Welcome):
        writer.write(encode(protocol.Trouble("rank 1 died")))
    await asyncio.sleep(0.5)
    writer.close()


HARMLESS = (random_bytes, half_open, slow_writer, huge_frame, port_scanner, stale_job, other_versions)
"""One that replays a conversation is in tests/rollcall/test_seal.py."""
Stranger = Callable[[Job, int], Coroutine[Any, Any, None]]


async def _besiege(job: Job, strangers: tuple[Stranger, ...], doors: Callable[[], set[int]]) -> None:
    """Let strangers connect to every endpoint repeatedly until they are cancelled."""

    async def come(stranger: Stranger, port: int) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError, wire.ProtocolError):
            job.done[stranger.__name__] += 1
            await stranger(job, port)

    coming: set[asyncio.Task[None]] = set()
    try:
        while True:
            for port in doors():
                for stranger in strangers:
                    task = asyncio.create_task(come(stranger, port))
                    coming.add(task)
                    task.add_done_callback(coming.discard)
            await asyncio.sleep(0.25)
    finally:
        for task in tuple(coming):
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for writer in job.writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)


@contextlib.contextmanager
def besieged(job: Job, strangers: tuple[Stranger, ...], doors: Callable[[], set[int]]) -> Iterator[None]:
    """Let strangers come for as long as the block lasts, from a thread of their own."""
    loop = asyncio.new_event_loop()
    siege = loop.create_task(_besiege(job, strangers, doors))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(siege)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(siege.cancel)
        thread.join(30)
        loop.close()


def doors_of(job: Job, pids: Callable[[], list[int]]) -> Callable[[], set[int]]:
    """Find the ports as a port scanner would: MASTER_PORT, the side ports, and all others that the processes open."""

    def doors() -> set[int]:
        found = set(job.ports)
        for pid in pids():
            with contextlib.suppress(psutil.Error):
                found |= {
                    c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN
                }
        return found

    return doors


@pytest.fixture
def run_besieged(by_hand, port):
    """Run a command on three ranks started by hand while strangers come; returns how the ranks ended, and the job."""

    def run(command: str, token: str, strangers: tuple[Stranger, ...], *args: str):
        job = Job(token, port)
        runs = []
        env = {"DISTCHECK_TOKEN": token}
        with besieged(job, strangers, doors_of(job, lambda: [r.process.pid for r in runs])):
            runs += by_hand(command, [0], RANKS, "--format", "json", *args, env=env)
            time.sleep(2.5)  # strangers are there before anybody else comes
            runs += by_hand(command, [1, 2], RANKS, "--format", "json", *args, env=env)
            ended = [r.wait(100) for r in runs]
        assert all("Traceback" not in e.err + e.out and "broke" not in e.err for e in ended), ended
        assert all(not token or token not in e.out + e.err for e in ended)
        assert {"refused", *(s.__name__ for s in strangers)} <= set(job.done), job.done
        return ended, job

    return run


@pytest.mark.parametrize(("command", "args"), [("net", []), pytest.param("gate", TABLE, marks=pytest.mark.slow)])
def test_with_a_token_strangers_change_nothing(run_besieged, mark, command, args):
    ended, _ = run_besieged(command, f"open {mark}", (*HARMLESS, claims_a_rank), "--timeout", "60", *args)
    assert [e.code for e in ended] == [0, 0, 0], ended
    report = ended[0].report
    assert (report["verdict"], report["findings"], report["missing_ranks"]) == ("pass", [], [])
    assert [r["rank"] for r in report["ranks"]] == [0, 1, 2]
    assert [r["status"] for r in report["ranks"]] == ["ok"] * 3
    assert max(e.seconds for e in ended) < 65


def test_without_a_token_strangers_outside_this_job_change_nothing(run_besieged):
    ended, _ = run_besieged("net", "", HARMLESS, "--timeout", "60")
    assert [e.code for e in ended] == [0, 0, 0], ended
    report = ended[0].report
    assert (report["verdict"], report["findings"], report["missing_ranks"]) == ("pass", [], [])
    assert max(e.seconds for e in ended) < 65


def test_without_a_token_a_stranger_that_claims_a_rank_prevents_a_pass_and_breaks_nothing(run_besieged):
    ended, _ = run_besieged("env", "", (*HARMLESS, claims_a_rank), "--timeout", "30", "--join-timeout", "8")
    assert {e.code for e in ended} <= {20, 30}, ended
    assert max(e.seconds for e in ended) < 35
