"""Ranks that end, or that have failed and still live."""

from __future__ import annotations

import os
import threading

import torch.distributed as dist
from collectives import begin
from job import Job, case


@case("hung", missing=(2,), needs="no agent")
def dead_before_init(job: Job) -> None:
    job.ready()
    if job.rank == 2:
        os._exit(1)
    dist.init_process_group("gloo")  # <- waits


@case("hung", missing=(3,), needs="no agent")
def dead_after_init(job: Job) -> None:
    begin(job)
    store = dist.distributed_c10d._get_default_store()
    job.ready()
    if job.rank == 3:
        os._exit(1)
    store.get("checkpoint/3")  # <- waits


@case("hung", odd=(2,))
def failed_but_alive(job: Job) -> None:
    """The main thread has ended with an exception; one of its own keeps the process."""
    gradients = begin(job)

    def watch() -> None:
        threading.Event().wait()  # <- here

    if job.rank == 2:
        threading.Thread(target=watch).start()
    job.ready()
    if job.rank == 2:
        raise ValueError("the loss is not a number")
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(1,))
def waits_for_its_helpers(job: Job) -> None:
    """An exception is under way, and what it passes waits for a thread."""
    gradients = begin(job)
    thread = threading.Thread(target=threading.Event().wait)
    if job.rank == 1:
        try:
            thread.start()
            job.ready()
            raise ValueError("the loss is not a number")
        finally:
            thread.join()  # <- here
    job.ready()
    dist.all_reduce(gradients)  # <- waits
