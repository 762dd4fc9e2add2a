"""Time collectives as distcheck reports them and in a bare torch loop, burst by burst in turn, on the same ranks.

``python side_by_side.py RANKS`` prints one JSON line per operation and size: the medians of the seconds per call, the
ratio of the two, that of the bare loop to itself, each with its interval, and the number of bursts. With ``longer``
each row is measured for longer. With a second number, all_reduce in a group of so many ranks is timed while the other
ranks wait, as distcheck does with --mesh; in bursts that are longer and for longer, so that few rows are known well.

A burst of distcheck's own code is compared with the bare bursts just before and just after it, and each of the bare
loop in the same way with its neighbours: that is the noise below which no difference can be seen. Buffers are made anew
after some bursts, because where they lie in memory makes a difference of some per cent.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
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
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.ratio import LOOKS, beside, estimate_of_ratios, hopeless, judged

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

OPERATIONS = ("all_reduce", "broadcast")
SIZES = (1 << 20, 1 << 24, 1 << 26, 1 << 28)
CPU = torch.device("cpu")
GOAL = (0.97, 1.03)
DEADLINE_SECONDS = 1800


class Patience(NamedTuple):
    """How long a row is measured."""

    burst_seconds: float
    bursts: int
    """With the same buffers."""
    seconds_of_a_row: float
    """No new buffers after these."""
    gives_up: bool
    """Whether a row that very likely stays undecided ends before."""


OF_MANY_ROWS = Patience(0.02, 32, 1.0, gives_up=True)
FOR_LONGER = Patience(0.02, 32, 45.0, gives_up=False)
OF_FEW_ROWS = Patience(0.3, 8, 480.0, gives_up=False)
SECONDS_OF_A_SESSION = 0.6
"""Ten times these end the bursts with the same buffers on a machine that is busy."""
_MEETINGS = 3
"""What `measure` holds before its first burst, to warm up."""


class Told(NamedTuple):
    """What a rank says of the bursts with the same buffers: seconds per call."""

    op: str
    size: int
    ours: list[float]
    theirs: list[float]
    """One more, so that each of ours has one before and one after."""


def bare_loop(op: str, size_bytes: int, group: dist.ProcessGroup | None) -> Callable[[int], float]:
    """Return what times so many calls, as people write it."""
    data = torch.ones(size_bytes // 4).zero_()

    def burst(iterations: int) -> float:
        dist.barrier(group)
        start = time.perf_counter()
        for _ in range(iterations):
            if op == "all_reduce":
                dist.all_reduce(data, group=group)
            else:
                dist.broadcast(data, 0)
        return (time.perf_counter() - start) / iterations

    return burst


def be_rank(task: Task, patience: Patience) -> Iterator[int | Told]:
    """Yield the port of rank 0's store, if this is rank 0, and then what each of its bursts took."""
    torch.set_num_threads(1)
    store = open_store(DEADLINE_SECONDS) if task.store is None else reach_store(task.store, DEADLINE_SECONDS)
    if task.store is None:
        yield store.port
    worker._join_group(task, store, CPU)
    group = Group(task.rank, task.world_size, CPU)
    if task.plan.mesh:
        group = groups._formed(task, task.plan.mesh, "tp", CPU, store)
    if group.origin == 0:
        for op in task.plan.operations:
            for size in task.plan.sizes_bytes:
                yield from row(task, op, size, group, part_of(store, f"{op} {size}"), patience)
    agree(store, "all rows", 0 if task.rank == 0 else None)
    farewell(store, task.world_size, host=task.store is None)


def row(task: Task, op: str, size: int, group: Group, store: Store, patience: Patience) -> Iterator[Told]:
    """Yield the bursts of each set of buffers until rank 0 knows whether the ratio is as it should be."""
    begin = time.monotonic()
    told: list[Told] = []
    looked = 0.0
    while True:
        told.append(bursts(task, op, size, group, part_of(store, f"buffers {len(told)}"), patience))
        yield told[-1]
        enough = None
        if task.rank == 0:
            share = (time.monotonic() - begin) / patience.seconds_of_a_row
            enough = int(share > 1)
            if share - looked >= 1 / LOOKS:
                looked = share
                ratio, times = estimate_of_ratios(ratios(told)), len(ratios(told))
                vain = patience.gives_up and hopeless(ratio, GOAL, times, int(times / min(share, 1)))
                enough |= vain or judged(ratio, GOAL) != "undecided"
        if agree(store, f"enough after {len(told)}", enough):
            return


