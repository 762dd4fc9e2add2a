"""Take training steps in forked ranks, one of which is broken, and print what each rank found.

For every line on standard input, ``{"ranks": 2, "fault": "seed", "stderr": "/tmp/file"}``, it prints a line with each
rank's steps. One import of torch serves all of them, as in distcheck.launch.local.forkserver.
"""

import itertools
import json
import os

import forking
import msgspec

from distcheck.collectives import worker
from distcheck.collectives.plan import Failed, GroupLeft, Plan, StoreOpen, Task, Trained
from distcheck.collectives.training import model, sampler, steps, tensor_parallel, ways
from distcheck.facts.mesh import Mesh

# isort: split
import torch

BROKEN = 1


def another_model():
    model.WIDTHS = (512, 128, 4)


def another_seed():
    seed = torch.manual_seed
    torch.manual_seed = lambda number: seed(number + 1)


def a_skipped_update():
    torch.optim.SGD.step = lambda _self: None


def no_second_batch():
    loader, made = steps.loader_of, itertools.count()
    steps.loader_of = lambda *args: loader(*args) if next(made) % 2 == 0 else []


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


def one_replica():
    whole = sampler.DistributedSampler
    sampler.DistributedSampler = lambda data, **more: whole(data, **{"num_replicas": 1, "rank": 0, **more})


def a_fixed_epoch():
    sampler.DistributedSampler.set_epoch = lambda _self, _epoch: None


def a_broadcast_that_changes_one_element():
    wrap = ways.DistributedDataParallel

    def wrapped(model, **more):
        made = wrap(model, **more)
        with torch.no_grad():
            next(model.parameters())[3, 5] += 1
        return made

    ways.DistributedDataParallel = wrapped


def another_part_of_a_layer():
    divide = tensor_parallel._parallelize

    def divided(model, *args):
        divide(model, *args)
        with torch.no_grad():
            model.layers[1].weight.to_local()[0, 0] += 1

    tensor_parallel._parallelize = divided


def a_layer_that_returns_something_else():
    divide = tensor_parallel._parallelize

    def divided(model, *args):
        divide(model, *args)
        model.layers[0].register_forward_hook(lambda _layer, _inputs, outputs: outputs + 1)

    tensor_parallel._parallelize = divided


def a_mesh_that_torch_refuses():
    from torch.distributed import device_mesh

    def refused(*args, **more):
        raise RuntimeError("DeviceMesh only support homogeneous hardware, but found 12 ranks and 8 cuda devices!")

    device_mesh.init_device_mesh = refused


def a_group_that_stays():
    torch.distributed.destroy_process_group = lambda _group: None


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
        if isinstance(message, GroupLeft):
            kept["left"] = message.leftovers
        if isinstance(message, Failed):
            kept["failed"] = message

    worker.run(task, tell)
    os.write(said, msgspec.json.encode(kept))


def run(asked):
    mesh = Mesh(asked["mesh"]) if asked.get("mesh") else None
    plan = Plan("gloo", (), (), deadline_seconds=30.0, training=True, mesh=mesh)

    def forked_rank(rank, store, said, port):
        be_rank(Task(plan, rank, asked["ranks"], rank, store), asked["fault"], said, port)

    return [json.load(stream) for stream in forking.forked(asked["ranks"], asked["stderr"], forked_rank)]


forking.answer(run)
