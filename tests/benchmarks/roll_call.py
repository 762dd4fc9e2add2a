"""Gather the facts of 8,192 ranks over loopback: ``python roll_call.py distcheck|store`` prints the seconds.

Both sides carry the same facts from the same two follower processes to one leader, which ends with one merged job. With
distcheck a node's process speaks for its 8 ranks; with the store every rank is a client that sets its facts, which
rank 0 gets. A follower process makes its clients one after the other: threads made that slower. Time runs from the word
"go" to the merged job; building the facts beforehand does not count.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.job import Job
from distcheck.probe import network
from distcheck.rollcall import client, identity
from distcheck.rollcall.protocol import Hello, Report
from distcheck.rollcall.server import Server

sys.path.insert(0, str(Path(__file__).parents[1]))
from made.jobs import healthy_job, reports_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

NODES, PER_NODE, FOLLOWERS = 1024, 8, 2
RANKS = NODES * PER_NODE
JOB = "benchmark"


def merge(job: Job, reports: list[Report]) -> Job:
    """Return the job that the reports make up, which must be whole."""
    merged = msgspec.structs.replace(
        job,
        nodes=tuple({r.node.key: r.node for r in reports}.values()),
        processes=tuple({r.process.uid: r.process for r in reports}.values()),
        ranks=tuple(sorted((k for r in reports for k in r.ranks), key=lambda k: k.placement.rank or 0)),
    )
    if len(merged.ranks) != RANKS or len(merged.nodes) != NODES:
        raise SystemExit(f"the merged job has {len(merged.ranks)} ranks on {len(merged.nodes)} nodes")
    return merged


# --- distcheck


async def host(reports: list[Report], job: Job, go: Callable[[int], float]) -> float:
    own = reports[0]
    sock = network.listen(0)
    port = int(sock.getsockname()[1])
    server = Server(run="run", uid=own.process.uid, job=JOB, master="m:1", ranks=range(PER_NODE), world_size=RANKS)
    await server.open(sock)
    await server.open_side_door()
    start = go(port)
    if not await server.wait_for_all(120):
        raise SystemExit(f"{len(server.missing(RANKS))} ranks did not come")
    merge(job, [own, *(f.report for f in server.followers.values())])
    seconds = time.perf_counter() - start
    await server.close()
    return seconds


async def attend(reports: list[Report], port: int) -> None:
    async def come(report: Report) -> client.Connection:
        hello = Hello(
            nonce="",
            job=identity.public_key(JOB),
            master="m:1",
            uid=report.process.uid,
            ranks=tuple(r.placement.rank or 0 for r in report.ranks),
            world_size=RANKS,
            seconds_left=60.0,
        )
        doors = client.doors(["127.0.0.1"], port, JOB)
        came = await client.attend(doors, hello, seconds=60, connect_seconds=30)
        if came.connection is None:
            raise SystemExit(f"a follower was not let in: {came.attempts}")
        came.connection.say(report)
        await came.connection.writer.drain()
        return came.connection

    connections = await asyncio.gather(*(come(r) for r in reports))
    for connection in connections:  # the host closes first
        await connection.reader.read()


# --- the store


def store_host(job: Job, go: Callable[[int], float]) -> float:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=100))
    decoder = msgspec.msgpack.Decoder(Report)
    start = go(store.port)
    reports = [decoder.decode(store.get(str(rank))) for rank in range(RANKS)]
    merge(job, reports)
    return time.perf_counter() - start


def store_clients(reports: list[Report], port: int) -> list[Any]:
    import torch.distributed as dist

    clients = []
    for report in reports:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        store.set(str(report.ranks[0].placement.rank), msgspec.msgpack.encode(report))
        clients.append(store)
    return clients


# --- both


def be_followers(kind: str, reports: list[Report], pipe: Connection) -> None:
    if kind == "store":
        import torch.distributed  # noqa: F401 imported before the time runs
    pipe.send("ready")
    port = pipe.recv()
    if kind == "distcheck":
        asyncio.run(attend(reports, port))
        return
    clients = store_clients(reports, port)
    pipe.recv()
    os._exit(len(clients) == 0)


def main() -> None:
    kind = sys.argv[1]
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft[1], soft[1]))
    job = healthy_job(NODES, PER_NODE, "distcheck", gpus=PER_NODE)
    reports = reports_of(job)
    # With the store each rank says what its node and process are, because each is a client of its own.
    said = (
        reports[1:]
        if kind == "distcheck"
        else [msgspec.structs.replace(report, ranks=(rank,)) for report in reports for rank in report.ranks]
    )
    context = multiprocessing.get_context("fork")
    pipes = []
    for follower in range(FOLLOWERS):
        ours, theirs = context.Pipe()
        context.Process(target=be_followers, args=(kind, said[follower::FOLLOWERS], theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()

    def go(port: int) -> float:
        start = time.perf_counter()
        for pipe in pipes:
            pipe.send(port)
        return start

    seconds = asyncio.run(host(reports, job, go)) if kind == "distcheck" else store_host(job, go)
    print(seconds)
    for pipe in pipes:
        if kind == "store":
            pipe.send("end")


main()
