"""Ranks that do not call what the others call, and what the others wait in."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from job import Job, case
from torch._C._distributed_c10d import _dump_fr_trace
from torch.nn.parallel import DistributedDataParallel


def begin(job: Job) -> torch.Tensor:
    """Join the job and take a few steps."""
    dist.init_process_group("gloo")
    gradients = torch.ones(1000)
    for _ in range(3):
        dist.all_reduce(gradients)
    return gradients


@case("hung", odd=(2,))
def sleeping_rank(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank == 2:
        time.sleep(3600)  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(1,))
def skipped_collective(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank != 1:
        dist.all_reduce(gradients)  # <- waits
    dist.barrier()  # <- here


@case("hung", odd=(3,))
def mismatched_collective(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank == 3:
        dist.broadcast(gradients, src=0)  # <- here
    else:
        dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(2,))
def opposite_order(job: Job) -> None:
    gradients = begin(job)
    model, data = dist.new_group(), dist.new_group()
    job.ready()
    if job.rank == 2:
        dist.all_reduce(gradients, group=data)  # <- here
        dist.all_reduce(gradients, group=model)
    else:
        dist.all_reduce(gradients, group=model)  # <- waits
        dist.all_reduce(gradients, group=data)


def reduce(gradients: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(gradients, group=group)  # <- here of opposite_order_in_a_helper


def record(job: Job) -> None:
    """Write what torch's Flight Recorder has, as a group of NCCL does when a collective times out."""
    time.sleep(8)
    target = f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{job.rank}"
    Path(target).write_bytes(_dump_fr_trace(includeStackTraces=False))
    job.ready()


@case("hung", odd=(2,), needs="DUMPS")
def opposite_order_in_a_helper(job: Job) -> None:
    """All ranks wait at one line; only the recorder tells their groups apart."""
    gradients = begin(job)
    model, data = dist.new_group(), dist.new_group()
    for group in (model, data):
        reduce(gradients, group)
    threading.Thread(target=record, args=(job,), daemon=True).start()
    for group in (data, model) if job.rank == 2 else (model, data):
        reduce(gradients, group)


@case("hung", odd=(0, 1, 2, 3))
def tie(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank < 2:
        dist.all_reduce(gradients)  # <- here
    else:
        dist.barrier()  # <- here


@case("hung", odd=(1,))
def pipeline(job: Job) -> None:
    """Each stage waits for the one before it; only the sleeping one is not waiting for anybody."""
    activations = begin(job)
    for step in range(100):
        if step == 3:
            job.ready()
        if job.rank > 0:
            dist.recv(activations, src=job.rank - 1)  # <- waits
        if step == 3 and job.rank == 1:
            time.sleep(3600)  # <- here
        if job.rank < job.size - 1:
            dist.send(activations, dst=job.rank + 1)  # <- waits


@case("hung", odd=(2,))
def async_wait(job: Job) -> None:
    gradients = begin(job)
    job.ready()
    if job.rank == 2:
        time.sleep(3600)  # <- here
    work = dist.all_reduce(gradients, async_op=True)
    work.wait()  # <- waits


@case("hung", odd=(2,))
def async_wait_and_a_lock(job: Job) -> None:
    """No rank has a frame of torch, and all of them wait in a futex."""
    gradients = begin(job)
    taken = threading.Lock()
    taken.acquire()
    job.ready()
    if job.rank == 2:
        taken.acquire()  # <- here
    work = dist.all_reduce(gradients, async_op=True)
    work.wait()  # <- waits


@case("hung", odd=(3,))
def key_never_set(job: Job) -> None:
    gradients = begin(job)
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(dist.default_pg_timeout)
    job.ready()
    if job.rank == 3:
        store.get("never")  # <- here
    dist.all_reduce(gradients)  # <- waits


@case("hung", odd=(0,))
def ddp_backward(job: Job) -> None:
    begin(job)
    model = DistributedDataParallel(torch.nn.Linear(1000, 1000))
    for step in range(100):
        loss = model(torch.ones(8, 1000)).sum()
        if step == 3:
            job.ready()
            if job.rank == 0:
                time.sleep(3600)  # <- here
        loss.backward()  # <- waits


@case("hung", odd=(1,))
def background_thread(job: Job) -> None:
    """The thread that communicates is not the main one."""
    gradients = begin(job)

    def communicate() -> None:
        if job.rank == 1:
            time.sleep(3600)  # <- here
        dist.all_reduce(gradients)  # <- waits

    thread = threading.Thread(target=communicate)
    thread.start()
    job.ready()
    thread.join()
