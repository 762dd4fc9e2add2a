"""A rank's own work without the others: matrix products, checked, and memory copies.

A rank that comes late to a collective shows the shortest time in it; only its own work shows that it is slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

# Before torch: this import silences torch's warnings at import.
import distcheck.collectives.software  # noqa: F401

# isort: split
import torch

from distcheck.collectives.plan import Computed
from distcheck.collectives.timing import idle
from distcheck.facts.base import SHORTEST_SECONDS
from distcheck.probe.waiting import throttled, waited_for_cpu


class _Load(NamedTuple):
    """The amount of work; the same on every rank with such a device."""

    order: int
    """Order of the matrices of 0 and 1: no element of a product is larger, so float16 holds it exactly."""
    dtype: torch.dtype
    products: int
    bytes: int
    copies: int


# On a CPU long enough for cgroup throttling to show, which has a period of 100 ms.
_CPU = _Load(256, torch.float32, 60, 4 << 20, 30)
_GPU = _Load(2048, torch.float16, 300, 256 << 20, 30)


def compute(device: torch.device) -> Computed:
    """Multiply and copy; return the seconds of each and the number of wrong products."""
    load = _GPU if device.type == "cuda" else _CPU
    left, right = (_zeros_and_ones(load, device, step) for step in (3, 5))
    product = left @ right
    expected = left.double() @ right.double().sum(1)
    matmul = _seconds(lambda: torch.matmul(left, right, out=product), load.products, device)
    wrong = int((product.double().sum(1) != expected).sum().item())
    source = torch.zeros(load.bytes, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    copy = _seconds(lambda: target.copy_(source), load.copies, device)
    return Computed(max(matmul, SHORTEST_SECONDS), max(copy, SHORTEST_SECONDS), wrong)


def _zeros_and_ones(load: _Load, device: torch.device, step: int) -> torch.Tensor:
    places = torch.arange(load.order * load.order, device=device)
    return (places * step % 7 % 2).reshape(load.order, load.order).to(load.dtype)


def _seconds(call: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the seconds of work after two warm-up calls."""
    for _ in range(2):
        call()
    return own_seconds(call, times, device)[0]


def own_seconds(
    call: Callable[[], object], times: int, device: torch.device, most_seconds: float = math.inf
) -> tuple[float, int]:
    """Return the seconds and the number of calls: this many, or as many as begin within `most_seconds`, at least one.

    Waiting for a CPU that others use does not count; throttling does. A GPU's calls return before it has done them, so
    there `most_seconds` limits nothing.
    """
    idle(device)
    start = time.perf_counter()
    worked, waited, held, done = time.thread_time(), waited_for_cpu(), throttled(), 0
    while not done or (done < times and time.perf_counter() - start < most_seconds):
        call()
        done += 1
    idle(device)
    if device.type != "cpu":  # the GPU works on while its process waits
        return time.perf_counter() - start, done
    # Read before the clock: a wait after its last reading would make the work look quicker than it was.
    elsewhere = max(0.0, (waited_for_cpu() - waited) - (throttled() - held))
    worked = time.thread_time() - worked
    return max(time.perf_counter() - start - elsewhere, worked), done
