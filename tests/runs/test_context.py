"""What a run measures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.placement import Placement
from distcheck.run.context import Session
from distcheck.run.request import Request


def plan(command, backend="gloo", ranks=2, **asked):
    request = {name: asked.pop(name) for name in ("iterations", "time_limit_seconds") if name in asked}
    placements = tuple(Placement(rank=rank, world_size=ranks) for rank in range(ranks))
    session = Session(Request(Asked(command=command, looks=(), **asked), placements, {}, **request), None, None)
    session.record = SimpleNamespace(world_size=ranks)
    return session.plan(backend)


def test_a_gate_on_cpus_makes_one_burst_of_few_calls():
    found = plan("gate")
    assert (found.rough, found.size_seconds) == (True, 0.0)
    assert found.device_seconds < plan("bandwidth").device_seconds


@pytest.mark.parametrize(
    "asked",
    [{"min_busbw_GBps": 1.0}, {"time_limit_seconds": 60.0}, {"iterations": 7}],
    ids=lambda asked: next(iter(asked)),
)
def test_a_gate_is_as_precise_as_bandwidth_if_the_user_says_what_to_measure(asked):
    found, precise = plan("gate", **asked), plan("bandwidth", **asked)
    assert (found.rough, found.size_seconds, found.iterations) == (False, precise.size_seconds, precise.iterations)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_figures_of_a_single_rank_are_not_repeated_because_it_moves_nothing(backend):
    for command in ("gate", "bandwidth"):
        found = plan(command, backend, ranks=1)
        assert (found.rough, found.size_seconds) == (True, 0.0)
        assert not plan(command, backend, ranks=1, time_limit_seconds=60.0).rough


def test_figures_of_gpus_and_of_bandwidth_are_repeated_until_they_are_steady():
    for found in (plan("gate", "nccl"), plan("bandwidth", "nccl"), plan("bandwidth")):
        assert not found.rough
        assert found.size_seconds > 10 * found.burst_seconds / 2


def test_the_seconds_of_the_burn_reach_the_ranks():
    assert plan("gate", burn_seconds=3.0).burn_seconds == 3.0
