"""What a rank's GPU or CPU reached by itself, without the other ranks."""

from __future__ import annotations

from distcheck.facts.base import Amount, Count, Facts, Seconds, Whole


class Burn(Facts, frozen=True):
    """Matrix products repeated for a while (``--burn``)."""

    seconds: Seconds
    """How long they were repeated."""
    first_TFLOPS: Amount | None = None  # noqa: N815 the unit's own spelling
    """The rate in the first fifth of that time; None with fewer than five figures."""
    last_TFLOPS: Amount | None = None  # noqa: N815
    """The rate in the last fifth of it."""


class DeviceTest(Facts, frozen=True):
    """The rates of one rank's own work after the collectives.

    On a CPU, time in which others use it does not count; a CPU limit's throttling does.
    """

    dtype: str
    """The type of the products' matrices: bfloat16, float16 on GPUs without it, float32 on CPUs."""
    order: Count
    """The order of the matrices."""
    matmul_TFLOPS: Amount  # noqa: N815
    memory_GBps: Amount  # noqa: N815
    """Copies within the device's memory, bytes read plus bytes written."""
    h2d_GBps: Amount | None = None  # noqa: N815
    """Copies from pinned memory to the GPU; None on CPUs."""
    d2h_GBps: Amount | None = None  # noqa: N815
    """Copies from the GPU to pinned memory."""
    products: Count = 0
    """Products whose checksum was compared with the first one's, those of the burn included."""
    different: Count = 0
    """How many of them had another checksum."""
    checksum: Whole | None = None
    """The first product's checksum; the same on every correct device, because every sum in it is exact."""
    burn: Burn | None = None
    matmul_least_TFLOPS: Amount | None = None  # noqa: N815
    """The rate of the worst round, of which `matmul_TFLOPS` is the best; None with a single round."""
    memory_least_GBps: Amount | None = None  # noqa: N815
    """The same for the copies within the memory."""
