"""The data set of the training steps, for more ranks than a test can start."""

import time

import pytest

from distcheck.collectives.training.sampler import first_batches, order_of, sampler_of, shard_of

RANKS = 65_536


@pytest.mark.parametrize(("ranks", "each"), [(1, 15), (2, 16), (1024, 16), (1025, 15), (RANKS, 4)])
def test_every_rank_draws_its_part_of_one_order(ranks, each):
    began = time.process_time()
    order = order_of(ranks, 1)
    assert len(order) == each * ranks
    assert set(order) == set(range(len(set(order)))), "every index is drawn"
    assert len(order) - len(set(order)) == (ranks > 1), "one is padding"
    last = shard_of(_Rank(ranks - 1, ranks), sampler_of(ranks, ranks - 1), order, 1)
    assert (last.taken, last.due, last.foreign) == (each, each, 0)
    assert len(set(first_batches(ranks, order))) >= 2 * ranks - 1
    assert time.process_time() - began < 10


class _Rank:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
