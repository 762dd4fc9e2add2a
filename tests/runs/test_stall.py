"""Collectives that make progress are left alone; a hang after the first figure is reported once."""

from __future__ import annotations

import asyncio

import pytest

from distcheck.collectives.plan import Plan
from distcheck.run import stall
from distcheck.run.stall import Pace, Patience


@pytest.fixture
def told(monkeypatch):
    """Take steps of (pause, figures so far) and return the reports, and the terminal's lines."""
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.4)
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.05)

    def told(*steps, size_seconds=0.0, sizes=(), **patience):
        plan = Plan(backend="gloo", operations=(), sizes_bytes=sizes, deadline_seconds=60.0, size_seconds=size_seconds)
        troubles, seen = [], []

        async def main():
            watched = Pace(lambda _, figures: seen.append(figures))
            limits = Patience(**{"first_seconds": 60.0} | patience)
            watching = asyncio.create_task(watched.watch(plan, troubles.append, limits))
            for pause, figures in steps:
                await asyncio.sleep(pause)
                watched.step("all_reduce", figures)
            await asyncio.sleep(0.8)
            watching.cancel()

        asyncio.run(main())
        assert seen == [figures for _, figures in steps]
        return troubles

    return told


@pytest.mark.long
def test_a_hang_after_a_figure_is_reported_once(told):
    (trouble,) = told((0.05, 0), (0.05, 1))
    assert trouble.startswith("no progress for ")


@pytest.mark.long
def test_the_first_figure_has_a_time_of_its_own(told):
    assert told((0.05, 0)) == []
    (trouble,) = told((0.05, 0), (0.05, 0), first_seconds=0.3)
    assert trouble.startswith("no figure within ")
    assert told((0.1, 1), (0.4, 2), first_seconds=0.3) == [], "it came in time"


@pytest.mark.long
def test_slow_earlier_steps_extend_the_limit(told):
    assert told((0.7, 1)) == []
    assert told((0.05, 1), size_seconds=0.3) == []
    assert told((0.7, 1), size_seconds=0.3, first_seconds=0.2) == []


@pytest.mark.long
def test_a_size_that_is_very_much_larger_may_take_as_long_as_a_first_figure(told):
    assert told((0.05, 1), sizes=(1 << 10, 1 << 22)) == []
    (trouble,) = told((0.05, 1), sizes=(1 << 10, 1 << 22), first_seconds=0.5)
    assert trouble.startswith("no progress for ")


@pytest.mark.long
def test_nothing_is_a_hang_after_the_figures_that_are_watched(told):
    assert told((0.05, 1), (0.05, 2), figures=2) == []
    (trouble,) = told((0.05, 1), (0.05, 2), figures=3)
    assert trouble.startswith("no progress for ")
