"""The confidence interval of a median."""

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.collectives.spread import at_least, interval, uncertainty


@pytest.mark.parametrize(
    ("number", "places"),
    # Tabulated for 95 % in Conover, Practical Nonparametric Statistics, and easily counted: 2/64 for 6.
    [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (12, (3, 10)), (15, (4, 12)), (20, (6, 15)), (25, (8, 18))],
)
def test_the_median_lies_between_the_tabulated_places(number, places):
    shuffled = random.Random(1).sample(range(1, number + 1), number)
    assert interval(shuffled) == places


@pytest.mark.parametrize("number", range(6))
def test_fewer_than_six_samples_do_not_suffice(number):
    assert interval([1.0] * number) is None
    assert uncertainty([1.0] * number) is None


@given(st.lists(st.floats(1e-9, 1e9), min_size=6, max_size=60))
def test_the_median_of_the_samples_is_inside(samples):
    low, high = interval(samples)
    assert min(samples) <= low <= median(samples) <= high <= max(samples)
    assert uncertainty(samples) >= 0


def test_the_true_median_is_inside_in_95_of_100_cases():
    dice = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = interval([dice.expovariate(1.0) for _ in range(9)])
        hits += low <= 0.6931 <= high
    assert hits >= 0.95 * 2000


def test_uncertainty_is_a_share_of_the_median():
    assert uncertainty([98, 99, 100, 100, 101, 103]) == pytest.approx(0.03)
    assert uncertainty([5.0] * 7) == 0
    assert uncertainty([0.0] * 7) is None


def test_slow_bursts_do_not_lower_a_median():
    jittery = [90, 95, 100, 110, 1500, 2000]
    assert uncertainty(jittery) > 10
    assert at_least(jittery) == pytest.approx(90 / 105)
    assert at_least(jittery[:5]) is None
