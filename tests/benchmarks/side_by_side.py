"""Time collectives as distcheck reports them and in a bare torch loop, in turn, on the same forked ranks.

``python side_by_side.py RANKS`` prints one JSON line per operation and size: the medians over the rounds of
the mean over the ranks, and the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING

from distcheck.collectives import worker
from distcheck.collectives.plan import Plan, Task
from distcheck.collectives.store import farewell, open_store, part_of, reach_store

# isort: split
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = {1 << 20: 31, 1 << 24: 15, 1 << 26: 9, 1 << 28: 5}
OPERATIONS = ("all_reduce", "broadcast")
CPU = torch.device("cpu")


def bare_loop(op: str, size_bytes: int, iterations: int) -> float:
    data = torch.ones(size_bytes // 4).zero_()

    def call() -> None:
        if op == "all_reduce":
            dist.all_reduce(data)
        else:
            dist.broadcast(data, 0)

    for _ in range(3):
        call()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    return (time.perf_counter() - start) / iterations


def be_rank(task: Task) -> Iterator[tuple[str, int, int, float, float, float]]:
    """Yield operation, size, round, our seconds, and theirs before and after."""
    torch.set_num_threads(1)
    store = open_store(600) if task.store is None else reach_store(task.store, 600)
    if task.store is None:
        yield "port", store.port, 0, 0.0, 0.0, 0.0
    worker._join_group(task, store, CPU)
    for op in OPERATIONS:
        for size in task.plan.sizes_bytes:
            iterations = 3
            for number in range(ROUNDS[size]):
                before = bare_loop(op, size, iterations)
                timing = worker.measure(task, op, "float32", size, CPU, part_of(store, f"round {number}"))
                iterations = timing.iterations
                after = bare_loop(op, size, iterations)
                if number:  # the first loop of a size did not know how many iterations there would be
                    yield op, size, number, timing.bursts[0], before, after
    farewell(store, task.world_size, host=task.store is None)


def main() -> None:
    ranks = int(sys.argv[1])
    plan = Plan("gloo", OPERATIONS, tuple(ROUNDS), deadline_seconds=600)
    streams = []
    store = None
    for rank in range(ranks):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                for told in be_rank(Task(plan, rank, ranks, rank, store)):
                    os.write(write, json.dumps(told).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(write)
        streams.append(os.fdopen(read))
        if store is None:
            store = ("127.0.0.1", json.loads(streams[0].readline())[1])
    rows = [[json.loads(line) for line in stream] for stream in streams]
    for op in OPERATIONS:
        for size in ROUNDS:
            mine = [[r for r in row if r[:2] == [op, size]] for row in rows]
            ours, before, after = (
                [statistics.mean(r[i] for r in same) for same in zip(*mine, strict=True)] for i in (3, 4, 5)
            )
            theirs = [(b + a) / 2 for b, a in zip(before, after, strict=True)]
            told = {
                "op": op,
                "bytes": size,
                "ours": statistics.median(ours),
                "theirs": statistics.median(theirs),
                "ratio": statistics.median(o / t for o, t in zip(ours, theirs, strict=True)),
                "noise": statistics.median(b / a for b, a in zip(before, after, strict=True)),
            }
            print(json.dumps(told), flush=True)


main()
