"""The device test: what a rank's GPU or CPU reaches by itself, and whether its products are right.

The work is the same for every device of a kind. Host copies are made by one local rank after the other, because the
GPUs of a node share PCIe switches and the host's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

# Before torch: this import silences torch's warnings at import.
import distcheck.collectives.software  # noqa: F401

# isort: split
import torch

from distcheck.collectives.compute import own_seconds
from distcheck.facts.base import SHORTEST_SECONDS, Missing
from distcheck.facts.device import Burn, DeviceTest
from distcheck.facts.ranges import unfold
from distcheck.probe.waiting import waited_for_cpu

Say = Callable[[str], None]


class _Load(NamedTuple):
    """The amount of work of one call; the same on every rank with such a device."""

    order: int
    """Order of the matrices."""
    memory_bytes: int
    """Bytes of a copy within the device's memory."""
    host_bytes: int
    """Bytes of a copy between pinned memory and the GPU; 0: none are made."""
    rounds: int
    """Repetitions of which the best counts."""
    pause_seconds: float
    """Between the first round and the others, so that what disturbs a device for a moment does not hit all of them."""


_CPU = _Load(256, 16 << 20, 0, 2, 0.0)
_GPU = _Load(8192, 256 << 20, 32 << 20, 3, 0.2)
_BUSY, _BUSY_PAUSE_SECONDS = 0.2, 0.3
"""The share of the time that a rank waits for a CPU from which another round follows on CPUs, and when."""
_FEWEST, _MOST = 2, 10_000
"""Calls that are timed together."""
_LONGEST_SECONDS = 1.0
"""On a CPU no more calls begin after this time."""
_PREPARATION_SECONDS = 0.3
"""After this time the local ranks' turns begin, one of `_TURN` times a figure's time for each."""
_TURN = 0.6
_HOST_SHARE = 0.2
"""The share of a figure's time for the copies in one direction."""
_BURN_CHUNK_SECONDS = 0.1
_FEWEST_CHUNKS = 5
_SAY_SECONDS = 1.0
_PCI_LENGTH = 32


def test(device: torch.device, local_rank: int, seconds: float, burn_seconds: float, say: Say) -> DeviceTest | Missing:
    """Measure the device; `seconds` is the time for each figure, and `say` is called before each.

    Returns Missing if the GPU has too little free memory for it; other errors are raised.
    """
    load = _GPU if device.type == "cuda" else _CPU
    try:
        return _measured(device, load, local_rank, seconds, burn_seconds, say)
    except torch.cuda.OutOfMemoryError:
        return Missing(reason="too little free GPU memory for the device test")


def _measured(
    device: torch.device, load: _Load, local_rank: int, seconds: float, burn_seconds: float, say: Say
) -> DeviceTest:
    to_device = to_host = None
    if load.host_bytes:
        say("host copies")
        to_device, to_host = host_copies(device, load.host_bytes, _HOST_SHARE * seconds, local_rank * _TURN * seconds)
    say("memory and products")
    copy, products = _copy_within(device, load.memory_bytes), Products(device, load.order)

    def both() -> tuple[float, float]:
        """Measure one after the other, so that a disturbance of a moment hits one round of both."""
        return rate(copy, device, seconds / 2 / load.rounds), rate(products, device, seconds / load.rounds)

    start, waited = time.perf_counter(), waited_for_cpu()
    rounds = [both()]
    time.sleep(load.pause_seconds)
    rounds += [both() for _ in range(load.rounds - 1)]
    busy = waited_for_cpu() - waited > _BUSY * (time.perf_counter() - start)
    if busy and device.type == "cpu":  # a busy machine may disturb a CPU for longer than the rounds take
        time.sleep(_BUSY_PAUSE_SECONDS)
        rounds.append(both())
    (least_copies, least_reached), (copies, reached) = (tuple(map(of, zip(*rounds, strict=True))) for of in (min, max))
    copied = 2 * load.memory_bytes / 1e9
    burnt = burn(products, device, burn_seconds, reached, say) if burn_seconds else None
    return DeviceTest(
        dtype=str(products.dtype).removeprefix("torch."),
        order=load.order,
        matmul_TFLOPS=reached * products.flop / 1e12,
        memory_GBps=copied * copies,
        h2d_GBps=to_device,
        d2h_GBps=to_host,
        products=products.made,
        different=int(products.different.item()),
        checksum=int(products.first.item()),
        burn=burnt,
        matmul_least_TFLOPS=least_reached * products.flop / 1e12,
        memory_least_GBps=copied * least_copies,
    )


def _copy_within(device: torch.device, size: int) -> Callable[[], object]:
    """Return a call that copies within the device's memory."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def rate(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return calls per second, of as many as take about this time."""
    call()
    estimate = min(_one_call(call, device) for _ in range(2))
    times = min(max(round(seconds / max(estimate, SHORTEST_SECONDS)), _FEWEST), _MOST)
    return _per_second(*own_seconds(call, times, device, _LONGEST_SECONDS))


def _one_call(call: Callable[[], object], device: torch.device) -> float:
    """Return about how long a call takes, without waiting or throttling: a few calls cannot tell these apart."""
    if device.type == "cuda":
        return own_seconds(call, 1, device)[0]
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _per_second(seconds: float, calls: int) -> float:
    return calls / max(seconds, SHORTEST_SECONDS)


