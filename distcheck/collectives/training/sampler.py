"""The data set and its shards: what each rank's sampler returned, compared with what it should return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from distcheck.collectives.training.compare import hashed
from distcheck.facts.training import Shard

if TYPE_CHECKING:
    from distcheck.collectives.training.model import TrainingRank

BATCH = 2
_FEWEST, _MOST, _TOGETHER = 4, 16, 1 << 14
"""Indices per rank and epoch: as many as all ranks together can look at quickly, at least two batches."""
_MASK = (1 << 64) - 1


def sampler_of(ranks: int, rank: int | None = None) -> DistributedSampler[int]:
    """Return the sampler of a rank; without a rank, as scripts do, it asks the process group."""
    if rank is None:
        return DistributedSampler(_data(ranks))  # type: ignore[arg-type]  # anything with a length
    return DistributedSampler(_data(ranks), num_replicas=ranks, rank=rank)  # type: ignore[arg-type]


def loader_of(ranks: int, sampler: DistributedSampler[int]) -> DataLoader[int]:
    """Return the batches of a sampler's indices."""
    return DataLoader(_data(ranks), batch_size=BATCH, sampler=sampler)  # type: ignore[arg-type]


def order_of(ranks: int, epoch: int) -> list[int]:
    """Return the order of the whole data set with its padding; every rank takes each `ranks`-th from its own on."""
    whole: DistributedSampler[int] = DistributedSampler(_data(ranks), num_replicas=1, rank=0)  # type: ignore[arg-type]
    whole.set_epoch(epoch)
    order = list(whole)
    return order + order[: -len(order) % ranks]


def first_batches(ranks: int, order: Sequence[int]) -> list[int]:
    """Return the indices of the first batches of all ranks."""
    return [order[number * ranks + rank] for rank in range(ranks) for number in range(BATCH)]


def shard_of(me: TrainingRank, sampler: DistributedSampler[int], order: Sequence[int], epoch: int) -> Shard:
    """Return a rank's part of the data set in an epoch, compared with its part of the order."""
    sampler.set_epoch(epoch)
    taken, due = list(sampler), order[me.rank :: me.ranks]
    return Shard(
        epoch=epoch,
        taken=len(taken),
        due=len(due),
        foreign=(Counter(taken) - Counter(due)).total(),
        mark=_mark(taken),
        order=hashed(",".join(map(str, order)).encode()),
        whole=_mark(order) if me.rank == 0 else "",
    )


def _data(ranks: int) -> range:
    """Return the data set; it has one index less than the ranks draw, so that one of them is padding."""
    return range(max(_FEWEST, min(_MOST, _TOGETHER // ranks)) * ranks - 1)


def _mark(indices: Sequence[int]) -> str:
    """Return the sum of a 64-bit hash of each index: two sets of indices have the same only by chance."""
    total = 0
    for index in indices:
        mixed = (index + 1) * 0x9E3779B97F4A7C15 & _MASK  # splitmix64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        total += (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return f"{total & _MASK:x}"
