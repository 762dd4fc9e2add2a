"""Bursts: the time per call when many calls are issued back to back.

A burst is timed as in nccl-tests: a barrier, then all calls, then one wait for the last. A barrier or a wait between
two calls would be measured with them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

FEWEST, MOST = 3, 1000


def meet(device: torch.device, group: ProcessGroup | None = None) -> None:
    """Wait until every rank, or every one of a group, is here and its device is idle."""
    if device.type == "cuda":
        dist.barrier(group, device_ids=[device.index])
    else:
        dist.barrier(group)
    idle(device)


def idle(device: torch.device) -> None:
    """Wait until a device has done what it was given; a CPU always has."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def seconds_per_call(call: Callable[[], object], iterations: int, device: torch.device) -> float:
    """Return a burst's time per call: by CUDA events on a GPU, by the clock elsewhere.

    The host returns from a call before the GPU has started it, so its clock would time the launches. There is no event
    between two calls, because only their mean is needed and an event slows small calls considerably.
    """
    if device.type == "cuda":
        first, last = _event(), _event()
        first.record()
        for _ in range(iterations):
            call()
        last.record()
        idle(device)
        return float(first.elapsed_time(last)) / 1e3 / iterations
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    idle(device)
    return (time.perf_counter() - start) / iterations


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's own omission


def first_call(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the very first call, which makes connections and allocates memory."""
    start = time.perf_counter()
    call()
    idle(device)
    return time.perf_counter() - start


def warm_up(call: Callable[[], object], gather: Callable[[], None], calls: int = 3) -> float:
    """Make some calls; return the seconds of the quickest but the first, over all ranks that `gather` waits for.

    Every size is warmed up: NCCL connects an algorithm when a size first uses it, and new memory has no pages yet. The
    barrier after a call makes a root that runs ahead wait for its receivers.
    """
    took = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        gather()
        took.append(time.perf_counter() - start)
    return min(took[1:] or took)


def iterations_for(seconds: float, burst_seconds: float) -> int:
    """Return how many calls of this duration fill a burst, within `FEWEST` and `MOST`."""
    return min(max(round(burst_seconds / max(seconds, 1e-9)), FEWEST), MOST)
