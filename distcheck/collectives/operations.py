"""The operations: for each its buffers, one call of it, and data whose exact result every rank knows.

An operation works in place where torch lets it, which is what training does and what nccl-tests' in-place
columns measure. Adding one is adding a function here, its bus factor in `plan`, and its test.

The exact check uses whole numbers that float32 holds exactly at every partial sum, in whatever order a ring,
a tree or a switch adds them: a rank contributes at most 255 at any position, and 65,536 ranks times 255 is
below 2**24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Before torch: this import silences what torch says of itself when it is imported.
import distcheck.collectives.software  # noqa: F401

# isort: split
import torch
import torch.distributed as dist

from distcheck.collectives.plan import blocks

CHECK_ELEMENTS = 262_147
"""A prime just above 2**18: no number of channels divides it, and CPU ranks are quick with it."""

_WEIGHTS = 15
_POSITIONS = 17
"""A rank weighs 1 to 15 and a position 1 to 17: a part that is lost, doubled or displaced changes the sum."""


class Exercise(NamedTuple):
    """One operation of one rank, bound to its buffers, which hold zeros.

    Zeros stay zeros however often a timed burst sums them in place; other numbers would soon be infinite.
    """

    call: Callable[[], object]
    load: Callable[[], object]
    """Puts the data of the exact check in place and poisons with NaN what the call must overwrite."""
    received: torch.Tensor
    expected: Callable[[], torch.Tensor]


Operation = Callable[[int, int, int, torch.device], Exercise]
"""Takes rank, number of ranks, elements per rank's block and device."""


def all_reduce(rank: int, ranks: int, count: int, device: torch.device) -> Exercise:
    """Sum over all ranks, on every rank, in place."""
    data = _zeros(count, device)
    return Exercise(
        call=lambda: dist.all_reduce(data),
        load=lambda: data.copy_(contribution(rank, count, device)),
        received=data,
        expected=lambda: total(ranks, count, device),
    )


def broadcast(rank: int, ranks: int, count: int, device: torch.device) -> Exercise:
    """Copy rank 0's buffer to every rank."""
    del ranks
    data = _zeros(count, device)
    return Exercise(
        call=lambda: dist.broadcast(data, src=0),
        load=lambda: data.copy_(pattern(0, count, device)) if rank == 0 else data.fill_(torch.nan),
        received=data,
        expected=lambda: pattern(0, count, device),
    )


def all_gather(rank: int, ranks: int, count: int, device: torch.device) -> Exercise:
    """Collect a block from every rank on every rank; the own block is in its place already."""
    data = _zeros(count * ranks, device)
    own = data[rank * count : (rank + 1) * count]

    def load() -> None:
        data.fill_(torch.nan)
        own.copy_(pattern(rank * count, count, device))

    return Exercise(
        call=lambda: _gather(data, own),
        load=load,
        received=data,
        expected=lambda: pattern(0, count * ranks, device),
    )


def reduce_scatter(rank: int, ranks: int, count: int, device: torch.device) -> Exercise:
    """Sum over all ranks and leave each rank its block of the sum, in the place where that block was."""
    data = _zeros(count * ranks, device)
    own = data[rank * count : (rank + 1) * count]
    return Exercise(
        call=lambda: _scatter(own, data),
        load=lambda: data.copy_(contribution(rank, count * ranks, device)),
        received=own,
        expected=lambda: total(ranks, count * ranks, device)[rank * count : (rank + 1) * count],
    )


def all_to_all(rank: int, ranks: int, count: int, device: torch.device) -> Exercise:
    """Give every rank a block of its own; torch has no in-place form, so there are two buffers."""
    sent, received = _zeros(count * ranks, device), _zeros(count * ranks, device)

    def load() -> None:
        sent.copy_(pattern(rank * count * ranks, count * ranks, device))
        received.fill_(torch.nan)

    return Exercise(
        call=lambda: dist.all_to_all_single(received, sent),
        load=load,
        received=received,
        expected=lambda: torch.cat(
            [pattern((source * ranks + rank) * count, count, device) for source in range(ranks)]
        ),
    )


def send_recv(rank: int, ranks: int, count: int, device: torch.device) -> Exercise:
    """Send to the next rank and receive from the one before, around the ring, both at once."""
    if ranks < 2:
        raise ValueError("send_recv needs at least 2 ranks")
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    sent, received = _zeros(count, device), _zeros(count, device)

    def call() -> None:
        pair = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    def load() -> None:
        sent.copy_(pattern(rank * count, count, device))
        received.fill_(torch.nan)

    return Exercise(
        call=call,
        load=load,
        received=received,
        expected=lambda: pattern(before * count, count, device),
    )


_gather: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Callable[..., object] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Torch 2.13 renamed both and warns of the old names."""

OPERATIONS: dict[str, Operation] = {
    op.__name__: op for op in (all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send_recv)
}


def prepare(op: str, rank: int, ranks: int, elements: int, device: torch.device) -> Exercise:
    """Make the buffers of an operation that moves `elements` in total, counted as nccl-tests counts them."""
    return OPERATIONS[op](rank, ranks, elements // blocks(op, ranks), device)


def check_elements(op: str, ranks: int) -> int:
    """Return how many elements the exact check of an operation moves."""
    unit = blocks(op, ranks)
    return max(CHECK_ELEMENTS // unit, 1) * unit


def wrong_elements(exercise: Exercise) -> int:
    """Run the exact check once and count the elements that this rank received wrongly."""
    exercise.load()
    exercise.call()
    return int((exercise.received != exercise.expected()).sum().item())


def contribution(rank: int, count: int, device: torch.device) -> torch.Tensor:
    """Return what a rank adds at positions 0 to `count`: at most 255, never 0."""
    return ((1 + rank % _WEIGHTS) * (1 + _places(0, count, device) % _POSITIONS)).to(torch.float32)


def total(ranks: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the sum of all ranks' contributions."""
    whole, rest = divmod(ranks, _WEIGHTS)
    weight = whole * _WEIGHTS * (_WEIGHTS + 1) // 2 + rest * (rest + 1) // 2
    return (weight * (1 + _places(0, count, device) % _POSITIONS)).to(torch.float32)


def pattern(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return numbers that tell the positions from `first` on apart, up to a distance of 65,521 (a prime)."""
    return (1 + _places(first, count, device) % 65521).to(torch.float32)


def _places(first: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device=device)


def _zeros(count: int, device: torch.device) -> torch.Tensor:
    """Return zeros that were written: pages that nobody wrote are all one page, which stays in the cache."""
    return torch.empty(count, dtype=torch.float32, device=device).fill_(0)
