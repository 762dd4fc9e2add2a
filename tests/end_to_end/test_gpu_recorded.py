"""distcheck report on jobs that were saved on a healthy machine with a real H200."""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[1] / "recorded" / "gpu" / "h200_vm"
ONE_RANK = "perf-below-expectation"
"""A single rank has no bus bandwidth to judge."""


REMARKS = ["nccl-debug-verbose"]
"""About a variable that the run's script really set."""


@pytest.mark.parametrize(
    ("name", "unchecked", "remarks"),
    [
        ("gpu", [], []),
        ("gate", [ONE_RANK, "perf-socket-instead-of-ib"], REMARKS),  # NCCL_DEBUG=INFO sent NCCL's log to the terminal
        ("bandwidth", [ONE_RANK], []),
    ],
)
def test_a_healthy_job_on_a_real_gpu_passes(distcheck, name, unchecked, remarks):
    ended = distcheck("report", str(RECORDED / f"{name}.json"), "--format", "json")
    assert (ended.code, ended.report["verdict"]) == (0, "pass"), ended
    findings = ended.report["findings"]
    assert {each["severity"] for each in findings} <= {"info"}, findings
    assert sorted(each["rule"] for each in findings) == remarks
    assert sorted({each["rule"] for each in ended.report["not_checked"]}) == unchecked
    assert [row["gpu"]["name"] for row in ended.report["ranks"]] == ["NVIDIA H200"]
