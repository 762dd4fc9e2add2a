"""Bursts: how long one call takes when many are issued back to back, with nothing between them.

A burst is timed as nccl-tests times one: a barrier, then all calls, then one wait for the last. A barrier or
a wait between two calls would be measured with them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

FEWEST, MOST = 3, 1000


def meet(device: torch.device) -> None:
    """Wait until every rank is here and its device has nothing left to do."""
    if device.type == "cuda":
        dist.barrier(device_ids=[device.index])
        torch.cuda.synchronize(device)
    else:
        dist.barrier()


def seconds_per_call(call: Callable[[], object], iterations: int, device: torch.device) -> float:
    """Time a burst on this rank: between two CUDA events on a GPU, by the host's clock on a CPU.

    The host returns from a call before the GPU has begun it, so its clock would time the launches. No event
    is put between two calls: only their mean is wanted, and every event costs a small call much of its time.
    """
    if device.type == "cuda":
        first, last = _event(), _event()
        first.record()
        for _ in range(iterations):
            call()
        last.record()
        torch.cuda.synchronize(device)
        return float(first.elapsed_time(last)) / 1e3 / iterations
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    return (time.perf_counter() - start) / iterations


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's own omission


def first_call(call: Callable[[], object], device: torch.device) -> float:
    """Return how long the very first call takes, in which connections are made and memory is taken."""
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def warm_up(call: Callable[[], object], device: torch.device) -> float:
    """Call three times and return how long the quicker of the last two took, all ranks included.

    Every size is warmed: NCCL connects each algorithm when a size first wants it, and fresh memory has no
    pages yet. The barrier after a timed call makes a root that runs ahead of its receivers wait for them.
    """
    call()
    meet(device)
    took = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        meet(device)
        took.append(time.perf_counter() - start)
    return min(took)


def iterations_for(seconds: float, burst_seconds: float) -> int:
    """Return how many calls of so many seconds fill a burst, within `FEWEST` and `MOST`."""
    return min(max(round(burst_seconds / max(seconds, 1e-9)), FEWEST), MOST)
