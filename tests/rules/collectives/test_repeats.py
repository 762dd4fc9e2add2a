"""A case that failed and was repeated with one setting changed at a time, as a finding."""

from __future__ import annotations

import pytest

from distcheck.facts.repeated import Repeat, Repeated

RING = Repeat("passed", "NCCL_ALGO", "Ring")
NO_P2P = Repeat("hung", "NCCL_P2P_DISABLE", "1")
ETH1 = Repeat("passed", "GLOO_SOCKET_IFNAME", "eth1")
HANGS, FAILS, PASSES = Repeat("hung", words=("node1: stalled",)), Repeat("failed"), Repeat("passed")


@pytest.fixture
def told(job_of, change, judge):
    """Return the findings and what was not checked after these repetitions on node1 and node2."""

    def told(*repeats, backend="nccl"):
        job = job_of(2, 2, looks=("environment", "meeting", "collectives"), command="bandwidth")
        case = Repeated(("node1", "node2"), "all_reduce", repeats, ("NCCL_NET=Socket",))
        diagnosis = judge(change.job(job, repeated=case), "repeats")
        return diagnosis.findings, [n.reason for n in diagnosis.not_checked if n.rule == "collective-transport-fails"]

    return told


def test_the_setting_with_which_it_passes_is_named_with_what_it_avoids(told):
    (finding,), _ = told(HANGS, NO_P2P, RING, HANGS, RING)
    assert finding.message == (
        "all_reduce on node1 and node2 hangs with an NCCL algorithm other than Ring, and passes with NCCL_ALGO=Ring"
    )
    assert (finding.ranks, finding.nodes, finding.severity) == ((0, 1, 2, 3), ("node1", "node2"), "warning")
    assert finding.fix.commands[0] == "export NCCL_ALGO=Ring"
    assert finding.evidence["NCCL_P2P_DISABLE=1"] == "hung"
    assert finding.evidence["not tried"] == "NCCL_NET=Socket"


def test_with_gloo_the_interface_is_named(told):
    (finding,), _ = told(FAILS, ETH1, FAILS, ETH1, backend="gloo")
    assert finding.message.endswith("fails over the interface that Gloo selects, and passes over eth1")


SLOW, FAST = Repeat("slow", busbw_GBps=0.011), Repeat("passed", "GLOO_SOCKET_IFNAME", "eth1", busbw_GBps=0.9)


def test_a_slow_operation_has_both_figures(told):
    (finding,), _ = told(SLOW, FAST, SLOW, FAST, backend="gloo")
    assert finding.message == (
        "all_reduce on node1 and node2 reaches 0.011 GB/s over the interface that Gloo selects, "
        "and reaches 0.9 GB/s over eth1"
    )
    assert finding.evidence["no change"] == "slow, 0.011 GB/s"
    assert finding.evidence["GLOO_SOCKET_IFNAME=eth1 again"] == "passed, 0.9 GB/s"


def test_an_operation_that_is_slow_with_every_setting_blames_no_transport(told):
    findings, (reason,) = told(SLOW, Repeat("slow", "NCCL_IB_DISABLE", "1", busbw_GBps=0.012))
    assert findings == ()
    assert reason.endswith("is as slow with NCCL_IB_DISABLE=1, one at a time: no transport alone is at fault")


def test_an_operation_that_was_slow_once_blames_no_transport(told):
    findings, (reason,) = told(Repeat("passed", busbw_GBps=0.9))
    assert findings == ()
    assert "was not slow when it was repeated without a change" in reason


@pytest.mark.parametrize("repeats", [(PASSES,), (HANGS, RING, PASSES)], ids=["at once", "afterwards"])
def test_a_case_that_passes_without_a_change_blames_no_transport(told, repeats):
    findings, (reason,) = told(*repeats)
    assert findings == ()
    assert "passed when it was repeated without a change" in reason


@pytest.mark.parametrize(
    "later",
    [(), (Repeat("untested"),), (HANGS,), (HANGS, Repeat("hung", "NCCL_ALGO", "Ring"))],
    ids=["no time", "a lost node", "no time for the second pass", "no second pass"],
)
def test_a_pass_that_is_not_confirmed_names_no_transport(told, later):
    findings, (reason,) = told(HANGS, RING, *later)
    assert findings == ()
    assert reason.endswith("passed with NCCL_ALGO=Ring, which was not confirmed")


def test_a_case_that_no_setting_helps_says_what_was_tried(told):
    findings, (reason,) = told(HANGS, NO_P2P, Repeat("untested", "NCCL_ALGO", "Ring"))
    assert findings == ()
    assert "also fails with NCCL_P2P_DISABLE=1, one at a time" in reason


def test_a_run_that_repeated_nothing_is_silent(told):
    assert told() == ((), [])
