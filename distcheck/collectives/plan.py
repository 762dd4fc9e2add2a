"""The plan of a measurement and the messages of a rank's process; imported without torch."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from distcheck.facts.base import Count, Measured, Missing, Rank, Seconds
from distcheck.facts.device import DeviceTest
from distcheck.facts.mesh import Mesh
from distcheck.facts.nccl import NcclLog
from distcheck.facts.training import Training

OPERATIONS = ("all_reduce", "broadcast")
"""The operations measured by default."""
ALL_OPERATIONS = (*OPERATIONS, "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""The operations that `--op` accepts; send_recv passes the payload around the ring of neighbours."""
GPU_SIZES_BYTES = tuple(1 << n for n in range(20, 29, 2))
"""1 MiB to 256 MiB by a factor of 4."""
CPU_SIZES_BYTES = tuple(1 << n for n in range(20, 25, 2))
"""1 MiB to 16 MiB: Gloo between 8 ranks on 2 cores takes 0.1 s for 16 MiB and 1 s for 256 MiB (measured)."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
"""Bytes per element, by the data type that ``--dtype`` accepts."""


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Plan(msgspec.Struct, frozen=True):
    """One sweep: every operation at every size, after an exact check of every operation."""

    backend: str
    """The kind of backend; see Asked."""
    operations: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    deadline_seconds: float
    """The timeout of the process group's operations."""
    backend_name: str = ""
    """The name for init_process_group if it is another one."""
    iterations: int | None = None
    """Calls in the one burst of a size; None: as many as fill `burst_seconds`, the same on every rank."""
    burst_seconds: float = 0.25
    size_seconds: float = 0.0
    """Bursts of a size are repeated until their median is steady or these seconds are over; 0: one burst is enough."""
    rough: bool = False
    """Whether a figure needs no precision, so that fewer calls suffice."""
    dtypes: tuple[str, ...] = ("float32",)
    stride: int = 1
    """The distance in ranks to the one that send_recv sends to."""
    compute: bool = False
    """Whether every rank first times its own work."""
    device_seconds: float = 0.0
    """The time for each figure of the device test after the sweep; 0: no device test."""
    burn_seconds: float = 0.0
    """How long the device test repeats its products."""
    training: bool = False
    """Whether every rank takes training steps at the end."""
    mesh: Mesh | None = None
    """The groups of its dimensions are measured after the sweep."""
    group_bytes: int = 0
    """The size that is measured in the groups of the mesh."""
    group_seconds: float = 0.0
    """Like `size_seconds`, for the groups of the mesh."""


DEVICE_TEST, TRAINING = "device test", "training step"
"""How a rank's steps begin after the collectives, in this order."""

Ended = Literal["steady", "time", "asked"]
"""Why no more bursts followed: the median is known to 2 %, its share of time is up, or one was requested."""


class _Message(msgspec.Struct, frozen=True, tag_field="said"):
    """Base of the messages of a rank's process."""


class Step(_Message, frozen=True):
    """The rank's next step."""

    text: str
    place: Count = 0
    """In the groups of a mesh: a rank that waits for another one has the higher number; else 0."""


class Alive(_Message, frozen=True):
    """The rank runs Python code; sent twice a second."""


class StoreOpen(_Message, frozen=True):
    """This rank's store listens on this port."""

    port: Count


class Software(_Message, frozen=True):
    """The versions that the rank imported, and its device."""

    torch: str
    nccl: str
    device: str
    gpu: str | None = None
    """UUID of its GPU, see `gpu_uuid`; None on CPUs and if torch has none (before 2.5, and on AMD's GPUs)."""


class Computed(_Message, frozen=True):
    """Seconds of a rank's own work, which is the same on every rank with such a device."""

    matmul_seconds: Measured
    copy_seconds: Measured
    wrong: Count
    """Rows of the product that were wrong."""


class Joined(_Message, frozen=True):
    """The rank joined the process group, after these seconds."""

    seconds: Seconds
    implementation: str = ""
    """The class behind the group's backend."""


class Timing(_Message, frozen=True):
    """Seconds per call on this rank: the mean of each burst."""

    op: str
    bytes: Count
    dtype: str
    iterations: Count
    """Calls in each burst."""
    bursts: Annotated[tuple[Measured, ...], msgspec.Meta(min_length=1)]
    ended: Ended
    waited: tuple[Seconds, ...] = ()
    """Seconds per call for which the threads of this rank waited for CPUs that others used, in each burst; empty on
    GPUs, and where it was not asked for."""


