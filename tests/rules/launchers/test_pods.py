"""Environments of pods and machines, which place no rank."""

from __future__ import annotations

import pytest


@pytest.fixture
def pods(job_of, change):
    """Return a job whose ranks distcheck started in two pods of four ranks each."""

    def job(launcher="kubernetes"):
        made = job_of(nodes=2, per_node=4, launcher="distcheck")
        for i, rank in enumerate(made.ranks):
            placement = change.job(rank.placement, launcher=launcher)
            environment = {**rank.environment, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
            made = change.rank(made, i, placement=placement, environment=environment)
        return made

    return job


@pytest.mark.parametrize(("launcher", "what"), [("kubernetes", "pods"), ("sagemaker", "machines")])
def test_ranks_derived_from_pod_numbers_are_an_info(pods, judge, launcher, what):
    diagnosis = judge(pods(launcher))
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.severity, diagnosis.verdict.exit_code) == ("k8s-rank-is-a-pods", "info", 0)
    assert f"identifies {what} (0-1), not ranks; checked ranks 0-7, 4 on each" in finding.message


def test_ranks_in_pods_with_their_own_variables_are_silent(job_of, change, judge):
    job = change.environment(job_of(nodes=2), None, KUBERNETES_SERVICE_HOST="10.96.0.1")
    assert judge(job, "pods").findings == ()
    assert judge(job_of(nodes=2, launcher="distcheck"), "pods").findings == ()
