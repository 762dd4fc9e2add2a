"""Time collectives as distcheck reports them and in a bare torch loop, burst by burst in turn, on the same ranks.

``python side_by_side.py RANKS`` prints one JSON line per operation and size: the medians of the seconds per call, the
ratio of the two, that of the bare loop to itself, each with its interval, and the number of bursts. With a second
number, all_reduce in a group of so many ranks is timed while the other ranks wait, as distcheck does with --mesh; in
bursts that are longer and for longer, so that few rows are known well.

Each burst of distcheck's own code has one of the bare loop beside it, by turns before and after: a machine that becomes
slower changes nothing, and neither does a slow moment, which meets either side as often. (A burst over the mean of two
bare ones would be too small: slow moments, which are rare and long, raise a mean more often than a single burst.) The
bare loop is compared with itself in the same way: that is the noise below which no difference can be seen. Where
buffers lie in memory makes a difference of some per cent, to the advantage of those that are made last. So they are
made anew after some bursts, by turns before and after those of the other side.
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

from distcheck.collectives import mesh_groups, worker
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
from benchmarks.ratio import estimate_of_ratios

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

OPERATIONS = ("all_reduce", "broadcast")
SIZES = (1 << 20, 1 << 24, 1 << 26, 1 << 28)
CPU = torch.device("cpu")
DEADLINE_SECONDS = 3600


class Patience(NamedTuple):
    """How long a row is measured."""

    burst_seconds: float
    bursts: int
    """With the same buffers; an even number."""
    seconds_of_a_row: float
    """No new buffers after these."""


OF_MANY_ROWS = Patience(0.02, 8, 120.0)
OF_FEW_ROWS = Patience(0.3, 8, 600.0)
SECONDS_OF_A_SESSION = 0.6
"""Ten times these end the bursts with the same buffers on a machine that is busy."""
_MEETINGS = 3
"""What `measure` holds before its first burst, to warm up."""


class Told(NamedTuple):
    """The bursts with the same buffers: seconds per call, the mean over the ranks."""

    op: str
    size: int
    ours: list[float]
    theirs: list[float]
    """Each beside the one of ours with its index: before it if that is even, else after it."""


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
    """Yield the port of rank 0's store, if this is rank 0, and then what the bursts took."""
    torch.set_num_threads(1)
    store = open_store(DEADLINE_SECONDS) if task.store is None else reach_store(task.store, DEADLINE_SECONDS)
    if task.store is None:
        yield store.port
    worker._join_group(task, store, CPU)
    group = Group(task.rank, task.world_size, CPU)
    if task.plan.mesh:
        group = mesh_groups._formed(task, task.plan.mesh, "tp", CPU, store)
    if group.origin == 0:
        for op in task.plan.operations:
            for size in task.plan.sizes_bytes:
                yield from row(task, op, size, group, part_of(store, f"{op} {size}"), patience)
    agree(store, "all rows", 0 if task.rank == 0 else None)
    farewell(store, task.world_size, host=task.store is None)


def row(task: Task, op: str, size: int, group: Group, store: Store, patience: Patience) -> Iterator[Told]:
    """Yield the bursts of each set of buffers, for as long as a row is measured."""
    begin = time.monotonic()
    told: list[Told] = []
    loop = bare_loop(op, size, group.handle)
    seconds = min(loop(1) for _ in range(2))
    calls = agree(store, "calls", max(1, round(patience.burst_seconds / seconds)) if task.rank == 0 else None)
    del loop
    while True:
        plan, part = replace(task.plan, iterations=calls), part_of(store, f"buffers {len(told)}")
        told.append(bursts(plan, op, size, group, part, patience.bursts, len(told)))
        yield told[-1]
        enough = None
        if task.rank == 0:
            enough = int(time.monotonic() - begin > patience.seconds_of_a_row)
        if agree(store, f"enough after {len(told)}", enough):
            return


