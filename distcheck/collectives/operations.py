"""The operations: their buffers, their call, and check data with an exactly known result.

An operation works in place if torch allows it, as training does and as nccl-tests' in-place columns measure. To add
one, add a function here, its bus factor in `plan`, and its test.

The exact check uses integers that the data type holds exactly at every partial sum, in any order in which a ring, a
tree or a switch adds them. float32 holds them up to 2**24, which is enough for 65,536 ranks that all add at every
position. float16 (up to 2**11) and bfloat16 (up to 2**8) hold far fewer: there the ranks take turns, position by
position, and the others add 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

# Before torch: this import silences torch's warnings at import.
import distcheck.collectives.software  # noqa: F401

# isort: split
import torch
import torch.distributed as dist

from distcheck.collectives.plan import blocks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

CHECK_ELEMENTS = 262_147
"""A prime just above 2**18: no channel count divides it, and it is quick on CPUs."""


class Exact(NamedTuple):
    """The integers of a data type that the exact check uses."""

    dtype: torch.dtype
    limit: int
    """The type holds every integer up to this one."""
    weights: int
    """A rank has a weight of 1 to this number, a position of 1 to `positions`: a lost, doubled or displaced part
    changes the sum."""
    positions: int
    apart: int
    """A prime below the limit: copied data differs between positions up to this distance."""
    poison: float
    """A value that no result has."""

    def turns(self, ranks: int) -> int:
        """Return over how many positions the ranks take turns, so that no sum exceeds the limit."""
        return -(-ranks // (self.limit // (self.weights * self.positions)))


EXACT = {
    "float32": Exact(torch.float32, 1 << 24, 15, 17, 65521, torch.nan),
    "bfloat16": Exact(torch.bfloat16, 1 << 8, 3, 5, 251, torch.nan),
    "float16": Exact(torch.float16, 1 << 11, 5, 7, 2039, torch.nan),
    "int32": Exact(torch.int32, 1 << 24, 15, 17, 65521, -1),
}
"""By the name that ``--dtype`` takes."""


class Group(NamedTuple):
    """The group of ranks and the options of an operation."""

    rank: int
    """This rank's number in the group."""
    ranks: int
    device: torch.device
    exact: Exact = EXACT["float32"]
    stride: int = 1
    """The distance in ranks to the one that send_recv sends to."""
    handle: ProcessGroup | None = None
    """None for the whole world."""
    members: range | None = None
    """The group's ranks in the world; None for all."""

    def in_world(self, rank: int) -> int:
        """Return the number in the world of the group's rank."""
        return self.members[rank] if self.members else rank

    @property
    def origin(self) -> int:
        """The group's first rank: it shifts the data of the exact check, so that data of another group is wrong."""
        return self.in_world(0)


class Exercise(NamedTuple):
    """One operation of one rank, bound to its buffers, which hold zeros.

    Zeros stay zeros when timed bursts sum them in place repeatedly; other numbers would soon be infinite.
    """

    call: Callable[[], object]
    load: Callable[[], object]
    """Loads the data of the exact check and poisons what the call must overwrite."""
    received: torch.Tensor
    expected: Callable[[], torch.Tensor]


Operation = Callable[[Group, int], Exercise]
"""Takes the group and the number of elements in a rank's block."""


def all_reduce(group: Group, count: int) -> Exercise:
    """Sum over all ranks, on every rank, in place."""
    data = _zeros(count, group)
    return Exercise(
        call=lambda: dist.all_reduce(data, group=group.handle),
        load=lambda: data.copy_(contribution(group, count)),
        received=data,
        expected=lambda: total(group, count),
    )


def broadcast(group: Group, count: int) -> Exercise:
    """Copy rank 0's buffer to every rank."""
    data = _zeros(count, group)

    def load() -> None:
        if group.rank == 0:
            data.copy_(pattern(0, count, group))
        else:
            _poison(data, group)

    return Exercise(
        call=lambda: dist.broadcast(data, src=group.in_world(0), group=group.handle),
        load=load,
        received=data,
        expected=lambda: pattern(0, count, group),
    )


def all_gather(group: Group, count: int) -> Exercise:
    """Gather a block from every rank on every rank; a rank's own block is in place already."""
    rank, ranks = group.rank, group.ranks
    data = _zeros(count * ranks, group)
    own = data[rank * count : (rank + 1) * count]

    def load() -> None:
        _poison(data, group)
        own.copy_(pattern(rank * count, count, group))

    return Exercise(
        call=lambda: _gather(data, own, group=group.handle),
        load=load,
        received=data,
        expected=lambda: pattern(0, count * ranks, group),
    )


