"""Each dimension of a mesh measured in its groups: one group alone, then all of them at the same time.

A rank is in exactly one group of each dimension, and all ranks take the dimensions in the same order. So each rank
forms only its own groups (`use_local_synchronization`): no rank waits for a group whose ranks wait for it, and 16,384
groups cost a rank no more than one. NCCL splits the world once per dimension, in which all ranks take part.

Ranks that wait for the first group wait for an answer of the store: on a socket, without a collective on their device.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING

# Before torch: this import silences torch's warnings at import.
import distcheck.collectives.software  # noqa: F401

# isort: split
import torch
import torch.distributed as dist
from msgspec.structs import replace

from distcheck.collectives.dimensions import ENTER_SECONDS, inside, measured
from distcheck.collectives.figure import check, measure
from distcheck.collectives.operations import EXACT, Group
from distcheck.collectives.plan import GroupTiming, Plan, RankMessage, Step, Task, Timing, moved_bytes
from distcheck.collectives.store import agree, await_all, enter, part_of
from distcheck.collectives.timing import meet

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

    from distcheck.facts.mesh import Mesh

    Tell = Callable[[RankMessage], None]

_LEAST_SECONDS = 6.0
"""With less time left an operation is not measured."""
_LACKS = re.compile(r"Backend \w+ does not support \w+|no support for \w+ in \w+ process group")
"""What torch's process groups say of an operation that they do not have (ProcessGroup.hpp, ProcessGroupGloo.cpp)."""
_DTYPE = "float32"
_BURST_SECONDS = 0.1
"""The least length of a burst, whatever --iters says: the kernel's period for CPU limits, in which a limit shows."""
_FEWEST_BURSTS = 6
"""Of all groups at once: a group is slow if its quickest burst is, and on a busy CPU a single one often is."""


def measure_all(task: Task, device: torch.device, store: Store, begin: float, say: Tell) -> None:
    """Form the groups of every dimension and measure what its ranks will do.

    `begin` is the time.monotonic() at which the task began.

    Raises:
        AbsentError: a rank of this rank's group did not come.
    """
    plan, mesh = task.plan, task.plan.mesh
    if mesh is None:
        return
    store = part_of(store, "mesh")
    here: Group | None = None
    last = ""
    for place, (dimension, op) in enumerate(measured(mesh)):
        left = plan.deadline_seconds - (time.monotonic() - begin)
        if plan.backend == "mpi":
            say(GroupTiming(dimension, op, lacks="groups of MPI ranks are not measured"))
            continue
        if not agree(store, f"{dimension} {op}", int(left >= _LEAST_SECONDS) if task.rank == 0 else None):
            return
        if here is None or dimension != last:
            say(Step(f"{dimension}: form groups", 8 * place + 1))
            here, last = _formed(task, mesh, dimension, device, store), dimension
        _measure(plan, mesh, dimension, op, here, part_of(store, dimension), say, 8 * place)


def _formed(task: Task, mesh: Mesh, dimension: str, device: torch.device, store: Store) -> Group:
    """Return this rank's group of a dimension, formed by its ranks."""
    ranks = mesh.group_of(task.rank, dimension)
    enter(store, f"the {dimension} group from rank {ranks.start}", task.rank, ranks, ENTER_SECONDS)
    await_all(store, f"ready for {dimension}", task.world_size)
    handle = dist.new_group(
        list(ranks), timeout=timedelta(seconds=task.plan.deadline_seconds), use_local_synchronization=True
    )
    return Group(ranks.index(task.rank), len(ranks), device, EXACT[_DTYPE], handle=handle, members=ranks)


def _measure(
    plan: Plan, mesh: Mesh, dimension: str, op: str, group: Group, store: Store, say: Tell, place: int
) -> None:
    """Check an operation in all groups of a dimension; measure it in the first one alone, then in all of them."""
    say(Step(f"{dimension}: check {op}", place + 2))
    try:
        say(check(op, _DTYPE, group, inside(op, dimension)))
    except RuntimeError as error:
        lack = _LACKS.search(str(error))
        if lack is None:
            raise
        say(GroupTiming(dimension, op, lacks=f"torch {torch.__version__}: {lack[0]}"))
        return
    moved = moved_bytes(op, plan.group_bytes, group.ranks, _DTYPE)
    plan = replace(
        plan, size_seconds=plan.group_seconds, rough=False, iterations=None,
        burst_seconds=max(plan.burst_seconds, _BURST_SECONDS),
    )  # fmt: skip
    alone: Timing | None = None
    if group.ranks < mesh.ranks:
        first = group.origin == 0
        alone_step = f"{op} {moved} B in the first group" if first else "wait for the first group"
        say(Step(f"{dimension}: {alone_step}", place + 3 if first else place + 4))
        await_all(store, f"{op} checked", mesh.ranks)
        if first:
            alone = measure(
                plan, op, _DTYPE, moved, group, part_of(store, "alone"), lambda: meet(group.device, group.handle)
            )
        agree(store, f"{op} alone", 0 if group.in_world(group.rank) == 0 else None)
    together = f"{dimension}: {op} {moved} B in all groups"

    def gather() -> None:
        say(Step(f"{dimension}: wait for the other groups", place + 6))
        meet(group.device)
        say(Step(together, place + 5))

    say(Step(together, place + 5))
    on_cpu = group.device.type == "cpu"
    timing = measure(plan, op, _DTYPE, moved, group, store, gather, _FEWEST_BURSTS, watch_cpus=on_cpu)
    say(GroupTiming(dimension, op, timing, alone))
