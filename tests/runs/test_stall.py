"""Collectives that make progress are left alone; a hang after the first figure is reported once."""

from __future__ import annotations

import asyncio
import math

import pytest

from distcheck.collectives.plan import Plan
from distcheck.run import stall
from distcheck.run.stall import Pace, Patience, before_a_search, before_repeats


@pytest.fixture
def told(monkeypatch):
    """Take steps of (pause, figures so far) and return the reports, and the terminal's lines."""
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.4)
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.05)

    def told(*steps, size_seconds=0.0, sizes=(), hangs=False, **patience):
        plan = Plan(backend="gloo", operations=(), sizes_bytes=sizes, deadline_seconds=60.0, size_seconds=size_seconds)
        troubles, seen = [], []

        async def main():
            watched = Pace(lambda _, figures: seen.append(figures))
            limits = Patience(**{"first_seconds": 60.0} | patience)
            watching = asyncio.create_task(watched.watch(plan, troubles.append, limits))
            for pause, figures in steps:
                await asyncio.sleep(pause)
                watched.step("all_reduce", figures)
            # A step that a busy machine made long allows the next one to be longer.
            await asyncio.wait({watching}, timeout=30.0 if hangs else 0.8)
            watching.cancel()

        asyncio.run(main())
        assert seen == [figures for _, figures in steps]
        return troubles

    return told


@pytest.mark.long
def test_a_hang_after_a_figure_is_reported_once(told):
    (trouble,) = told((0.05, 0), (0.05, 1), hangs=True)
    assert trouble.startswith("no progress for ")


@pytest.mark.long
def test_the_first_figure_has_a_time_of_its_own(told):
    assert told((0.05, 0)) == []
    (trouble,) = told((0.05, 0), (0.05, 0), first_seconds=0.3, hangs=True)
    assert trouble.startswith("no figure within ")
    assert told((0.1, 1), (0.4, 2), first_seconds=0.3) == [], "it came in time"


@pytest.mark.long
def test_slow_earlier_steps_extend_the_limit(told):
    assert told((0.7, 1)) == []
    assert told((0.05, 1), size_seconds=0.3) == []
    assert told((0.6, 1), size_seconds=2.0, first_seconds=0.2) == []


@pytest.mark.long
def test_a_size_that_is_very_much_larger_may_take_as_long_as_a_first_figure(told):
    assert told((0.05, 1), sizes=(1 << 10, 1 << 22)) == []
    (trouble,) = told((0.05, 1), sizes=(1 << 10, 1 << 22), first_seconds=0.5, hangs=True)
    assert trouble.startswith("no progress for ")


@pytest.mark.long
def test_nothing_is_a_hang_after_the_figures_that_are_watched(told):
    assert told((0.05, 1), (0.05, 2), figures=2) == []
    (trouble,) = told((0.05, 1), (0.05, 2), figures=3, hangs=True)
    assert trouble.startswith("no progress for ")


@pytest.mark.long
def test_nothing_is_a_hang_when_too_little_time_would_be_left(told):
    assert told((0.05, 1), seconds=0.3) == []


def test_a_search_gets_half_of_the_time():
    assert before_a_search(50.0) == Patience(25.0, math.inf)


@pytest.mark.parametrize(
    ("backend", "left", "first_seconds", "seconds"),
    [
        ("gloo", 55.0, math.inf, 35.0),
        ("gloo", 145.0, 105.0, 125.0),
        ("nccl", 55.0, math.inf, 15.0),
        ("nccl", 145.0, 72.5, 105.0),
        ("nccl", 295.0, 215.0, 255.0),
    ],
)
def test_repeats_get_what_the_first_figure_does_not_need(backend, left, first_seconds, seconds):
    sizes = (1 << 20, 4 << 20)
    plan = Plan(backend, ("all_reduce", "broadcast"), sizes, 60.0, dtypes=("float32", "bfloat16"))
    assert before_repeats(plan, left) == Patience(first_seconds, 8, seconds)