def reduce_scatter(group: Group, count: int) -> Exercise:
    """Sum over all ranks and leave each rank its block of the sum, in place."""
    rank, ranks = group.rank, group.ranks
    data = _zeros(count * ranks, group)
    own = data[rank * count : (rank + 1) * count]
    return Exercise(
        call=lambda: _scatter(own, data, group=group.handle),
        load=lambda: data.copy_(contribution(group, count * ranks)),
        received=own,
        expected=lambda: total(group, count * ranks)[rank * count : (rank + 1) * count],
    )


def all_to_all(group: Group, count: int) -> Exercise:
    """Send every rank its own block; torch has no in-place form, so there are two buffers."""
    rank, ranks = group.rank, group.ranks
    sent, received = _zeros(count * ranks, group), _zeros(count * ranks, group)

    def load() -> None:
        sent.copy_(pattern(rank * count * ranks, count * ranks, group))
        _poison(received, group)

    return Exercise(
        call=lambda: dist.all_to_all_single(received, sent, group=group.handle),
        load=load,
        received=received,
        expected=lambda: torch.cat([pattern((source * ranks + rank) * count, count, group) for source in range(ranks)]),
    )


def send_recv(group: Group, count: int) -> Exercise:
    """Send to the rank one stride ahead in the ring and receive from the one behind, at once."""
    rank, ranks = group.rank, group.ranks
    if ranks < 2:
        raise ValueError("send_recv needs at least 2 ranks")
    after, before = (rank + group.stride) % ranks, (rank - group.stride) % ranks
    target, source = group.in_world(after), group.in_world(before)
    sent, received = _zeros(count, group), _zeros(count, group)

    def call() -> None:
        pair = [
            dist.P2POp(dist.isend, sent, target, group.handle),
            dist.P2POp(dist.irecv, received, source, group.handle),
        ]
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
"""Torch 2.13 renamed both and warns about the old names."""

OPERATIONS: dict[str, Operation] = {
    op.__name__: op for op in (all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send_recv)
}


def prepare(op: str, group: Group, elements: int) -> Exercise:
    """Return an operation with buffers for `elements` in total, counted as in nccl-tests."""
    return OPERATIONS[op](group, elements // blocks(op, group.ranks))


def check_elements(op: str, ranks: int) -> int:
    """Return the number of elements in the exact check of an operation."""
    unit = blocks(op, ranks)
    return max(CHECK_ELEMENTS // unit, 1) * unit


def wrong_elements(exercise: Exercise) -> int:
    """Run the exact check and return the number of wrong elements that this rank received."""
    exercise.load()
    exercise.call()
    return int((exercise.received != exercise.expected()).sum().item())


def contribution(group: Group, count: int) -> torch.Tensor:
    """Return a rank's addends at positions 0 to `count`: 0 if it is not its turn."""
    exact, turns = group.exact, group.exact.turns(group.ranks)
    places = _places(0, count, group)
    values = (1 + (group.rank + group.origin) % exact.weights) * (1 + places % exact.positions)
    return torch.where(places % turns == group.rank % turns, values, 0).to(exact.dtype)


def total(group: Group, count: int) -> torch.Tensor:
    """Return the sum of all ranks' contributions."""
    exact, turns = group.exact, group.exact.turns(group.ranks)
    ranks = torch.arange(group.ranks, dtype=torch.int64, device=group.device)
    weights = torch.zeros(turns, dtype=torch.int64, device=group.device)
    weights.index_add_(0, ranks % turns, 1 + (ranks + group.origin) % exact.weights)
    places = _places(0, count, group)
    return (weights[places % turns] * (1 + places % exact.positions)).to(exact.dtype)


def pattern(first: int, count: int, group: Group) -> torch.Tensor:
    """Return numbers that differ between positions from `first` on, up to `Exact.apart` apart."""
    return (1 + _places(first + group.origin, count, group) % group.exact.apart).to(group.exact.dtype)


def _places(first: int, count: int, group: Group) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device=group.device)


def _poison(data: torch.Tensor, group: Group) -> None:
    data.fill_(group.exact.poison)


def _zeros(count: int, group: Group) -> torch.Tensor:
    """Return written zeros: unwritten pages all map to one page, which stays in the cache."""
    return torch.empty(count, dtype=group.exact.dtype, device=group.device).fill_(0)
