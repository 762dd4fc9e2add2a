"""Goals in seconds, beside a walk over many objects."""

from random import Random

import pytest
from benchmarks import pace
from benchmarks.pace import against_a_walk, beside_a_walk, usual


@pytest.fixture
def speed(monkeypatch):
    """Let a machine change its speed from run to run; return what takes so many seconds at the usual speed."""
    random, now = Random(0), {"slow": 1.0}
    monkeypatch.setattr(pace, "slowness", lambda: now["slow"])

    def runs(seconds, number=5, noise=0.02):
        found = []
        for _ in range(number):
            now["slow"] = random.uniform(0.8, 2.5)
            found.append(beside_a_walk(lambda: seconds * now["slow"] * random.gauss(1, noise)))
        return found

    return runs


@pytest.mark.parametrize(("seconds", "met"), [(4.5, "yes"), (5.0, "undecided"), (6.0, "NO")])
def test_a_goal_in_seconds_does_not_depend_on_the_speed_of_the_hour(speed, seconds, met):
    row = against_a_walk("judge", speed(seconds), 5.0)
    assert row.met == met
    assert row.name == "judge / a walk of 5 s"
    assert row.ratio.middle == pytest.approx(seconds / 5, rel=0.05)


def test_a_row_shows_what_was_measured_and_what_the_walk_took():
    row = against_a_walk("CPU", [(0.3, 2.0)] * 3, 0.2, "ms")
    assert (row.ours, row.theirs, row.unit) == (0.3, 0.4, "ms")


def test_a_unit_cost_is_that_of_the_usual_speed(speed):
    assert usual(speed(3.0)) == pytest.approx(3.0, rel=0.05)


@pytest.mark.process
def test_the_slowness_is_in_usual_seconds():
    assert 0.05 < pace.slowness() < 100
