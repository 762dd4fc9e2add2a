"""Ranks whose threads wait for each other, or that never come to an end."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import threading

import torch.distributed as dist
from collectives import begin
from job import Job, case


@case("hung", "slow", odd=(2,))
def endless_loop(job: Job) -> None:
    gradients = begin(job)
    number = 1
    job.ready()
    while job.rank == 2:  # <- here
        number = number * 3 % 1_000_003  # <- here
        if number == 0:  # <- here
            break
    dist.all_reduce(gradients)  # <- waits


@case("hung", "slow", odd=(1,))
def endless_search(job: Job) -> None:
    """A regular expression keeps the GIL, in C."""
    gradients = begin(job)
    job.ready()
    if job.rank == 1:
        re.match("(a+)+$", "a" * 60 + "b")  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(1,))
def gil_in_c(job: Job) -> None:
    gradients = begin(job)
    libc = ctypes.PyDLL(None)
    job.ready()
    if job.rank == 1:
        libc.sleep(3600)  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(2,))
def two_locks(job: Job) -> None:
    gradients = begin(job)
    queue, weights = threading.Lock(), threading.Lock()
    meet = threading.Barrier(2)

    def prefetch() -> None:
        with queue:
            meet.wait()
            with weights:  # <- cause of two_locks
                pass

    if job.rank == 2:
        threading.Thread(target=prefetch, daemon=True).start()
        with weights:
            meet.wait()
            job.ready()
            with queue:  # <- here
                pass
    job.ready()
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(2,), needs="LIBCUDA")
def lost_gpu(job: Job) -> None:
    """A rank that waits for its GPU keeps a CPU busy at one line."""
    gradients = begin(job)
    ctypes.CDLL(os.environ["LIBCUDA"])
    job.ready()
    if job.rank == 2:
        any(itertools.repeat(0))  # <- here
    dist.all_reduce(gradients)  # <- waits
