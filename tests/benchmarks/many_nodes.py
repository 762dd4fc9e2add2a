"""Hold the roll call of 131,072 ranks on 16,384 simulated nodes over loopback: ``python many_nodes.py [NODES [each]]``.

One process plays all followers: a socket for each node, whose process speaks for its 8 ranks, and the facts of a real
node of that size. With ``each`` there is a process, and a socket, for each rank. All of them connect at the same
moment, except those that are late. Some are slow, some connect and say nothing, some stop in the middle of their
report, and some never come. The leader is distcheck's own.

Prints as JSON what the leader needed from the first connection to the merged job, and to the last goodbye, and how
slow the machine was before and after (`pace.slowness`).
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import multiprocessing
import resource
import select
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.asked import Asked
from distcheck.probe import network
from distcheck.rollcall import identity, protocol
from distcheck.rollcall.brief import brief
from distcheck.rollcall.framing import encode
from distcheck.rollcall.protocol import Bye, Hello, Here, LastCall, Report, Welcome
from distcheck.rollcall.server import Server
from distcheck.rollcall.wire import HEADER
from distcheck.run.garbage import THRESHOLDS
from distcheck.run.record import Record

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.pace import slowness

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from distcheck.facts.job import Job

PER_NODE = 8
JOB = "benchmark"
LATE_SECONDS, PIECE_SECONDS = 2.0, 0.25
PIECES = 8
MOST_SECONDS = 120
replace = msgspec.structs.replace


def kind_of(node: int) -> str:
    """Return how a node behaves: four of five hundred in another way than the others."""
    return {7: "late", 107: "slow", 207: "silent", 307: "stops", 407: "missing"}.get(node % 500, "prompt")


def comes(node: int) -> bool:
    return kind_of(node) in {"prompt", "late", "slow"}


# --- the facts of a node


def template() -> Report:
    """Return the report of a node with 8 GPUs and 12 adapters, as real ones are, before the collectives."""
    from made import real_job

    job: Job = real_job.healthy(2, PER_NODE)
    node = job.nodes[1]
    process = next(p for p in job.processes if p.node == node.key)
    here = {p.uid for p in job.processes if p.node == node.key}
    return Report(node, process, tuple(replace(r, run=None) for r in job.ranks if r.process in here))


def reports_of(like: Report, number: int, nodes: int, *, each: bool) -> list[Report]:
    """Return the reports of a node: of one process, or of one process for each rank, as distcheck sends them."""
    whole = report_of(like, number, nodes)
    if not each:
        return [whole]
    # Only the process of local rank 0 reads what is read once per node.
    gpus = tuple(replace(gpu, health=None, load=None) for gpu in whole.node.gpus.devices)
    others = replace(
        whole.node, gpus=replace(whole.node.gpus, devices=gpus), infiniband=None, host=None, storage=None, xids=None
    )

    def of_process(local: int) -> Report:
        uid = f"{whole.process.uid}-{local}"
        ranks = (replace(whole.ranks[local], process=uid),)
        return brief(Report(others if local else whole.node, replace(whole.process, uid=uid), ranks))

    return [of_process(local) for local in range(PER_NODE)]


def report_of(like: Report, number: int, nodes: int) -> Report:
    """Return the report of another node of its kind: other names, addresses, GPUs and ranks."""
    name, uid = f"node{number}", f"{number:016x}"
    gpus = [f"GPU-{number:08x}-7c1d-4b52-9e0a-{place:012x}" for place in range(PER_NODE)]
    devices = zip(like.node.gpus.devices, gpus, strict=True)
    node = replace(
        like.node,
        key=f"{name}/boot-{number}/net",
        name=name,
        hostname=name,
        boot_id=f"boot-{number}",
        network=replace(like.node.network, machine_id=f"machine-{number}"),
        gpus=replace(like.node.gpus, devices=tuple(replace(gpu, uuid=uuid) for gpu, uuid in devices)),
    )
    ranks = tuple(
        replace(
            rank,
            process=uid,
            placement=replace(rank.placement, rank=number * PER_NODE + local, world_size=nodes * PER_NODE),
            environment=rank.environment
            | {"SLURM_PROCID": str(number * PER_NODE + local), "SLURM_NODEID": str(number)},
            visible_gpus=tuple(gpus),
            gpu=gpus[local],
            cuda=replace(
                rank.cuda,
                devices=tuple(replace(d, uuid=uuid) for d, uuid in zip(rank.cuda.devices, gpus, strict=True)),
            ),
        )
        for local, rank in enumerate(like.ranks)
    )
    return Report(node, replace(like.process, uid=uid, node=node.key), ranks)


# --- the followers


class Follower:
    """A simulated follower: what it says next, and what it has heard."""

    def __init__(self, number: int, nodes: int, report: Report) -> None:
        self.kind = kind_of(number)
        hello = Hello(
            nonce=report.process.uid,
            job=identity.public_key(JOB),
            master="m:1",
            uid=report.process.uid,
            ranks=tuple(rank.placement.rank for rank in report.ranks),
            world_size=nodes * PER_NODE,
            seconds_left=MOST_SECONDS,
        )
        self.hello, self.report = encode(hello), encode(report, deflates=True)
        self.sock: socket.socket | None = None
        self.connected = False
        self.heard = b""

    def connect(self, port: int) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock = socket.socket()
        self.sock.settimeout(0)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect_ex(("127.0.0.1", port))


class Crowd:
    """All simulated followers, in one loop: an asyncio task for each would cost more than the leader does."""

    def __init__(self, followers: list[Follower], port: int) -> None:
        self.port, self.poll = port, select.epoll()
        self.by_fd: dict[int, Follower] = {}
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        """What happens later: when, a number that keeps the order, and what."""
        now = time.monotonic()
        for follower in followers:
            if follower.kind != "missing":
                self.at(now + LATE_SECONDS * (follower.kind == "late"), lambda f=follower: self.connect(f))

    def at(self, moment: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.due, (moment, len(self.due) + id(what), what))

    def connect(self, follower: Follower) -> None:
        """Connect; where the leader's queue is full, the kernel tries again after 1, 3 and 7 s."""
        if follower.sock is not None:
            self.by_fd.pop(follower.sock.fileno(), None)
        follower.connect(self.port)
        self.by_fd[follower.sock.fileno()] = follower
        self.poll.register(follower.sock, select.EPOLLOUT)

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            patience = self.due[0][0] - time.monotonic() if self.due else 1.0
            for fd, events in self.poll.poll(max(0.0, min(patience, 0.2))):
                self.serve(fd, self.by_fd[fd], events)
            now, most = time.monotonic(), 64
            while most and self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2]()
                most -= 1

    def serve(self, fd: int, follower: Follower, events: int) -> None:
        if not follower.connected:
            if events & (select.EPOLLERR | select.EPOLLHUP):
                self.poll.unregister(fd)
                self.at(time.monotonic() + PIECE_SECONDS, lambda: self.connect(follower))
                return
            follower.connected = True
            self.poll.modify(fd, select.EPOLLIN)
            if follower.kind != "silent":
                self.say(follower, follower.hello)
            return
        try:
            data = follower.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(fd)
            if follower.report and follower.kind != "silent":  # not welcomed: try again, as a follower does
                follower.connected, follower.heard = False, b""
                self.connect(follower)
            return
        follower.heard += data
        while len(follower.heard) >= HEADER.size:
            end = HEADER.size + HEADER.unpack(follower.heard[: HEADER.size])[1]
            if len(follower.heard) < end:
                break
            body, follower.heard = follower.heard[HEADER.size : end], follower.heard[end:]
            self.hear(follower, body)

    def hear(self, follower: Follower, body: bytes) -> None:
        if follower.report:
            answer = protocol.answer_decoder.decode(body)
            assert isinstance(answer, Welcome), answer
            said, follower.report = follower.report, b""
            self.say(follower, said[: len(said) // 2] if follower.kind == "stops" else said)
            return
        word = protocol.leader_decoder.decode(body)
        if isinstance(word, LastCall):
            self.say(follower, encode(Here()))
        elif isinstance(word, Bye):
            follower.sock.shutdown(socket.SHUT_WR)

    def say(self, follower: Follower, frame: bytes) -> None:
        pieces = PIECES if follower.kind == "slow" else 1
        size = -(-len(frame) // pieces)
        for number in range(pieces):
            piece = frame[number * size : (number + 1) * size]
            self.send_at(time.monotonic() + number * PIECE_SECONDS, follower.sock, piece)

    def send_at(self, moment: float, sock: socket.socket, data: bytes) -> None:
        if moment > time.monotonic():
            self.at(moment, lambda: self.send_at(moment, sock, data))
            return
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the leader has closed
        if sent < len(data):
            self.at(time.monotonic() + 0.01, lambda: self.send_at(0.0, sock, data[sent:]))


def be_followers(nodes: int, pipe: Connection, *, each: bool) -> None:
    like = template()
    own, *others = [(n, report) for n in range(nodes) for report in reports_of(like, n, nodes, each=each)]
    followers = [Follower(n, nodes, report) for n, report in others]
    gc.freeze()
    pipe.send((own[1], sum(len(f.hello) + len(f.report) for f in followers) / len(followers)))
    crowd = Crowd(followers, pipe.recv())
    crowd.run(pipe.poll)


# --- the leader


async def lead(nodes: int, pipe: Connection) -> dict[str, Any]:
    own, said_bytes = pipe.recv()
    world = nodes * PER_NODE
    record = Record(
        SimpleNamespace(asked=Asked(command="net", looks=("environment", "meeting")), start=time.monotonic())
    )
    record.node, record.process, record.ranks, record.uid = own.node, own.process, own.ranks, own.process.uid
    sock = network.listen(0)
    ranks = [rank.placement.rank for rank in own.ranks]
    server = Server(run="run", uid=record.uid, job=JOB, master="m:1", ranks=ranks, world_size=world)
    server.most_connections = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 512
    await server.open(sock)
    slow = slowness()
    before, used = memory(), time.process_time()
    start = time.perf_counter()
    pipe.send(int(sock.getsockname()[1]))
    absent = [n for n in range(1, nodes) if not comes(n)]
    if not await server.wait_for_all(MOST_SECONDS, ranks=world - len(absent) * PER_NODE):
        lost = {rank // PER_NODE for rank in server.missing(world)} - set(absent)
        raise SystemExit(f"{len(lost)} nodes did not come: {Counter(map(kind_of, lost))}")
    met = time.perf_counter() - start
    record.take_reports(f.report for f in server.followers.values())
    record.note_arrivals({uid: f.arrived_at for uid, f in server.followers.items()}, server.opened_at)
    job = record.job()
    merged, merged_cpu = time.perf_counter() - start, time.process_time() - used
    missing = [rank for n in absent for rank in range(n * PER_NODE, (n + 1) * PER_NODE)]
    if list(job.missing_ranks) != missing or len(job.nodes) != nodes - len(absent):
        raise SystemExit(f"the merged job has {len(job.ranks)} ranks on {len(job.nodes)} nodes")
    server.say_to_all(LastCall())
    if len(await server.hear_all(Here, 10)) != len(server.followers):
        raise SystemExit("a follower did not answer the last call")
    await server.close_doors()
    server.say_to_all(Bye(0, "", "", 0))
    await server.wait_until_gone(10, server.followers)
    dismissed, cpu = time.perf_counter() - start, time.process_time() - used
    await server.close()
    pipe.send("end")
    slow = (slow + slowness()) / 2
    return {
        "nodes": nodes, "ranks": world, "processes": len(server.followers) + 1, "missing_ranks": len(missing),
        "met_seconds": met, "seconds": merged, "dismissed_seconds": dismissed,
        "merged_cpu_seconds": merged_cpu, "cpu_seconds": cpu, "slowness": slow,
        "GiB": memory(), "GiB_before": before, "bytes_from_a_follower": said_bytes,
    }  # fmt: skip


def memory() -> float:
    """Return the most memory that this process had so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def main() -> None:
    nodes, each = int(sys.argv[1]) if len(sys.argv) > 1 else 16384, sys.argv[2:] == ["each"]
    gc.set_threshold(*THRESHOLDS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    followers = context.Process(target=be_followers, args=(nodes, theirs), kwargs={"each": each}, daemon=True)
    followers.start()
    print(json.dumps(asyncio.run(lead(nodes, ours))))
    followers.join(10)


if __name__ == "__main__":
    main()
