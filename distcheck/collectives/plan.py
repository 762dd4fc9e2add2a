"""What the ranks are to measure, and what a rank's process says while it does; imported without torch."""

from __future__ import annotations

from typing import Literal

import msgspec

OPERATIONS = ("all_reduce", "broadcast")
"""What is measured when nobody says what."""
ALL_OPERATIONS = (*OPERATIONS, "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""What `--op` takes; send_recv passes the payload round the ring of neighbours."""
GPU_SIZES_BYTES = tuple(1 << n for n in range(20, 29, 2))
"""1 MiB to 256 MiB by a factor of 4."""
CPU_SIZES_BYTES = tuple(1 << n for n in range(20, 25, 2))
"""1 MiB to 16 MiB: Gloo between 8 ranks on 2 cores takes 0.1 s for 16 MiB and 1 s for 256 MiB (measured)."""
ITEM_BYTES = 4
"""Everything is measured and checked in float32."""


class Plan(msgspec.Struct, frozen=True):
    """One sweep: every operation at every size, after an exact check of every operation."""

    backend: Literal["nccl", "gloo", "mpi"]
    operations: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    deadline_seconds: float
    """After this many seconds a process group's operation gives up by itself."""
    iterations: int | None = None
    """None: as many as fill `burst_seconds`, the same on every rank."""
    burst_seconds: float = 0.25
    dtype: str = "float32"


class Said(msgspec.Struct, frozen=True, tag_field="said"):
    """Common ground of what a rank's process says."""


class Step(Said, frozen=True):
    """What it does next."""

    text: str


class Alive(Said, frozen=True):
    """It runs Python code; said twice a second."""


class StoreOpen(Said, frozen=True):
    """Rank 0's store listens on this port."""

    port: int


class Software(Said, frozen=True):
    """What it imported."""

    torch: str
    nccl: str
    device: str


class Timing(Said, frozen=True):
    """Seconds per operation on this rank."""

    op: str
    bytes: int
    dtype: str
    iterations: int
    seconds: float


class Checked(Said, frozen=True):
    """The exact check of one operation on this rank."""

    op: str
    elements: int
    wrong: int


class Failed(Said, frozen=True):
    """An exception ended it."""

    error: str
    unavailable: bool = False
    """True when this torch does not have the backend; nothing was tried."""


class Finished(Said, frozen=True):
    """Everything in the plan was done."""


RankMessage = Step | Alive | StoreOpen | Software | Timing | Checked | Failed | Finished


class Task(msgspec.Struct, frozen=True):
    """What a rank's process is told to do: the plan, and where the store listens (None: open it)."""

    plan: Plan
    rank: int
    world_size: int
    local_rank: int
    store: tuple[str, int] | None
    gpu: int | None = None
    """CUDA ordinal to take; None on CPU."""


_DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose payload is one equal block for every rank."""


def bus_factor(op: str, ranks: int) -> float | None:
    """Return what turns algorithm bandwidth into bus bandwidth, None where one rank moves nothing.

    Source: nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n for all_reduce, (n-1)/n for the operations that divide
    their payload among the ranks, 1 for broadcast and for sending to a neighbour.
    """
    if ranks < 2:
        return None
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0, "send_recv": 1.0, **dict.fromkeys(_DIVIDED, share)}[op]


def blocks(op: str, ranks: int) -> int:
    """Return into how many equal blocks an operation divides its payload."""
    return ranks if op in _DIVIDED else 1


def moved_bytes(op: str, size_bytes: int, ranks: int) -> int:
    """Return what is measured for a size: whole elements in every block, rounded down, at least one each."""
    unit = ITEM_BYTES * blocks(op, ranks)
    return max(size_bytes // unit, 1) * unit


def usual_sizes(backend: str) -> tuple[int, ...]:
    """Return the sizes that are measured when nobody says which."""
    return CPU_SIZES_BYTES if backend == "gloo" else GPU_SIZES_BYTES
