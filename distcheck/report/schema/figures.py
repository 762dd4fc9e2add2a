"""What was measured, as the document shows it."""

from __future__ import annotations

from typing import Literal

import msgspec

from distcheck.report.schema.part import Part

NO_EXPECTATION = "there is no expectation for parts of the world"


class Seconds(Part, frozen=True):
    """Time per operation, over the ranks and per rank; None if a rank has no figure."""

    mean: float | None
    min: float | None
    max: float | None
    by_rank: tuple[float | None, ...]


class Expected(Part, frozen=True):
    """The expected bus bandwidth and its source."""

    value: float | None
    source: str = msgspec.field(name="from")


class Bandwidth(Part, frozen=True):
    """One operation at one size."""

    op: str
    bytes: int
    dtype: str
    ranks: int
    group: str
    algbw_GBps: float | None  # noqa: N815 the unit's own spelling
    busbw_GBps: float | None  # noqa: N815
    seconds: Seconds
    wrong: int | None
    """Wrong elements over all ranks; None if not checked."""
    expected_GBps: Expected  # noqa: N815
    share_of_expected: float | None
    iterations: int = 0
    """Calls in each burst."""
    bursts: int = 1
    uncertainty: float | None = None
    """Relative uncertainty of the mean (95 % confidence); None with too few bursts."""
    ended: Literal["steady", "time", "asked"] = "asked"
    """Why the bursts ended: steady figure, no time left, or one burst requested."""


class GroupRow(Part, frozen=True):
    """One operation in the groups of one dimension of the mesh; None where there is no figure."""

    dimension: str
    op: str
    bytes: int
    """The payload of one group."""
    dtype: str
    groups: int
    ranks: int
    """Of one group."""
    alone_busbw_GBps: float | None  # noqa: N815 the unit's own spelling
    """The first group while all other ranks wait; None also if it is the only group."""
    busbw_GBps: tuple[float | None, ...]  # noqa: N815
    """Each group while all of them work, by the groups' first ranks."""
    share_of_alone: float | None
    """What the first group keeps of its speed while the others work too."""
    slowest: tuple[int, ...]
    """The ranks of the slowest group; empty for a single group."""
    wrong: int | None
    """Wrong elements over all ranks; None if not checked."""
    lacks: str = ""
    """Why it was not measured."""


class Model(Part, frozen=True):
    """The fitted line t = latency + bytes / rate over the sizes of one operation."""

    op: str
    dtype: str
    ranks: int
    latency_seconds: float
    algbw_GBps: float  # noqa: N815 the unit's own spelling
    """What large sizes approach."""
    busbw_GBps: float | None  # noqa: N815
    half_bytes: float
    """The size that reaches half of it."""
    error: float
    """Relative distance of a measured time from the line, median over the sizes."""


class DeviceBurn(Part, frozen=True):
    """The repeated products of `--burn`."""

    seconds: float
    first_TFLOPS: float | None  # noqa: N815 the unit's own spelling
    """The rate at the beginning; None with too few figures."""
    last_TFLOPS: float | None  # noqa: N815
    """The rate at the end."""


class DeviceRow(Part, frozen=True):
    """What one rank's GPU or CPU reached by itself."""

    rank: int | None
    node: str
    device: str
    """The GPU's model, or cpu."""
    dtype: str
    """The type of the products' matrices."""
    matmul_TFLOPS: float  # noqa: N815
    memory_GBps: float  # noqa: N815
    """Copies within the device's memory, read and written bytes."""
    h2d_GBps: float | None  # noqa: N815
    """Copies from the host; None on CPUs."""
    d2h_GBps: float | None  # noqa: N815
    products: int
    """Products whose checksum was compared with the first one's."""
    different: int
    """How many of them had another one."""
    burn: DeviceBurn | None