class FirstBurst(_Message, frozen=True):
    """Rank 0's first burst of a size, after which more follow: a figure that is not steady yet."""

    bytes: Count
    seconds: Measured
    """Per call."""


class GroupTiming(_Message, frozen=True):
    """An operation in this rank's group of a dimension."""

    dimension: str
    op: str
    together: Timing | None = None
    """All groups of the dimension at the same time; None if the operation was not measured."""
    alone: Timing | None = None
    """The dimension's first group while all other ranks wait; None on these."""
    lacks: str = ""
    """Why the backend does not have the operation; empty if it has."""


class Checked(_Message, frozen=True):
    """The exact check of one operation on this rank."""

    op: str
    """In the groups of a mesh with the dimension: all_reduce in dp."""
    dtype: str
    elements: Count
    wrong: Count
    seconds: Seconds
    """Seconds of the first call, in which the backend sets up what it needs."""


class DeviceTested(_Message, frozen=True):
    """What the rank's device reached by itself, or why that was not measured."""

    test: DeviceTest | Missing


class Trained(_Message, frozen=True):
    """What is known of the rank's training steps so far, or why none were taken."""

    way: str
    """How it trains: DDP."""
    training: Training | Missing


class NcclSaid(_Message, frozen=True):
    """NCCL's debug log."""

    log: NcclLog | Missing


class Failed(_Message, frozen=True):
    """An exception ended the rank's work."""

    error: str
    unavailable: bool = False
    """True if this torch lacks the backend; nothing was tried."""
    absent: tuple[Rank, ...] = ()
    """The ranks that did not come to form their group; this rank is in the group and was there first."""


class Finished(_Message, frozen=True):
    """The whole plan is done."""


RankMessage = (
    Step
    | Alive
    | StoreOpen
    | Software
    | Computed
    | Joined
    | FirstBurst
    | Timing
    | GroupTiming
    | Checked
    | DeviceTested
    | Trained
    | NcclSaid
    | Failed
    | Finished
)


class Task(msgspec.Struct, frozen=True):
    """The task of a rank's process: the plan, and the store's address (None: open it)."""

    plan: Plan
    rank: int
    world_size: int
    local_rank: int
    store: tuple[str, int] | None
    gpu: int | None = None
    """CUDA ordinal to take; None on CPU."""
    variables: dict[str, str] = {}
    """Environment variables to set first: a case that failed is repeated with another setting."""


_DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations whose payload is one equal block for every rank."""


def bus_factor(op: str, ranks: int) -> float | None:
    """Return the factor from algorithm to bus bandwidth; None for a single rank.

    None also for an unknown operation, which a saved job may contain.

    Source: nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n for all_reduce, (n-1)/n for the operations that divide
    their payload among the ranks, 1 for broadcast and for sending to a neighbour.
    """
    if ranks < 2:
        return None
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0, "send_recv": 1.0, **dict.fromkeys(_DIVIDED, share)}.get(op)


def blocks(op: str, ranks: int) -> int:
    """Return the number of equal blocks in an operation's payload."""
    return ranks if op in _DIVIDED else 1


def moved_bytes(op: str, size_bytes: int, ranks: int, dtype: str = "float32") -> int:
    """Return the bytes measured for a size: whole elements per block, at least one each."""
    unit = ITEM_BYTES.get(dtype, 1) * blocks(op, ranks)  # a saved job may contain any type
    return max(size_bytes // unit, 1) * unit


def label(op: str, dtype: str) -> str:
    """Return an operation's name, with its data type unless float32: all_reduce bfloat16."""
    return op if dtype == "float32" else f"{op} {dtype}"


def gpu_uuid(text: str) -> str | None:
    """Return torch's UUID of a device in NVML's form, None if it is not an NVIDIA UUID.

    torch omits the kind, so a MIG device's UUID begins with GPU- here too.
    """
    digits = text.strip().lower().removeprefix("gpu-").removeprefix("mig-")
    return f"GPU-{digits}" if _UUID.fullmatch(digits) else None


def usual_sizes(backend: str) -> tuple[int, ...]:
    """Return the sizes measured by default."""
    return CPU_SIZES_BYTES if for_cpus(backend) else GPU_SIZES_BYTES


def for_cpus(backend: str) -> bool:
    """Return whether a backend is measured as one that may move the data of CPUs: Gloo, UCC, a plugin's."""
    return backend not in {"nccl", "mpi", "xccl", "hccl"}
