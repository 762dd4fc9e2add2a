"""Jobs that are not hung."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time

import torch
import torch.distributed as dist
from collectives import begin
from job import Job, case
from torch.utils.data import DataLoader, Dataset


@case("not hung")
def quick_steps(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    while True:
        (torch.ones(100, 100) @ torch.ones(100, 100)).sum()
        dist.all_reduce(gradients)
        job.stepped()


@case("not hung", "slow")
def long_computation(job: Job) -> None:
    """More ranks than cores, 10 s a step."""
    gradients = begin(job)
    job.ready()
    while True:
        until = time.process_time() + 10 * (os.cpu_count() or 1) / job.size
        while time.process_time() < until:
            torch.ones(300, 300) @ torch.ones(300, 300)
        dist.all_reduce(gradients)
        job.stepped()


@case("slow", odd=(0,))
def evaluation(job: Job) -> None:
    """The others wait in a barrier."""
    begin(job)
    job.ready()
    while True:
        until = time.monotonic() + 60
        while job.rank == 0 and time.monotonic() < until:
            torch.ones(300, 300) @ torch.ones(300, 300)
            job.stepped()
        dist.barrier()


def drain(reading: int, rate: int) -> None:
    """Read a pipe slowly, as an overloaded file server does; bytes per second."""
    while os.read(reading, rate // 10):
        time.sleep(0.1)


@case("slow", odd=(0,))
def slow_save(job: Job) -> None:
    """One long write; its bytes go, slowly."""
    begin(job)
    reading, writing = os.pipe()
    if job.rank == 0:
        threading.Thread(target=drain, args=(reading, 400_000), daemon=True).start()
    job.ready()
    while True:
        if job.rank == 0:
            with os.fdopen(os.dup(writing), "wb") as file:
                torch.save({"weights": torch.ones(10_000_000)}, file)
        dist.barrier()


class Decoded(Dataset):
    """Images whose decoding takes long."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.process_time() + (1.5 if self.rank == 1 else 0.01)
        while time.process_time() < until:
            torch.ones(100, 100) @ torch.ones(100, 100)
        return torch.ones(1000)


def count_words(number: int) -> int:
    return sum(word * number for word in range(10_000_000))


@case("slow", "not hung", odd=(0,))
def pool_that_computes(job: Job) -> None:
    """Only the processes below rank 0 do anything."""
    begin(job)
    if job.rank == 0:
        with multiprocessing.get_context("fork").Pool(2) as workers:
            job.ready()
            workers.map(count_words, range(10_000))
    job.ready()
    dist.barrier()


@case("slow", "not hung", odd=(1,))
def slow_loader(job: Job) -> None:
    """Its worker computes."""
    begin(job)
    batches = DataLoader(Decoded(job.rank), batch_size=2, num_workers=1)
    job.ready()
    for batch in batches:
        dist.all_reduce(batch)
        job.stepped()


@case("slow", "not hung", odd=(2,))
def sleeps_in_a_step(job: Job) -> None:
    """4 s without CPU time, files or anything else that could be seen."""
    gradients = begin(job)
    job.ready()
    while True:
        if job.rank == 2:
            time.sleep(4)
        dist.all_reduce(gradients)
        job.stepped()


@case("not hung")
def all_sleep_in_a_step(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    while True:
        time.sleep(4)
        dist.all_reduce(gradients)


@case("cannot tell", "not hung", "slow", odd=(0,))
def idle_server(job: Job) -> None:
    """Rank 0 waits for a request, the others for rank 0: only what it waits in tells it from a rank that hangs."""
    request = begin(job)
    with socket.create_server(("127.0.0.1", 0)) as server:
        job.ready()
        if job.rank == 0:
            server.accept()  # <- here
        dist.broadcast(request, src=0)
