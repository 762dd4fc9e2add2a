"""Which nodes are slow, by the rates of their paths."""

from __future__ import annotations

import random

import pytest

from distcheck.rules.network.rates import _highest_median, _median_without


@pytest.mark.parametrize("seed", range(20))
def test_the_median_without_a_nodes_own_rates_never_exceeds_its_bound(seed):
    chance = random.Random(seed)
    rates = sorted(chance.choice((chance.random(), 0.5)) for _ in range(chance.randint(1, 40)))
    own = chance.sample(rates, chance.randint(0, len(rates)))
    assert _median_without(rates, own) <= _highest_median(rates, len(own))


def test_the_bound_is_reached_where_all_own_rates_are_the_lowest():
    assert (
        _median_without([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0]) == _highest_median([1.0, 2.0, 3.0, 4.0, 5.0], 2) == 4.0
    )
