import math
from random import Random

import pytest
from benchmarks.ratio import (
    Estimate,
    Row,
    alone,
    at_least,
    at_most,
    beyond,
    compared,
    counted,
    estimate,
    in_turn,
    judged,
    of_growth,
    quantile,
)

EQUAL = (0.97, 1.03)


def measured(random, ratio, noise, goal, times=12, spikes=0.0):
    """Measure two sides with a true ratio; each run has its own noise, and some take three times as long."""

    def side(seconds):
        return lambda: seconds * random.gauss(1, noise) * (3 if random.random() < spikes else 1)

    return compared("a", in_turn(side(ratio), side(1.0), times), goal)


@pytest.mark.parametrize(
    ("low", "high", "goal", "met"),
    [
        (0.2, 0.3, at_most(0.3), "yes"),
        (0.2, 0.31, at_most(0.3), "undecided"),
        (0.31, 0.4, at_most(0.3), "NO"),
        (1.0, 1.2, at_least(1), "yes"),
        (0.9, 1.2, at_least(1), "undecided"),
        (0.8, 0.99, at_least(1), "NO"),
        (0.98, 1.02, EQUAL, "yes"),
        (0.96, 1.02, EQUAL, "undecided"),
        (0.9, 1.1, EQUAL, "undecided"),
        (1.04, 1.05, EQUAL, "NO"),
        (0.9, 0.96, EQUAL, "NO"),
        (-math.inf, math.inf, at_most(9), "undecided"),
    ],
)
def test_a_goal_is_met_by_a_whole_interval_and_missed_by_one_outside(low, high, goal, met):
    assert judged(Estimate((low + high) / 2, low, high), goal) == met


@pytest.mark.parametrize("number", [3, 5, 7, 8, 12])
def test_the_interval_of_a_median_holds_the_true_one_in_99_of_100_cases(number):
    random = Random(number)
    trials = [estimate([random.gauss(0, 1) for _ in range(number)]) for _ in range(2000)]
    assert sum(e.low <= 0 <= e.high for e in trials) >= 0.985 * len(trials)
    assert all(e.low <= e.middle <= e.high for e in trials)


def test_from_eight_samples_on_one_that_was_disturbed_widens_the_interval_by_nothing():
    quiet = [1.0 + i / 100 for i in range(20)]
    assert estimate([*quiet[:-1], 900.0]) == estimate(quiet)
    assert estimate(quiet).off < 0.08


@pytest.mark.parametrize("spikes", [0.0, 0.1])
def test_a_ratio_at_its_bound_is_decided_in_less_than_one_of_20_cases(spikes):
    random = Random(1)
    decided = [measured(random, 1.0, 0.05, at_most(1), spikes=spikes).met != "undecided" for _ in range(600)]
    assert sum(decided) <= 0.05 * len(decided)


@pytest.mark.parametrize(("ratio", "met"), [(1.0, "yes"), (1.1, "NO")])
def test_two_equal_sides_are_told_from_different_ones_if_the_noise_allows_it(ratio, met):
    assert measured(Random(3), ratio, 0.01, EQUAL, times=40).met == met
    assert measured(Random(3), ratio, 0.3, EQUAL, times=40).met == "undecided"


def test_a_machine_that_becomes_slow_meanwhile_changes_no_ratio():
    pairs = [(0.5 * slow, 1.0 * slow) for slow in (1, 1, 1, 8, 8, 8)]
    row = compared("a", pairs, at_most(0.6))
    assert row.ratio == pytest.approx((0.5, 0.5, 0.5))


def test_few_repetitions_decide_nothing_and_counts_need_none():
    assert alone("a", [1.0], at_most(5)).met == "undecided"
    assert compared("a", [(1.0, 5.0), (1.0, 5.0)], at_most(1)).met == "undecided"
    assert counted("a", 4, 2, 4, at_most(4)).met == "yes"
    assert counted("a", 5, 2, 5, at_most(4)).met == "NO"
    assert Row("a", None, None, None, at_most(1), error="no torch").met == "NO"


def test_what_grows_faster_than_its_size_is_no_pass():
    linear = [(0.8, 0.8), (0.81, 0.8), (0.79, 0.8)]
    rows = [
        of_growth("a", [(large * 8**more, small) for large, small in linear], 8, at_most(1.05))
        for more in (0, 0.05, 0.1)
    ]
    assert [row.met for row in rows] == ["yes", "undecided", "NO"]


def test_seconds_beyond_another_side_are_their_difference():
    row = beyond("a", [(3.0, 2.0), (3.2, 2.1), (9.0, 8.1)], at_most(2))
    assert (row.ours, row.theirs, row.ratio.middle) == (3.2, 2.1, 1.0)
    assert row.met == "yes"


def test_sides_take_turns_in_coming_first_after_a_run_that_does_not_count():
    ran = []

    def side(name):
        return lambda: ran.append(name) or len(ran)

    assert in_turn(side("ours"), side("theirs"), 3) == [(3, 4), (6, 5), (7, 8)]
    assert ran == ["ours", "theirs"] * 2 + ["theirs", "ours"] + ["ours", "theirs"]


def test_the_interval_of_a_quantile_holds_the_true_one_in_99_of_100_cases():
    random = Random(5)
    true = -math.log(0.01)
    found = [quantile([random.expovariate(1) for _ in range(540)], 0.99) for _ in range(500)]
    assert sum(not each.low <= true <= each.high for each in found) <= 10
    assert all(each.high < math.inf for each in found)
    assert quantile(range(200), 0.99) == Estimate(197, 193, math.inf)
