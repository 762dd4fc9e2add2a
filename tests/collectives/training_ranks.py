"""Take training steps in forked ranks, one of which is broken, and print what each rank found.

For every line on standard input, ``{"ranks": 2, "fault": "seed", "stderr": "/tmp/file"}``, it prints a line with each
rank's steps. One import of torch serves all of them, as in distcheck.launch.local.forkserver.
"""

import json
import os

import forking
import msgspec

from distcheck.collectives import worker
from distcheck.collectives.plan import Failed, Plan, StoreOpen, Task, Trained
from distcheck.collectives.training import ways

# isort: split
import torch

BROKEN = 1


def a_skipped_update():
    torch.optim.SGD.step = lambda _self: None


def scaled_gradients():
    wrap = ways.DistributedDataParallel

    def wrapped(model, **more):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * 2)
        return wrap(model, **more)

    ways.DistributedDataParallel = wrapped


def a_hook_that_drops_the_gradients():
    wrap = ways.DistributedDataParallel

    def hook(_state, bucket):
        ranks = torch.distributed.get_world_size()
        mine = bucket.buffer() / ranks * (torch.distributed.get_rank() != BROKEN)
        return torch.distributed.all_reduce(mine, async_op=True).get_future().then(lambda done: done.value()[0])

    def wrapped(model, **more):
        made = wrap(model, **more)
        made.register_comm_hook(None, hook)
        return made

    ways.DistributedDataParallel = wrapped


def a_broadcast_that_changes_one_element():
    wrap = ways.DistributedDataParallel

    def wrapped(model, **more):
        made = wrap(model, **more)
        with torch.no_grad():
            next(model.parameters())[3, 5] += 1
        return made

    ways.DistributedDataParallel = wrapped


def a_mesh_that_torch_refuses():
    from torch.distributed import device_mesh

    def refused(*args, **more):
        raise RuntimeError("DeviceMesh only support homogeneous hardware, but found 12 ranks and 8 cuda devices!")

    device_mesh.init_device_mesh = refused


EVERYWHERE = {"a_hook_that_drops_the_gradients"}
"""Faults whose code runs on every rank."""


def be_rank(task, fault, said, port):
    if fault and (task.rank == BROKEN or fault in EVERYWHERE):
        globals()[fault]()
    kept = {}

    def tell(message):
        if isinstance(message, StoreOpen):
            os.write(port, message.port.to_bytes(2, "big"))
        if isinstance(message, Trained):
            kept[message.way] = message.training
        if isinstance(message, Failed):
            kept["failed"] = message

    worker.run(task, tell)
    os.write(said, msgspec.json.encode(kept))


def run(asked):
    plan = Plan("gloo", (), (), deadline_seconds=30.0, training=True)

    def forked_rank(rank, store, said, port):
        be_rank(Task(plan, rank, asked["ranks"], rank, store), asked["fault"], said, port)

    return [json.load(stream) for stream in forking.forked(asked["ranks"], asked["stderr"], forked_rank)]


forking.answer(run)
