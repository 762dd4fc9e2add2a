"""Xids of the last two hours: what each number means for its GPU and rank."""

from __future__ import annotations

import pytest
from made.nvml_jobs import PROFILES, but_guesses

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Xid

H100 = PROFILES["dgx_h100"]
SIGNED = H100 + "field.230 type 1 0\n"
"""The driver reports recovery actions and requests none."""
GPU5 = "0000:c3:00.0"


@pytest.fixture
def judge(judge):
    return but_guesses(judge)


@pytest.fixture
def on(on, change):
    """Build a job of two nodes; the text describes the second, whose log has these Xids."""
    return lambda text, *found, **more: change.node(on(H100, text, **more), 1, xids=found)


def xid(number, minutes=40.0, pci=GPU5):
    return Xid(number, pci, None if minutes is None else minutes * 60, f"pid=7, name=python3, text of {number}")


@pytest.mark.parametrize(
    ("number", "severity", "words", "step"),
    [
        (48, "error", "an uncorrectable memory error", "reset the GPU"),
        (62, "error", "microcontroller", "reset the GPU"),
        (63, "warning", "needs replacement", "No immediate action"),
        (64, "error", "could not be replaced", "reset the GPU"),
        (74, "warning", "NVLink", "Check the links"),
        (79, "error", "fallen off the bus", "reboot"),
        (92, "warning", "correctable", "No immediate action"),
        (94, "warning", "hit one application", "No immediate action"),
        (95, "error", "could not be contained", "reset the GPU"),
        (119, "error", "did not answer", "reset the GPU"),
        (120, "error", "GSP", "reset the GPU"),
        (121, "warning", "C2C", "No immediate action"),
        (149, "warning", "NVLink", "Check the links"),
        (54, "error", "power", "power cables"),
        (13, "info", "a fault in a CUDA kernel", "application"),
        (31, "info", "an invalid memory address", "application"),
        (43, "info", "an application's fault", "application"),
        (45, "info", "removed from the GPU", "application"),
        (4711, "info", "Xid 4711 40 min ago", "Look it up"),
    ],
)
def test_each_xid_has_its_severity_and_fix(on, judge, number, severity, words, step):
    result = judge(on(H100, xid(number)))
    (finding,) = result.findings
    assert (finding.rule, finding.severity, finding.ranks, finding.nodes) == (
        "gpu-xid-recent", severity, (13,), ("node2",),
    )  # fmt: skip
    assert f"GPU 5 ({GPU5}): Xid {number} 40 min ago" in finding.message
    assert words in finding.message
    assert step in finding.fix.text
    assert result.verdict.exit_code == (20 if severity == "error" else 0)


def test_old_xids_and_an_empty_log_are_silent(on, judge):
    assert judge(on(H100, xid(79, minutes=121), xid(48, minutes=600))).findings == ()
    assert judge(on(H100)).findings == ()


def test_an_xid_without_recovery_action_or_at_an_unknown_time_is_a_warning(on, judge):
    (finding,) = judge(on(SIGNED, xid(119))).findings
    assert finding.severity == "warning"
    (finding,) = judge(on(H100, xid(119, minutes=None))).findings
    assert finding.severity == "warning"
    assert "Xid 119 at an unknown time" in finding.message


def test_several_xids_of_one_gpu_are_one_finding_about_the_worst(on, judge):
    (finding,) = judge(on(H100, xid(45, 5), xid(63, 5), xid(48, 6), xid(13, 1))).findings
    assert (finding.severity, finding.ranks) == ("error", (13,))
    assert "Xid 48 6 min ago: an uncorrectable memory error; also Xid 13,45,63" in finding.message


@pytest.mark.parametrize(
    ("fault", "number", "rule"),
    [
        ("5.field.230 type 1 1\n", 119, "gpu-needs-reset"),
        ("5.ecc.1.0 1\n", 48, "gpu-ecc-uncorrected"),
        ("5.rows 0 1 1 0\n", 63, "gpu-row-remap-pending"),
    ],
)
def test_a_fault_that_nvml_reports_too_makes_the_xid_an_info_finding(on, judge, fault, number, rule):
    result = {f.rule: f.severity for f in judge(on(H100 + fault, xid(number))).findings}
    assert result.pop("gpu-xid-recent") == "info"
    assert list(result) == [rule]


@pytest.mark.parametrize("fault", ["5.lost yes\n", "5.handle !15\n", "5.reasons !15\n"])
def test_a_lost_gpu_is_reported_as_lost(on, judge, fault):
    result = judge(on(H100 + fault, xid(79)), "gpu.mapping", "gpu.xids")
    assert [f.rule for f in result.findings] == ["gpu-fell-off-bus"]


def test_a_gpu_that_no_rank_takes_or_nvml_does_not_list_is_an_info_finding(on, judge):
    (finding,) = judge(on(H100, xid(79), per_node=2)).findings
    assert (finding.severity, finding.ranks) == ("info", ())
    (finding,) = judge(on(H100, xid(79, pci="0000:ab:00.0"))).findings
    assert (finding.rule, finding.severity, finding.nodes) == ("gpu-xid-recent", "info", ("node2",))
    assert "Xids of GPUs that NVML does not list: 0000:ab:00.0: Xid 79 40 min ago" in finding.message


def test_an_nvml_failure_is_reported_beside_the_xid(on, judge, change):
    job = change.node(on(H100, xid(79)), 1, gpus=Missing(reason="NVML error 999: Unknown Error"))
    assert {f.rule: f.severity for f in judge(job, "gpu.mapping", "gpu.xids").findings} == {
        "gpu-nvml-init-failed": "error",
        "gpu-xid-recent": "info",
    }


def test_an_unreadable_log_is_not_checked_and_not_required(on, judge, change):
    reason = "no permission to read the kernel log (/dev/kmsg: Operation not permitted; kernel.dmesg_restrict is 1)"
    result = judge(change.node(on(H100), None, xids=Missing(reason=reason)))
    assert result.findings == ()
    (unseen,) = result.not_checked
    assert (unseen.rule, unseen.reason, unseen.nodes, unseen.required) == (
        "gpu-xid-recent", reason, ("node1", "node2"), False,
    )  # fmt: skip
    assert result.verdict.exit_code == 0
