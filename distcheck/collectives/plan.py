"""What the ranks are to measure, and what a rank's process says while it does; imported without torch."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from distcheck.facts import Count, Measured, Missing, NcclLog, Seconds

OPERATIONS = ("all_reduce", "broadcast")
"""What is measured when nobody says what."""
ALL_OPERATIONS = (*OPERATIONS, "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""What `--op` takes; send_recv passes the payload round the ring of neighbours."""
GPU_SIZES_BYTES = tuple(1 << n for n in range(20, 29, 2))
"""1 MiB to 256 MiB by a factor of 4."""
CPU_SIZES_BYTES = tuple(1 << n for n in range(20, 25, 2))
"""1 MiB to 16 MiB: Gloo between 8 ranks on 2 cores takes 0.1 s for 16 MiB and 1 s for 256 MiB (measured)."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
"""Of one element, by the data type that ``--dtype`` takes."""


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Plan(msgspec.Struct, frozen=True):
    """One sweep: every operation at every size, after an exact check of every operation."""

    backend: Literal["nccl", "gloo", "mpi"]
    operations: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    deadline_seconds: float
    """After this many seconds a process group's operation gives up by itself."""
    iterations: int | None = None
    """Calls in the one burst of a size; None: as many as fill `burst_seconds`, the same on every rank."""
    burst_seconds: float = 0.25
    size_seconds: float = 0.0
    """Bursts of a size are repeated until their median is steady or these seconds are over; 0: one burst is enough."""
    dtypes: tuple[str, ...] = ("float32",)
    rotate_root: bool = False
    """Whether the root of a broadcast is another rank at every call."""
    stride: int = 1
    """How many ranks further on the one is to which send_recv sends."""
    compute: bool = False
    """Whether every rank times work of its own first."""


Ended = Literal["steady", "time", "asked"]
"""Why no more bursts followed: their median is known to 2 %, their share of the time is over, or one was asked for."""


class Said(msgspec.Struct, frozen=True, tag_field="said"):
    """Common ground of what a rank's process says."""


class Step(Said, frozen=True):
    """What it does next."""

    text: str


class Alive(Said, frozen=True):
    """It runs Python code; said twice a second."""


class StoreOpen(Said, frozen=True):
    """The store that this rank was to open listens on this port."""

    port: Count


class Software(Said, frozen=True):
    """What it imported."""

    torch: str
    nccl: str
    device: str
    gpu: str | None = None
    """UUID of its GPU, see `gpu_uuid`; None on CPUs and where torch does not tell (before 2.5, and on AMD's GPUs)."""


class Computed(Said, frozen=True):
    """Seconds that a rank took for work of its own, the same on every rank with such a device."""

    matmul_seconds: Measured
    copy_seconds: Measured
    wrong: Count
    """Rows of the product that were wrong."""


class Joined(Said, frozen=True):
    """The process group was there after these seconds."""

    seconds: Seconds


class Timing(Said, frozen=True):
    """Seconds per call on this rank: the mean of each burst."""

    op: str
    bytes: Count
    dtype: str
    iterations: Count
    """Of each burst."""
    bursts: tuple[Measured, ...]
    ended: Ended


class Checked(Said, frozen=True):
    """The exact check of one operation on this rank."""

    op: str
    dtype: str
    elements: Count
    wrong: Count
    seconds: Seconds
    """The first call, in which the backend sets up what it needs."""


class NcclSaid(Said, frozen=True):
    """What NCCL said of itself in its debug log."""

    log: NcclLog | Missing


class Failed(Said, frozen=True):
    """An exception ended it."""

    error: str
    unavailable: bool = False
    """True when this torch does not have the backend; nothing was tried."""


class Finished(Said, frozen=True):
    """Everything in the plan was done."""


RankMessage = Step | Alive | StoreOpen | Software | Computed | Joined | Timing | Checked | NcclSaid | Failed | Finished


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

    None too for a name that is no operation, which a saved job may hold.

    Source: nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n for all_reduce, (n-1)/n for the operations that divide
    their payload among the ranks, 1 for broadcast and for sending to a neighbour.
    """
    if ranks < 2:
        return None
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0, "send_recv": 1.0, **dict.fromkeys(_DIVIDED, share)}.get(op)


def blocks(op: str, ranks: int) -> int:
    """Return into how many equal blocks an operation divides its payload."""
    return ranks if op in _DIVIDED else 1


def moved_bytes(op: str, size_bytes: int, ranks: int, dtype: str = "float32") -> int:
    """Return what is measured for a size: whole elements in every block, rounded down, at least one each."""
    unit = ITEM_BYTES.get(dtype, 1) * blocks(op, ranks)  # a saved job may name any type
    return max(size_bytes // unit, 1) * unit


def label(op: str, dtype: str) -> str:
    """Name an operation with its data type where that is not the usual one: all_reduce, all_reduce bfloat16."""
    return op if dtype == "float32" else f"{op} {dtype}"


def gpu_uuid(text: str) -> str | None:
    """Write the UUID that torch tells of a device as NVML writes a GPU's, None when it is none of NVIDIA's.

    torch leaves the kind out, so that a MIG device's UUID begins with GPU- here too.
    """
    digits = text.strip().lower().removeprefix("gpu-").removeprefix("mig-")
    return f"GPU-{digits}" if _UUID.fullmatch(digits) else None


def usual_sizes(backend: str) -> tuple[int, ...]:
    """Return the sizes that are measured when nobody says which."""
    return CPU_SIZES_BYTES if backend == "gloo" else GPU_SIZES_BYTES
