"""Run tasks in forked ranks and print their messages: a program, because a pytest process may have threads.

For every line on standard input, ``{"backend": "gloo", "ranks": 2, "stderr": "/tmp/file"}``, it prints a line with each
rank's messages. One import of torch serves all of them, as in distcheck.launch.local.forkserver.
"""

import json
import os
import threading
import time
from pathlib import Path

import forking
import msgspec

from distcheck.collectives import mesh_groups, worker
from distcheck.collectives.plan import Plan, StoreOpen, Task
from distcheck.facts.mesh import Mesh

mesh_groups.ENTER_SECONDS = 1.0


def corrupt(rank, asked):
    """Break torch in this rank as the test asks."""
    import torch.distributed as dist

    if rank not in (asked.get("broken_rank"), *asked.get("broken_ranks", ())):
        return
    all_reduce, add = dist.all_reduce, dist.PrefixStore.add

    def wrong(tensor, **more):
        all_reduce(tensor, **more)
        tensor[: asked["wrong_elements"]] += 1

    def wrong_in_group(tensor, group=None):
        all_reduce(tensor, group=group)
        tensor[:3] += group is not None

    def raises(tensor, **more):
        raise RuntimeError("CUDA error: an illegal\n  memory access\nException raised from here (most recent")

    def lacks(tensor, **more):
        raise RuntimeError("Backend gloo does not support all_reduce")

    def refuses(tensor, **more):
        raise RuntimeError("CUDA error: operation not supported")

    def sleeps(tensor, **more):
        time.sleep(1.3)
        all_reduce(tensor, **more)

    def stays_away(store, key, value):
        if key == str(rank):  # it would be counted at the door of its group
            time.sleep(3)
            os._exit(1)
        return add(store, key, value)

    if asked["broken"] == "stays away":
        dist.PrefixStore.add = stays_away
    else:
        dist.all_reduce = {
            "wrong": wrong,
            "wrong in a group": wrong_in_group,
            "raises": raises,
            "lacks": lacks,
            "refuses": refuses,
            "sleeps": sleeps,
        }[asked["broken"]]


def be_rank(task, said, port):
    def tell(message):
        if isinstance(message, StoreOpen):
            os.write(port, message.port.to_bytes(2, "big"))
        os.write(said, json.dumps(msgspec.to_builtins(message)).encode() + b"\n")

    worker.run(task, tell)


def run(asked):
    """Run a task in forked ranks and return what each of them said."""
    plan = Plan(
        backend=asked["backend"],
        operations=tuple(asked.get("operations", ["all_reduce", "broadcast"])),
        sizes_bytes=tuple(asked.get("sizes_bytes", [4096])),
        deadline_seconds=asked.get("deadline_seconds", 20.0),
        iterations=asked.get("iterations"),
        burst_seconds=0.02,
        size_seconds=asked.get("size_seconds", 0.0),
        dtypes=tuple(asked.get("dtypes", ["float32"])),
        stride=asked.get("stride", 1),
        mesh=Mesh(asked["mesh"]) if "mesh" in asked else None,
        group_bytes=asked.get("group_bytes", 4096),
        group_seconds=asked.get("group_seconds", 0.0),
    )

    def forked_rank(rank, store, said, port):
        corrupt(rank, asked)
        be_rank(Task(plan, rank, asked["ranks"], rank, store), said, port)

    before = {"threads": threading.active_count(), "tasks": len(list(Path("/proc/self/task").iterdir()))}
    ranks = forking.forked(asked["ranks"], asked["stderr"], forked_rank)
    return {"before": before, "said": [[json.loads(line) for line in stream] for stream in ranks]}


forking.answer(run)
