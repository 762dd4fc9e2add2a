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
        diagnosis = judge(change.job(job, repeated=case), "collectives.repeats")
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


STILL_SLOW = Repeat("slow", "NCCL_IB_DISABLE", "1", busbw_GBps=0.012)
UNTESTED = Repeat("untested", "NCCL_ALGO", "Ring")
UNCONFIRMED = "passed with NCCL_ALGO=Ring, which was not confirmed"
UNCHANGED = "passed when it was repeated without a change"


@pytest.mark.parametrize(
    ("repeats", "reason"),
    [
        ((SLOW, STILL_SLOW), "is as slow with NCCL_IB_DISABLE=1, one at a time: no transport alone is at fault"),
        ((Repeat("passed", busbw_GBps=0.9),), "was not slow when it was repeated without a change"),
        ((PASSES,), UNCHANGED),
        ((HANGS, RING, PASSES), UNCHANGED),
        ((HANGS, RING), UNCONFIRMED),
        ((HANGS, RING, Repeat("untested")), UNCONFIRMED),
        ((HANGS, RING, HANGS), UNCONFIRMED),
        ((HANGS, RING, HANGS, Repeat("hung", "NCCL_ALGO", "Ring")), UNCONFIRMED),
        ((HANGS, NO_P2P, UNTESTED), "also fails with NCCL_P2P_DISABLE=1, one at a time"),
    ],
)
def test_what_is_not_shown_twice_blames_no_transport_and_says_why(told, repeats, reason):
    findings, (said,) = told(*repeats)
    assert findings == ()
    assert reason in said


def test_a_run_that_repeated_nothing_is_silent(told):
    assert told() == ((), [])