def bursts(plan: Plan, op: str, size: int, group: Group, store: Store, number: int, turn: int) -> Told:
    """Run distcheck's own measurement; while it waits for the other ranks before a burst, time the bare loop.

    Args:
        plan: with the number of calls of a burst.
        number: how many bursts of either side to make.
        turn: decides whose buffers are made first.
    """
    loops: list[Callable[[int], float]] = []
    theirs: list[float] = []
    meetings = 0

    def make_loops() -> None:
        made = [bare_loop(op, size, group.handle) for _ in range(2)]
        loops.extend(made if turn % 4 < 2 else reversed(made))
        for loop in made:
            loop(1)  # to warm up

    def wait(what: str) -> None:
        agree(store, what, 0 if group.rank == 0 else None)

    def bare_until(count: int) -> None:
        while len(theirs) < count:
            # Every burst of distcheck's begins after such a wait, so every one of the bare loop does, too.
            wait(f"bare {len(theirs)}")
            theirs.append(loops[_buffer(len(theirs))](plan.iterations))

    def gather() -> None:
        nonlocal meetings
        burst = meetings - _MEETINGS
        meetings += 1
        if burst == 0 and not loops:
            make_loops()
        if burst >= 0 and burst % 2 == 0:
            bare_until(burst + 1)
            wait(f"ours {burst}")
        meet(CPU, group.handle)

    if turn % 2 == 0:
        make_loops()
    timing = measure(plan, op, "float32", size, group, store, gather, number)
    bare_until(len(timing.bursts))
    assert len(theirs) == len(timing.bursts), "measure() warms up in another way"
    both = torch.tensor([timing.bursts, theirs], dtype=torch.float64)
    dist.all_reduce(both, group=group.handle)
    return Told(op, size, *(both / group.ranks).tolist())


def _buffer(number: int) -> int:
    """Return which of two buffers a bare burst uses: of two beside each other, each comes first as often."""
    return 1 - number // 2 % 2


def ratios(told: list[Told]) -> list[float]:
    """Return distcheck's bursts over the bare ones beside them."""
    return [ours / its for t in told for ours, its in zip(t.ours, t.theirs, strict=True)]


def noise(told: list[Told]) -> list[float]:
    """Return the bare bursts with one buffer over those beside them with the other one."""
    return [
        (t.theirs[n] / t.theirs[n + 1]) ** (1 if _buffer(n) else -1)
        for t in told
        for n in range(1, len(t.theirs) - 1, 2)
    ]


def start(plan: Plan, ranks: int, patience: Patience) -> Iterator[str]:
    """Fork the ranks and return the lines that rank 0 prints."""
    read, write = os.pipe()
    lines = os.fdopen(read)
    store = None
    for rank in range(ranks):
        if os.fork() == 0:
            try:
                for told in be_rank(Task(plan, rank, ranks, rank, store), patience):
                    if rank == 0:
                        os.write(write, json.dumps(told).encode() + b"\n")
            except BaseException:  # noqa: BLE001 a fork must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(0)
        if store is None:
            store = ("127.0.0.1", json.loads(next(lines)))
    os.close(write)
    return lines


def main() -> None:
    ranks, *more = sys.argv[1:]
    ranks, several = int(ranks), int(more[0] if more else ranks)
    operations, sizes = (OPERATIONS, SIZES) if several == ranks else (OPERATIONS[:1], SIZES[:2])
    mesh = Mesh({"dp": ranks // several, "tp": several}) if several < ranks else None
    plan = Plan(
        "gloo", operations, sizes, deadline_seconds=DEADLINE_SECONDS, size_seconds=SECONDS_OF_A_SESSION, mesh=mesh
    )
    rows: dict[tuple[str, int], list[Told]] = {}
    patience = OF_FEW_ROWS if several < ranks else OF_MANY_ROWS
    for printed in start(plan, ranks, patience):
        told = Told(*json.loads(printed))
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


if __name__ == "__main__":
    main()
