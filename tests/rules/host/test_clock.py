"""Clocks that are wrong by more than the error of their measurement."""

from __future__ import annotations

import pytest

FAMILY = "host_clock"


def clocks(on_hosts, change, *offsets):
    """Build a job whose nodes, after the leader's, are off by (seconds, error)."""
    job = on_hosts(len(offsets) + 1, 2)
    for n, (offset, error) in enumerate(offsets, 1):
        job = change.process(job, (2 * n, 2 * n + 1), clock_offset_seconds=offset, clock_error_seconds=error)
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
def test_host_clock_skew_names_the_clock_that_is_off(on_hosts, change, judge, offsets, wrong):
    found = judge(clocks(on_hosts, change, *offsets), FAMILY).findings
    assert [(f.rule, f.severity, f.nodes) for f in found] == [("host-clock-skew", "warning", (n,)) for n in wrong]


def test_of_two_clocks_both_nodes_are_named(on_hosts, change, judge):
    (found,) = judge(clocks(on_hosts, change, (-2.5, 0.1)), FAMILY).findings
    assert found.nodes == ("node1", "node2")
    assert found.message == "node2: the clock is 2.5 s behind that of node1, ± 0.10 s; expected less than 1 s"


def test_the_process_with_the_least_error_speaks_for_its_node(on_hosts, change, judge):
    job = clocks(on_hosts, change, (0.0, 0.01), (0.0, 0.1))
    job = change.process(job, 4, clock_offset_seconds=3.0, clock_error_seconds=2.9)
    assert judge(job, FAMILY).findings == ()


def test_without_a_roll_call_nothing_is_known(on_hosts, judge):
    assert judge(on_hosts(3, 2), FAMILY).findings == ()
