"""Jobs that were written without looking at how distcheck judges, and kept back until it judged the others right."""

from __future__ import annotations

import asyncio
import datetime as dt
import fcntl
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from collectives import begin
from job import Job, case


class Metrics:
    """What takes for ever to pickle."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __getstate__(self) -> dict[str, int]:
        if self.job.rank == 1:
            time.sleep(3600)  # <- here of gather
        return {}


@case("hung", odd=(1,))
def gather(job: Job) -> None:
    """The rank is in all_gather_object, as the others are, and pickles."""
    begin(job)
    job.ready()
    found: list[object] = [None] * job.size
    dist.all_gather_object(found, Metrics(job))  # <- waits


@case("hung", odd=(2,))
def empty_queue(job: Job) -> None:
    gradients = begin(job)
    queue = multiprocessing.Queue()
    job.ready()
    if job.rank == 2:
        queue.get()  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(3,))
def locked_file(job: Job) -> None:
    """Another process holds the lock and does not think of it."""
    gradients = begin(job)
    path = job.folder / f"cache.{job.rank}.lock"
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True)"
    if job.rank == 3:
        holder = subprocess.Popen(
            [sys.executable, "-S", "-c", f"{hold}; time.sleep(3600)", path], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        holder.stdout.readline()
    job.ready()
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(1,))
def silent_server(job: Job) -> None:
    """It has accepted the request and does not answer."""
    gradients = begin(job)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        job.ready()
        if job.rank == 1:
            client.recv(100)  # <- here
        dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(0,))
def debugger_that_listens(job: Job) -> None:
    """It accepts like an idle server, but the others do not wait for what a request brings."""
    gradients = begin(job)
    with socket.create_server(("127.0.0.1", 0)) as server:
        job.ready()
        if job.rank == 0:
            server.accept()  # <- here
        dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(2,))
def event_loop(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank == 2:
        asyncio.run(asyncio.Event().wait())  # <- here
    dist.all_reduce(gradients)  # <- waits


def batches(job: Job) -> Iterator[torch.Tensor]:
    shard = job.fifo("shard")
    for number in range(100):
        if number == 3 and job.rank == 0:
            job.ready()
            shard.read_bytes()  # <- here of generator
        if number == 3:
            job.ready()
        yield torch.ones(1000)


@case("hung", odd=(0,))
def generator(job: Job) -> None:
    begin(job)
    for batch in batches(job):
        dist.all_reduce(batch)  # <- waits


@case("hung", odd=(3,))
def monitored(job: Job) -> None:
    """Rank 0 asks the others one by one."""
    begin(job)
    job.ready()
    if job.rank == 3:
        time.sleep(3600)  # <- here
    dist.monitored_barrier(timeout=dt.timedelta(minutes=30))  # <- waits


@case("hung", odd=(0,))
def saved_to_a_fifo(job: Job) -> None:
    """C++ opens the file."""
    begin(job)
    target = job.fifo("checkpoint.pt")
    job.ready()
    if job.rank == 0:
        torch.save({"weights": torch.ones(1000)}, target)  # <- here
    dist.barrier()  # <- waits


LIBRARY = """
import os, time

def download(path):
    while not os.path.exists(path):
        time.sleep(0.5)
"""


@case("hung", odd=(1,))
def library_that_retries(job: Job) -> None:
    """A loop of an installed package looks for a file each 0.5 s, and never finds it."""
    gradients = begin(job)
    packages = job.folder / f"env{job.rank}" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "hub_client.py").write_text(LIBRARY)
    sys.path.append(str(packages))
    import hub_client

    job.ready()
    if job.rank == 1:
        hub_client.download(job.folder / "never")  # <- here
    dist.all_reduce(gradients)  # <- waits


def tokenize(job: Job) -> None:
    job.ready()
    job.fifo("text").read_bytes()  # <- here of pool


@case("hung", odd=(2,))
def pool(job: Job) -> None:
    gradients = begin(job)
    with ThreadPoolExecutor(2) as threads:
        if job.rank == 2:
            threads.submit(tokenize, job).result()  # <- here
        job.ready()
        dist.all_reduce(gradients)  # <- waits


def count_words(job: Job, number: int) -> None:
    if number == 5:
        job.fifo("words").read_bytes()  # <- cause of forked_pool


@case("hung", odd=(1,))
def forked_pool(job: Job) -> None:
    gradients = begin(job)
    if job.rank == 1:
        with multiprocessing.get_context("fork").Pool(2) as workers:
            job.ready()
            workers.starmap(count_words, [(job, number) for number in range(8)])  # <- here
    job.ready()
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(3,))
def two_groups(job: Job) -> None:
    """Ranks 0 and 1 have finished theirs and wait for everybody, rank 2 waits for rank 3."""
    gradients = begin(job)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    job.ready()
    if job.rank == 3:
        time.sleep(3600)  # <- here
    dist.all_reduce(gradients, group=groups[job.rank // 2])  # <- waits
    dist.barrier()  # <- waits


@case("hung", odd=(0, 1, 2, 3))
def each_receives(job: Job) -> None:
    """Two ranks receive from each other, and neither sends; of two and two both sides are named."""
    activations = begin(job)
    job.ready()
    if job.rank < 2:
        dist.recv(activations, src=1 - job.rank)  # <- here
    dist.barrier()  # <- here


@case("hung", odd=(1,))
def full_log(job: Job) -> None:
    """What reads the log has stopped to."""
    gradients = begin(job)
    reading, writing = os.pipe()
    assert reading
    job.ready()
    if job.rank == 1:
        with os.fdopen(writing, "w") as log:
            for step in range(10_000):
                print("step", step, "loss", 0.1, file=log, flush=True)  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("slow", "not hung", odd=(0,))
def trickle(job: Job) -> None:
    """A download of few bytes a second."""
    gradients = begin(job)
    near, far = socket.socketpair()

    def serve() -> None:
        while True:
            far.send(b"x" * 100)
            time.sleep(0.7)

    if job.rank == 0:
        threading.Thread(target=serve, daemon=True).start()
    job.ready()
    while True:
        if job.rank == 0:
            near.recv(1_000_000, socket.MSG_WAITALL)
        dist.all_reduce(gradients)


@case("not hung")
def saves_beside(job: Job) -> None:
    """A thread writes a checkpoint into a pipe that nobody reads, while the steps go on."""
    gradients = begin(job)
    reading, writing = os.pipe()
    assert reading
    if job.rank == 0:
        threading.Thread(target=os.write, args=(writing, b"x" * 10_000_000), daemon=True).start()
    job.ready()
    while True:
        dist.all_reduce(gradients)
        job.stepped()


@case("not hung", "slow", "cannot tell")
def polls_a_file(job: Job) -> None:
    """A step of all ranks each 3 s, when a scheduler says so; nobody computes."""
    gradients = begin(job)
    job.ready()
    while True:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            (job.folder / "go").exists()
            time.sleep(0.05)
        dist.all_reduce(gradients)
        job.stepped()
