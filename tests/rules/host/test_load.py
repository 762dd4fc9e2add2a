"""What a node does beside the job: load, stuck processes."""

from __future__ import annotations

import pytest

from distcheck.facts.host import StuckProcess

FAMILY = "host_load"


@pytest.mark.parametrize(
    ("loads", "busy"),
    [
        ((70, 0.5, 0.5), ("node1",)),
        ((0.5, 0.0, 200.0, 1.0), ("node3",)),
        ((0.5, 80), ("node2",)),
        ((70, 60, 65), ()),
        ((70, 40), ()),
        ((50, 0.5, 0.5), ()),
        ((200,), ()),
        ((70, 0.5, 0.5, "ended"), ()),
    ],
    ids=["one of 3", "one of 4", "one of 2", "all", "both", "less than a process for each CPU", "alone", "ended"],
)
def test_host_busy_beside_idle_nodes_only(on_hosts, said, loads, busy):
    running = 3 if "ended" in loads else 80
    loads = [load for load in loads if load != "ended"]
    job = on_hosts(len(loads), 2, states={n: {"load": load, "running": running} for n, load in enumerate(loads)})
    assert said(job, FAMILY) == [("host-busy", "warning", (), (name,)) for name in busy]


def test_the_load_of_both_sides_is_shown(on_hosts, judge):
    job = on_hosts(2, 2, states={0: {"load": 64.0}, 1: {"load": 3.2}})
    expected = "node1: load 64.0 on 64 CPUs before the job, 1.00 for each; the other node has 0.05 or less"
    assert judge(job, FAMILY).findings[0].message == expected


def test_host_stuck_processes_names_them_and_where_they_wait(on_hosts, judge):
    stuck = (StuckProcess(77, "python3", "blocked", "rpc_wait_bit_killable"), StuckProcess(78, "ls", "blocked"))
    (found,) = judge(on_hosts(states={1: {"stuck": stuck}}), FAMILY).findings
    assert (found.rule, found.severity, found.nodes) == ("host-stuck-processes", "warning", ("node2",))
    expected = "node2: python3 (pid 77) and ls (pid 78) are stuck in the kernel, in rpc_wait_bit_killable"
    assert found.message == expected
    assert "sudo cat /proc/77/stack" in found.fix.commands


def test_a_killed_process_that_cannot_end_is_reported(on_hosts, judge):
    stuck = (StuckProcess(5, "python3", "ending"),)
    assert judge(on_hosts(1, states={0: {"stuck": stuck}}), FAMILY).findings[0].message == (
        "node1: python3 (pid 5) cannot end after a signal"
    )
