"""What NCCL's diagnostics of a node report, in its own words."""

from __future__ import annotations

import pytest
from made.policies import policy

from distcheck.facts.base import Missing
from distcheck.facts.nccl import NodeDiagnosis
from distcheck.rules import diagnose


@pytest.fixture
def said(job_of, change, judge):
    """Return the judgement of a node of which NCCL printed these lines."""

    def of(*lines, found=None, by=None, **asked):
        job = job_of(1, 1, looks=("environment", "node", "gpu"), gpus=4)
        job = change.asked(job, command="node", diagnose=True, **asked)
        told = NodeDiagnosis("2.32.3", 4, lines, 1.0) if found is None else found
        job = change.node(job, 0, diagnosis=told)
        return by(job) if by else judge(job, "gpu.diagnosis")

    return of


def test_lines_that_are_well_are_silent(said):
    assert said().findings == ()
    assert (
        said("[OK]   p2p: verified P2P access in both directions between every GPU pair (12 peer accesses)").findings
        == ()
    )


def test_other_lines_are_only_shown(said):
    (found,) = said("[INFO] driver version 580.1 on 3 ranks, 575.2 on 1").findings
    assert (found.rule, found.severity, found.nodes) == ("nccl-node-diagnostics-report", "info", ("node1",))
    assert found.message == "node1: NCCL 2.32.3: driver version 580.1 on 3 ranks, 575.2 on 1"


def test_failed_accesses_are_a_warning_that_a_policy_can_raise(said):
    told = said("[INFO] p2p: only 10/12 GPU-to-GPU peer accesses passed verification")
    (found,) = told.findings
    assert told.verdict.exit_code == 0
    assert (found.severity, found.confirmed, found.scope) == ("warning", True, "node")
    assert found.message == "node1: NCCL 2.32.3: no peer-to-peer access between all 4 GPUs; 10 of 12 accesses passed"


def test_a_site_drains_for_it_by_its_policy(said):
    raised = policy({"rule": {"nccl-node-diagnostics-report": {"severity": "error"}}})
    line = "[INFO] p2p: only 10/12 GPU-to-GPU peer accesses passed verification"
    told = said(line, by=diagnose.judge, policy=raised, select=("nccl-node-diagnostics-report",))
    assert told.verdict.exit_code == 40


def test_what_was_not_asked_drains_nobody(said):
    told = said(found=Missing(reason="process 7 uses GPU 0"))
    assert (told.findings, told.verdict.exit_code) == ((), 0)
    assert [gap.reason for gap in told.not_checked] == ["NCCL's diagnostics: process 7 uses GPU 0"]
