"""The data set of the training steps, for more ranks than a test can start."""

import importlib
import time

import pytest

RANKS = 65_536


@pytest.fixture(scope="module")
def sampler():
    """The module, imported late: the import takes as long as thousands of tests do to be collected."""
    return importlib.import_module("distcheck.collectives.training.sampler")


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "each"), [(1, 15), (2, 16), (1024, 16), (1025, 15), (RANKS, 4)])
def test_every_rank_draws_its_part_of_one_order(sampler, ranks, each):
    began = time.process_time()
    order = sampler.order_of(ranks, 1)
    assert len(order) == each * ranks
    assert set(order) == set(range(len(set(order)))), "every index is drawn"
    assert len(order) - len(set(order)) == (ranks > 1), "one is padding"
    last = sampler.shard_of(_Rank(ranks - 1, ranks), sampler.sampler_of(ranks, ranks - 1), order, 1)
    assert (last.taken, last.due, last.foreign) == (each, each, 0)
    assert len(set(sampler.first_batches(ranks, order))) >= 2 * ranks - 1
    assert time.process_time() - began < 10


class _Rank:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
