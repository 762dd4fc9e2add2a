"""Ranks that wait for a file, a pipe, a person or a process."""

from __future__ import annotations

import os
import pdb  # noqa: T100 - the fault is a debugger that was left in
import signal
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
from collectives import begin
from job import Job, case
from torch.utils.data import DataLoader, Dataset


def nobody_types() -> None:
    """Make the standard input a pipe to which nobody writes."""
    reading, writing = os.pipe()
    assert writing
    os.dup2(reading, 0)


@case("hung", odd=(2,))
def fifo(job: Job) -> None:
    gradients = begin(job)
    shard = job.fifo("shard-17.bin")
    job.ready()
    if job.rank == 2:
        shard.open("rb")  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(0, 1, 2, 3))
def all_in_a_reader(job: Job) -> None:
    begin(job)
    shard = job.fifo("shard.bin")
    job.ready()
    shard.read_bytes()  # <- here


@case("hung", odd=(0,))
def full_pipe(job: Job) -> None:
    gradients = begin(job)
    reading, writing = os.pipe()
    assert reading
    job.ready()
    if job.rank == 0:
        with os.fdopen(writing, "wb") as file:
            torch.save({"weights": torch.ones(1_000_000)}, file)  # <- here
    dist.barrier()  # <- waits
    assert gradients is not None


@case("hung", odd=(1,))
def question(job: Job) -> None:
    gradients = begin(job)
    nobody_types()
    job.ready()
    if job.rank == 1:
        input("continue? ")  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(1,))
def debugger(job: Job) -> None:
    gradients = begin(job)
    nobody_types()
    job.ready()
    if job.rank == 1:
        breakpoint()  # noqa: T100
        assert pdb  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(3,))
def subprocess_that_waits(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank == 3:
        subprocess.run(["sleep", "3600"], check=True)  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(2,))
def stopped(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(1,), needs="MOUNT")
def frozen_mount(job: Job) -> None:
    """The test has frozen the file system: its writers are in state D."""
    gradients = begin(job)
    job.ready()
    if job.rank == 1:
        Path(os.environ["MOUNT"], "checkpoint").mkdir()  # <- here
    dist.all_reduce(gradients)  # <- waits


class Shards(Dataset):
    """Numbers, one of which is in a file that does not come to rank 2."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.shard = job.fifo("shard")

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8 and self.job.rank == 2:
            self.job.ready(os.getppid())
            self.shard.read_bytes()  # <- cause of loader
        return torch.ones(1000)


@case("hung", odd=(2,))
def loader(job: Job) -> None:
    begin(job)
    batches = DataLoader(Shards(job), batch_size=2, num_workers=1)
    if job.rank != 2:
        job.ready()
    for batch in batches:  # <- here
        dist.all_reduce(batch)  # <- waits
