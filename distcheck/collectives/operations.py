"""The operations: for each its buffers, one call of it, and data whose exact result every rank knows.

An operation works in place where torch lets it, which is what training does and what nccl-tests' in-place
columns measure. Adding one is adding a function here, its bus factor in `plan`, and its test.

The exact check uses whole numbers that the data type holds exactly at every partial sum, in whatever order a
ring, a tree or a switch adds them. float32 holds them up to 2**24, which is enough for 65,536 ranks that all
add something at every position. float16 (up to 2**11) and bfloat16 (up to 2**8) hold far fewer: there the
ranks take turns, position by position, and the others add 0.
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


class Exact(NamedTuple):
    """Which whole numbers of a data type the exact check uses."""

    dtype: torch.dtype
    limit: int
    """Up to here it holds every whole number."""
    weights: int
    """A rank weighs 1 to this many, and a position 1 to `positions`: a part that is lost, doubled or displaced changes
    the sum."""
    positions: int
    apart: int
    """A prime below the limit: copied data tells positions apart up to this distance."""
    poison: float
    """What no result is."""

    def turns(self, ranks: int) -> int:
        """Return among how many positions the ranks take turns, so that no sum passes the limit."""
        return -(-ranks // (self.limit // (self.weights * self.positions)))


EXACT = {
    "float32": Exact(torch.float32, 1 << 24, 15, 17, 65521, torch.nan),
    "bfloat16": Exact(torch.bfloat16, 1 << 8, 3, 5, 251, torch.nan),
    "float16": Exact(torch.float16, 1 << 11, 5, 7, 2039, torch.nan),
    "int32": Exact(torch.int32, 1 << 24, 15, 17, 65521, -1),
}
"""By the name that ``--dtype`` takes."""


class Group(NamedTuple):
    """Who takes part, and with what."""

    rank: int
    ranks: int
    device: torch.device
    exact: Exact = EXACT["float32"]
    rotate: bool = False
    """Whether the root of a broadcast is another rank at every call."""
    stride: int = 1
    """How many ranks further on the one is to which send_recv sends."""


class Exercise(NamedTuple):
    """One operation of one rank, bound to its buffers, which hold zeros.

    Zeros stay zeros however often a timed burst sums them in place; other numbers would soon be infinite.
    """

    call: Callable[[], object]
    load: Callable[[], object]
    """Puts the data of the exact check in place and poisons what the call must overwrite."""
    received: torch.Tensor
    expected: Callable[[], torch.Tensor]
    checks: int = 1
    """How often `load`, `call` and the comparison make the check whole."""


Operation = Callable[[Group, int], Exercise]
"""Takes the group and the number of elements in a rank's block."""


def all_reduce(group: Group, count: int) -> Exercise:
    """Sum over all ranks, on every rank, in place."""
    data = _zeros(count, group)
    return Exercise(
        call=lambda: dist.all_reduce(data),
        load=lambda: data.copy_(contribution(group, count)),
        received=data,
        expected=lambda: total(group, count),
    )


def broadcast(group: Group, count: int) -> Exercise:
    """Copy the root's buffer to every rank: rank 0's, or each rank's in turn."""
    data = _zeros(count, group)
    roots = group.ranks if group.rotate else 1
    root = 0  # of the next call

    def call() -> None:
        nonlocal root
        dist.broadcast(data, src=root)
        root = (root + 1) % roots

    def load() -> None:
        if group.rank == root:
            data.copy_(pattern(root, count, group))
        else:
            _poison(data, group)

    return Exercise(
        call=call,
        load=load,
        received=data,
        expected=lambda: pattern((root - 1) % roots, count, group),
        checks=roots,
    )


def all_gather(group: Group, count: int) -> Exercise:
    """Collect a block from every rank on every rank; the own block is in its place already."""
    rank, ranks = group.rank, group.ranks
    data = _zeros(count * ranks, group)
    own = data[rank * count : (rank + 1) * count]

    def load() -> None:
        _poison(data, group)
        own.copy_(pattern(rank * count, count, group))

    return Exercise(
        call=lambda: _gather(data, own),
        load=load,
        received=data,
        expected=lambda: pattern(0, count * ranks, group),
    )