def bursts(task: Task, op: str, size: int, group: Group, store: Store, patience: Patience) -> Told:
    """Run distcheck's own measurement; while it waits for the other ranks before a burst, time the bare loop."""
    loops = [bare_loop(op, size, group.handle) for _ in range(2)]
    seconds = [loop(1) for loop in loops]  # to warm up
    calls = agree(store, "calls", max(1, round(patience.burst_seconds / seconds[1])) if task.rank == 0 else None)
    theirs: list[float] = []
    meetings = 0

    def gather() -> None:
        nonlocal meetings
        meetings += 1
        if meetings > _MEETINGS:
            theirs.append(loops[len(theirs) % 2](calls))
            # Every burst of the bare loop begins after such a wait, so every one of distcheck's does, too.
            agree(store, f"turn {meetings}", 0 if task.rank == 0 else None)
        meet(CPU, group.handle)

    timing = measure(replace(task.plan, iterations=calls), op, "float32", size, group, store, gather, patience.bursts)
    theirs.append(loops[len(theirs) % 2](calls))
    assert len(theirs) == len(timing.bursts) + 1, "measure() warms up in another way"
    return Told(op, size, list(timing.bursts), theirs)


def ratios(told: list[Told]) -> list[float]:
    """Return distcheck's bursts over the bare ones beside them."""
    return [ratio for t in told for ratio in beside(t.ours, t.theirs, t.theirs[1:])]


def noise(told: list[Told]) -> list[float]:
    """Return the bare bursts over the bare ones beside them, which have the other buffer."""
    return [ratio for t in told for ratio in beside(t.theirs[1:], t.theirs, t.theirs[2:])]


def mean_of(ranks: list[Told]) -> Told:
    """Return the mean over the ranks, burst by burst."""

    def mean(sides: Iterator[list[float]]) -> list[float]:
        return [statistics.fmean(burst) for burst in zip(*sides, strict=True)]

    return Told(ranks[0].op, ranks[0].size, mean(t.ours for t in ranks), mean(t.theirs for t in ranks))


def start(plan: Plan, ranks: int, patience: Patience) -> list[Iterator[str]]:
    """Fork the ranks and return the lines that each prints."""
    lines: list[Iterator[str]] = []
    store = None
    for rank in range(ranks):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                for told in be_rank(Task(plan, rank, ranks, rank, store), patience):
                    os.write(write, json.dumps(told).encode() + b"\n")
            except BaseException:  # noqa: BLE001 a fork must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(write)
        lines.append(os.fdopen(read))
        if store is None:
            store = ("127.0.0.1", json.loads(next(lines[0])))
    return lines


def main() -> None:
    ranks, *more = sys.argv[1:]
    longer = more == ["longer"]
    ranks, several = int(ranks), int(ranks if longer or not more else more[0])
    operations, sizes = (OPERATIONS, SIZES) if several == ranks else (OPERATIONS[:1], SIZES[:2])
    mesh = Mesh({"dp": ranks // several, "tp": several}) if several < ranks else None
    plan = Plan(
        "gloo", operations, sizes, deadline_seconds=DEADLINE_SECONDS, size_seconds=SECONDS_OF_A_SESSION, mesh=mesh
    )
    rows: dict[tuple[str, int], list[Told]] = {}
    patience = OF_FEW_ROWS if several < ranks else FOR_LONGER if longer else OF_MANY_ROWS
    for same in zip(*start(plan, ranks, patience)[:several], strict=True):
        told = mean_of([Told(*json.loads(line)) for line in same])
        rows.setdefault((told.op, told.size), []).append(told)
    if len(rows) < len(operations) * len(sizes):
        sys.exit("a rank ended before its last size")
    for (op, size), told in rows.items():
        line = {
            "op": op,
            "bytes": size,
            "ours": statistics.median(burst for t in told for burst in t.ours),
            "theirs": statistics.median(burst for t in told for burst in t.theirs),
            "bursts": len(ratios(told)),
            "ratio": estimate_of_ratios(ratios(told)),
            "noise": estimate_of_ratios(noise(told)),
        }
        print(json.dumps(line), flush=True)


main()
