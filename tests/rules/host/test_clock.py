"""Clocks that are wrong by more than the error of their measurement."""

from __future__ import annotations

import pytest

OURS = ("host.clock",)


@pytest.fixture
def job(on_hosts, change):
    """Build a job whose nodes, after the leader's, are off by (seconds, error)."""

    def job(*offsets):
        made = on_hosts(len(offsets) + 1, 2)
        for n, (offset, error) in enumerate(offsets, 1):
            made = change.process(made, (2 * n, 2 * n + 1), clock_offset_seconds=offset, clock_error_seconds=error)
        return made

    return job


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [
        ([(0.01, 0.01), (-5.0, 0.1)], ["node3"]),
        ([(5.0, 0.1), (5.01, 0.1)], ["node1"]),
        ([(0.9, 0.01), (0.0, 0.1)], []),
        ([(4.0, 3.5), (0.0, 0.1)], []),
        ([(4.0, 1.5), (0.0, 0.1)], []),
        ([(3600.0, 0.2), (0.0, 0.1), (-90.0, 0.1)], ["node2", "node4"]),
    ],
    ids=["behind", "the leader's own", "less than a second", "less than its error", "about its error", "two"],
)
def test_host_clock_skew_names_the_clock_that_is_off(job, said, offsets, wrong):
    assert said(job(*offsets), *OURS) == [("host-clock-skew", "warning", (), (name,)) for name in wrong]


def test_of_two_clocks_both_nodes_are_named(job, only):
    found, _ = only(job((-2.5, 0.1)))
    assert found.nodes == ("node1", "node2")
    assert found.message == "node2: the clock is 2.5 s behind that of node1, ± 0.10 s; expected less than 1 s"


def test_the_process_with_the_least_error_speaks_for_its_node_and_none_is_known_without_a_roll_call(
    job, on_hosts, change, silent
):
    assert silent(change.process(job((0.0, 0.01), (0.0, 0.1)), 4, clock_offset_seconds=3.0, clock_error_seconds=2.9))
    assert silent(on_hosts(3, 2))
