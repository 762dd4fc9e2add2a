"""distcheck itself: its versions and its lost processes."""

from __future__ import annotations

import pytest

from distcheck.facts.rank import RankRun


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (1, 4), (3, 2)])
def test_a_job_without_lost_processes_is_silent(job_of, judge, nodes, per_node):
    assert judge(job_of(nodes, per_node), "probe").findings == ()


def test_another_version_on_a_node_is_a_warning(job_of, change, judge):
    job = change.node(job_of(3, 2), 1, distcheck="0.0.9")
    (found,) = judge(job, "probe").findings
    assert (found.rule, found.severity, found.nodes, found.ranks) == (
        "probe-version-differs",
        "warning",
        ("node2",),
        (2, 3),
    )


def test_a_lost_process_is_reported_with_its_stage_and_is_never_a_pass(job_of, change, judge):
    job = change.process(job_of(3, 2), 3, lost="its connection was closed", stage="peers")
    diagnosis = judge(job, "probe")
    (found,) = diagnosis.findings
    assert (found.rule, found.ranks, found.nodes) == ("probe-process-lost", (3,), ("node2",))
    assert "rank 3 (node2 pid" in found.message
    assert "'peers'" in found.message
    assert "its connection was closed" in found.message
    assert diagnosis.verdict.exit_code == 20


def test_processes_lost_in_the_same_way_are_one_finding(job_of, change, judge):
    job = change.process(job_of(3, 2), (2, 3), lost="it did not answer", stage="meeting")
    job = change.process(job, 5, lost="it did not answer", stage="peers")
    first, second = judge(job, "probe").findings
    assert (first.ranks, second.ranks) == ((2, 3), (5,))


def test_a_process_lost_in_the_collectives_is_reported_by_the_rules_about_collectives(job_of, change, judge):
    looks = ("environment", "meeting", "collectives")
    job = change.process(job_of(2, 1, looks=looks), 1, lost="its connection was closed", stage="collectives")
    job = change.rank(job, 0, run=RankRun(pid=1, step="done", outcome="done"))
    died = change.rank(job, 1, run=RankRun(pid=None, step="an unknown step", outcome="died", detail="was lost"))
    assert judge(died, "probe").findings == ()
    assert [f.rule for f in judge(died).findings if f.severity == "error"] == ["collective-rank-died"]
    assert [f.rule for f in judge(job, "probe").findings] == ["probe-process-lost"]


def test_a_process_lost_after_its_ranks_were_done_in_the_collectives_is_never_a_pass(job_of, change, judge):
    looks = ("environment", "meeting", "collectives")
    job = change.rank(job_of(2, 1, looks=looks), None, run=RankRun(pid=1, step="done", outcome="done"))
    job = change.process(job, 1, lost="no answer within 3 s to the last call before the verdict", stage="collectives")
    diagnosis = judge(job, "probe")
    (found,) = diagnosis.findings
    assert (found.rule, found.ranks) == ("probe-process-lost", (1,))
    assert diagnosis.verdict.exit_code == 20


def test_a_lost_process_without_a_rank_is_reported(job_of, change, judge):
    job = change.process(job_of(1, 2), 1, lost="its connection was closed")
    job = change.job(job, ranks=job.ranks[:1])
    (found,) = judge(job, "probe").findings
    assert found.message.startswith("a process without a rank was lost")


LOST = "the connection to 10.0.0.1 was lost: it closed"


def test_a_lost_leader_is_reported_although_nothing_else_is_judged(job_of, change, judge):
    job = change.process(job_of(1, 2), 1, leader_lost=LOST, stage="collectives")
    job = change.job(job, met=False, ranks=job.ranks[1:], processes=job.processes[1:])
    job = change.job(job, skipped=dict.fromkeys(job.asked.looks, LOST))
    diagnosis = judge(job, "probe")
    (found,) = diagnosis.findings
    assert (found.rule, found.ranks, found.confirmed) == ("probe-process-lost", (0,), False)
    assert found.message == (
        "rank 0's process was lost in stage 'collectives', reported by rank 1 "
        f"(node1 pid {job.processes[0].pid}): {LOST}"
    )
    assert diagnosis.verdict.exit_code == 20


def test_a_lost_leader_that_replaced_rank_0_is_named_and_not_rank_0(job_of, change, judge):
    job = change.process(job_of(3, 1), (0, 2), leader_lost=LOST, leader_rank=1, stage="collectives")
    (found,) = judge(job, "probe").findings
    assert (found.ranks, found.nodes) == ((1,), ("node2",))
    assert found.message.startswith(
        "rank 1's process was lost in stage 'collectives', reported by ranks 0,2 (node1 and node3"
    )


def test_followers_that_lost_the_leader_are_one_finding_that_names_its_node(job_of, change, judge):
    job = change.process(job_of(3, 1), (1, 2), leader_lost=LOST, stage="peers")
    (found,) = judge(job, "probe").findings
    assert (found.ranks, found.nodes) == ((0,), ("node1",))
    assert "reported by ranks 1-2 (node2 and node3)" in found.message