class Products:
    """Matrix products, each with a checksum that is compared with the first one's; calling it makes one.

    The elements are whole numbers from -2 to 2, so every sum is exact in any order of addition: a correct product has
    the same bits at every repetition and on every device.
    """

    def __init__(self, device: torch.device, order: int) -> None:
        self.dtype = _dtype(device)
        self.flop = 2 * order**3
        self._left, self._right = (_whole_numbers(order, device, self.dtype, salt) for salt in (1, 2))
        self._out = torch.matmul(self._left, self._right)
        self.first = self._checksum()
        self.different = torch.zeros((), dtype=torch.int64, device=device)
        self.made = 1

    def __call__(self) -> None:
        """Make a product, and compare its checksum with the first one's."""
        torch.matmul(self._left, self._right, out=self._out)
        self.different += self._checksum() != self.first
        self.made += 1

    def _checksum(self) -> torch.Tensor:
        """Return the sum of the product's bits; it stays on the device, so nothing waits for it."""
        return self._out.view(torch.int32).sum(dtype=torch.int64)


def _dtype(device: torch.device) -> torch.dtype:
    if device.type != "cuda":
        return torch.float32
    # Partial sums in bfloat16 would be rounded, and differently for each way to divide the work.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    # Before Ampere (8.0), torch emulates bfloat16.
    return torch.bfloat16 if torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def _whole_numbers(order: int, device: torch.device, dtype: torch.dtype, salt: int) -> torch.Tensor:
    """Return a matrix of whole numbers from -2 to 2 without a visible pattern, the same on every device."""
    places = torch.arange(order * order, device=device, dtype=torch.int64)
    mixed = (places + salt * 7_919) * 2_654_435_761 % (1 << 32)  # Knuth's multiplicative hash
    return ((mixed >> 13) % 5 - 2).reshape(order, order).to(dtype)


def burn(products: Products, device: torch.device, seconds: float, per_second: float, say: Say) -> Burn:
    """Repeat products for a while and return how their rate changed."""
    start = now = told = time.perf_counter()
    times = max(round(_BURN_CHUNK_SECONDS * per_second), 1)
    rates: list[float] = []
    while now - start < seconds:
        if now - told >= _SAY_SECONDS or now == start:
            say(f"burn, {now - start:.0f} of {seconds:g} s")
            told = now
        left = seconds - (now - start)
        rates.append(_per_second(*own_seconds(products, times, device, min(left, _BURN_CHUNK_SECONDS))))
        now = time.perf_counter()
    if len(rates) < _FEWEST_CHUNKS:
        return Burn(seconds=now - start)
    fifth = len(rates) // 5
    first, last = (median(part) * products.flop / 1e12 for part in (rates[:fifth], rates[-fifth:]))
    return Burn(seconds=now - start, first_TFLOPS=first, last_TFLOPS=last)


def host_copies(device: torch.device, size: int, seconds: float, delay: float) -> tuple[float, float]:
    """Return GB/s to the device and back, between it and pinned memory near to it.

    The copies begin `delay` seconds after the preparation, because the node's other GPUs copy before.
    """
    begin = time.perf_counter() + _PREPARATION_SECONDS + delay
    with near(device):
        # New pages come from the NUMA node of the CPU that first touches them.
        host = torch.ones(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        time.sleep(max(0.0, begin - time.perf_counter()))
        to_device = rate(lambda: there.copy_(host, non_blocking=True), device, seconds)
        to_host = rate(lambda: host.copy_(there, non_blocking=True), device, seconds)
    return to_device * size / 1e9, to_host * size / 1e9


@contextlib.contextmanager
def near(device: torch.device, root: Path = Path("/sys")) -> Iterator[None]:
    """Run this thread on CPUs of the GPU's own NUMA node, if it may, while the body runs."""
    before = os.sched_getaffinity(0)
    local = _local_cpus(_pci_address(device), root) & before
    try:
        _run_on(local)
        yield
    finally:
        _run_on(before)


def _run_on(cpus: set[int]) -> None:
    with contextlib.suppress(OSError):  # none are given, or the cpuset has changed
        os.sched_setaffinity(0, cpus)


def _local_cpus(address: str, root: Path) -> set[int]:
    """Return the CPUs near a PCI device; empty if sysfs does not show them.

    Source: https://docs.kernel.org/admin-guide/abi-testing.html (/sys/bus/pci/devices/.../local_cpulist)
    """
    try:
        return set(unfold((root / "bus/pci/devices" / address / "local_cpulist").read_text().strip()))
    except (OSError, ValueError):
        return set()


def _pci_address(device: torch.device) -> str:
    """Return a GPU's PCI address as sysfs names it, '-' if it is unknown."""
    if device.type != "cuda":
        return "-"
    with contextlib.suppress(OSError, AttributeError):
        cuda = ctypes.CDLL("libcuda.so.1")  # torch has initialised it
        number, text = ctypes.c_int(), ctypes.create_string_buffer(_PCI_LENGTH)
        if not cuda.cuDeviceGet(ctypes.byref(number), device.index or 0) and not cuda.cuDeviceGetPCIBusId(
            text, _PCI_LENGTH, number
        ):
            return text.value.decode().lower()
    return "-"
