"""Time collectives as distcheck reports them and in a bare torch loop, in turn, on the same forked ranks.

``python side_by_side.py RANKS`` prints one JSON line per operation and size: the medians over the rounds of the mean
over the ranks, the ratio of the two and by which share of itself that may be off (95 % confidence). With a second
number, all_reduce in a group of so many ranks is timed while the other ranks wait, as distcheck does with --mesh.

On a machine of two cores a single call differs from the next by a fifth, so that rounds follow each other until
the ratio is known to `KNOWN`, or a size's time is over.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
import traceback
from typing import TYPE_CHECKING, NamedTuple

from distcheck.collectives import groups, worker
from distcheck.collectives.figure import measure
from distcheck.collectives.operations import Group
from distcheck.collectives.plan import Plan, Task
from distcheck.collectives.store import agree, farewell, open_store, part_of, reach_store
from distcheck.collectives.timing import meet
from distcheck.facts.mesh import Mesh

# isort: split
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import Store

OPERATIONS = ("all_reduce", "broadcast")
SIZES = (1 << 20, 1 << 24, 1 << 28)
CPU = torch.device("cpu")
BURST_SECONDS = 1.0
KNOWN = 0.012
FEWEST_ROUNDS, SECONDS_OF_A_SIZE = 12, 90.0


class Told(NamedTuple):
    """What a rank says of one round: seconds per call."""

    op: str
    size: int
    ours: float
    theirs: float


def bare_loop(op: str, size_bytes: int, iterations: int, group: dist.ProcessGroup | None) -> float:
    data = torch.ones(size_bytes // 4).zero_()

    def call() -> None:
        if op == "all_reduce":
            dist.all_reduce(data, group=group)
        else:
            dist.broadcast(data, 0)

    for _ in range(3):
        call()
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    return (time.perf_counter() - start) / iterations


def be_rank(task: Task) -> Iterator[int | Told]:
    """Yield the port of rank 0's store, if this is rank 0, and then the rounds."""
    torch.set_num_threads(1)
    store = open_store(600) if task.store is None else reach_store(task.store, 600)
    if task.store is None:
        yield store.port
    worker._join_group(task, store, CPU)
    group = Group(task.rank, task.world_size, CPU)
    if task.plan.mesh:
        group = groups._formed(task, task.plan.mesh, "tp", CPU, store)
    if group.origin == 0:
        for op in task.plan.operations:
            for size in task.plan.sizes_bytes:
                yield from rounds(task, op, size, group, part_of(store, f"{op} {size}"))
    agree(store, "all rounds", 0 if task.rank == 0 else None)
    farewell(store, task.world_size, host=task.store is None)


def rounds(task: Task, op: str, size: int, group: Group, store: Store) -> Iterator[Told]:
    end = time.monotonic() + SECONDS_OF_A_SIZE
    iterations = 0
    told: list[Told] = []
    while True:
        # Who comes first changes from round to round: whatever grows or fades meanwhile meets both alike.
        ours_first = iterations == 0 or len(told) % 2 == 0
        theirs = 0.0 if ours_first else bare_loop(op, size, iterations, group.handle)
        part = part_of(store, f"round {len(told)} {iterations}")
        timing = measure(task.plan, op, "float32", size, group, part, lambda: meet(CPU, group.handle))
        first, iterations = iterations == 0, timing.iterations
        if first:
            continue  # the machine warms to the size
        theirs = bare_loop(op, size, iterations, group.handle) if ours_first else theirs
        told.append(Told(op, size, timing.bursts[0], theirs))
        yield told[-1]
        enough = None
        if task.rank == 0:
            enough = int(len(told) >= FEWEST_ROUNDS and (off(told) <= KNOWN or time.monotonic() > end))
        if agree(store, f"enough after {len(told)}", enough):
            return


def ratio(told: list[Told]) -> float:
    """Return the median of the rounds' ratios; a round that something else disturbed counts no more than another."""
    return statistics.median(t.ours / t.theirs for t in told)


def off(told: list[Told]) -> float:
    """Return by which share of itself the ratio may be off: 1.96 standard errors of a median."""
    logs = [math.log(t.ours / t.theirs) for t in told]
    middle = statistics.median(logs)
    spread = 1.4826 * statistics.median(abs(log - middle) for log in logs)
    return 1.96 * 1.2533 * spread / math.sqrt(len(logs))


def main() -> None:
    ranks = int(sys.argv[1])
    several = int(sys.argv[2]) if len(sys.argv) > 2 else ranks
    operations, sizes = (OPERATIONS, SIZES) if several == ranks else (OPERATIONS[:1], SIZES[:2])
    mesh = Mesh({"dp": ranks // several, "tp": several}) if several < ranks else None
    plan = Plan("gloo", operations, sizes, deadline_seconds=600, burst_seconds=BURST_SECONDS, mesh=mesh)
    streams = []
    store = None
    for rank in range(ranks):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                for told in be_rank(Task(plan, rank, ranks, rank, store)):
                    os.write(write, json.dumps(told).encode() + b"\n")
            except BaseException:  # noqa: BLE001 a fork must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        streams.append(os.fdopen(read))
        if store is None:
            store = ("127.0.0.1", json.loads(streams[0].readline()))
    rows: dict[tuple[str, int], list[Told]] = {}
    for same in zip(*streams[:several], strict=True):
        of_ranks = [Told(*json.loads(line)) for line in same]
        ours, theirs = (statistics.mean(side) for side in list(zip(*of_ranks, strict=True))[2:])
        op, size = of_ranks[0].op, of_ranks[0].size
        rows.setdefault((op, size), []).append(Told(op, size, ours, theirs))
    if len(rows) < len(operations) * len(sizes):
        sys.exit("a rank ended before its last size")
    for (op, size), told in rows.items():
        line = {
            "op": op,
            "bytes": size,
            "ours": statistics.median(t.ours for t in told),
            "theirs": statistics.median(t.theirs for t in told),
            "ratio": ratio(told),
            "off": off(told),
            "rounds": len(told),
        }
        print(json.dumps(line), flush=True)


main()