def reduce_scatter(group: Group, count: int) -> Exercise:
    """Sum over all ranks and leave each rank its block of the sum, in the place where that block was."""
    rank, ranks = group.rank, group.ranks
    data = _zeros(count * ranks, group)
    own = data[rank * count : (rank + 1) * count]
    return Exercise(
        call=lambda: _scatter(own, data),
        load=lambda: data.copy_(contribution(group, count * ranks)),
        received=own,
        expected=lambda: total(group, count * ranks)[rank * count : (rank + 1) * count],
    )


def all_to_all(group: Group, count: int) -> Exercise:
    """Give every rank a block of its own; torch has no in-place form, so there are two buffers."""
    rank, ranks = group.rank, group.ranks
    sent, received = _zeros(count * ranks, group), _zeros(count * ranks, group)

    def load() -> None:
        sent.copy_(pattern(rank * count * ranks, count * ranks, group))
        _poison(received, group)

    return Exercise(
        call=lambda: dist.all_to_all_single(received, sent),
        load=load,
        received=received,
        expected=lambda: torch.cat([pattern((source * ranks + rank) * count, count, group) for source in range(ranks)]),
    )


def send_recv(group: Group, count: int) -> Exercise:
    """Send to the rank one stride further on and receive from the one before, around the ring, both at once."""
    rank, ranks = group.rank, group.ranks
    if ranks < 2:
        raise ValueError("send_recv needs at least 2 ranks")
    after, before = (rank + group.stride) % ranks, (rank - group.stride) % ranks
    sent, received = _zeros(count, group), _zeros(count, group)

    def call() -> None:
        pair = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    def load() -> None:
        sent.copy_(pattern(rank * count, count, group))
        _poison(received, group)

    return Exercise(
        call=call,
        load=load,
        received=received,
        expected=lambda: pattern(before * count, count, group),
    )


_gather: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Callable[..., object] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Torch 2.13 renamed both and warns of the old names."""

OPERATIONS: dict[str, Operation] = {
    op.__name__: op for op in (all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send_recv)
}


def prepare(op: str, group: Group, elements: int) -> Exercise:
    """Make the buffers of an operation that moves `elements` in total, counted as nccl-tests counts them."""
    return OPERATIONS[op](group, elements // blocks(op, group.ranks))


def check_elements(op: str, ranks: int) -> int:
    """Return how many elements the exact check of an operation moves."""
    unit = blocks(op, ranks)
    return max(CHECK_ELEMENTS // unit, 1) * unit


def wrong_elements(exercise: Exercise) -> int:
    """Run the exact check and count the elements that this rank received wrongly, over all its calls."""
    wrong = 0
    for _ in range(exercise.checks):
        exercise.load()
        exercise.call()
        wrong += int((exercise.received != exercise.expected()).sum().item())
    return wrong


def contribution(group: Group, count: int) -> torch.Tensor:
    """Return what a rank adds at positions 0 to `count`: 0 where it is not its turn."""
    exact, turns = group.exact, group.exact.turns(group.ranks)
    places = _places(0, count, group)
    values = (1 + group.rank % exact.weights) * (1 + places % exact.positions)
    return torch.where(places % turns == group.rank % turns, values, 0).to(exact.dtype)


def total(group: Group, count: int) -> torch.Tensor:
    """Return the sum of all ranks' contributions."""
    exact, turns = group.exact, group.exact.turns(group.ranks)
    ranks = torch.arange(group.ranks, dtype=torch.int64, device=group.device)
    weights = torch.zeros(turns, dtype=torch.int64, device=group.device)
    weights.index_add_(0, ranks % turns, 1 + ranks % exact.weights)
    places = _places(0, count, group)
    return (weights[places % turns] * (1 + places % exact.positions)).to(exact.dtype)


def pattern(first: int, count: int, group: Group) -> torch.Tensor:
    """Return numbers that tell the positions from `first` on apart, up to a distance of `Exact.apart`."""
    return (1 + _places(first, count, group) % group.exact.apart).to(group.exact.dtype)


def _places(first: int, count: int, group: Group) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device=group.device)


def _poison(data: torch.Tensor, group: Group) -> None:
    data.fill_(group.exact.poison)


def _zeros(count: int, group: Group) -> torch.Tensor:
    """Return zeros that were written: pages that nobody wrote are all one page, which stays in the cache."""
    return torch.empty(count, dtype=group.exact.dtype, device=group.device).fill_(0)
