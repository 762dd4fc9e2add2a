"""distcheck itself: its versions and its lost processes."""

from __future__ import annotations

import pytest

from distcheck.facts.rank import RankRun

OURS = ("host.probe",)
CLOSED = "its connection was closed"
LEADER_LOST = "the connection to 10.0.0.1 was lost: it closed"
MEASURED = ("environment", "meeting", "collectives")


def test_another_version_on_a_node_is_a_warning(job_of, change, only):
    found, _ = only(change.node(job_of(3, 2), 1, distcheck="0.0.9"))
    assert (found.rule, found.severity) == ("probe-version-differs", "warning")
    assert (found.nodes, found.ranks) == (("node2",), (2, 3))
    assert found.fix.commands == ("pip install distcheck==0.1.0",)


def test_a_lost_process_is_reported_with_its_stage_and_is_never_a_pass(job_of, change, only):
    found, code = only(change.process(job_of(3, 2), 3, lost=CLOSED, stage="peers"))
    assert (found.rule, found.ranks, found.nodes, code) == ("probe-process-lost", (3,), ("node2",), 20)
    assert found.message.startswith("rank 3 (node2 pid")
    assert found.message.endswith(f"was lost in stage 'peers': {CLOSED}")


def test_processes_lost_in_the_same_way_are_one_finding(job_of, change, judge):
    job = change.process(job_of(3, 2), (2, 3), lost="it did not answer", stage="meeting")
    job = change.process(job, 5, lost="it did not answer", stage="peers")
    assert [f.ranks for f in judge(job, *OURS).findings] == [(2, 3), (5,)]


def test_a_process_lost_in_the_collectives_is_reported_by_the_rules_about_collectives(job_of, change, rules, judge):
    job = change.process(job_of(2, 1, looks=MEASURED), 1, lost=CLOSED, stage="collectives")
    job = change.rank(job, 0, run=RankRun(pid=1, step="done", outcome="done"))
    died = change.rank(job, 1, run=RankRun(pid=None, step="an unknown step", outcome="died", detail="was lost"))
    assert rules(died) == []
    assert [f.rule for f in judge(died).findings if f.severity == "error"] == ["collective-rank-died"]
    assert rules(job) == ["probe-process-lost"]


def test_a_process_lost_after_its_ranks_were_done_in_the_collectives_is_never_a_pass(job_of, change, only):
    job = change.rank(job_of(2, 1, looks=MEASURED), None, run=RankRun(pid=1, step="done", outcome="done"))
    job = change.process(job, 1, lost="no answer within 3 s to the last call before the verdict", stage="collectives")
    found, code = only(job)
    assert (found.rule, found.ranks, code) == ("probe-process-lost", (1,), 20)


def test_a_lost_process_without_a_rank_is_reported(job_of, change, only):
    job = change.process(job_of(1, 2), 1, lost=CLOSED)
    found, _ = only(change.job(job, ranks=job.ranks[:1]))
    assert found.message.startswith("a process without a rank was lost")


def test_a_lost_leader_is_reported_although_nothing_else_is_judged(job_of, change, only):
    job = change.process(job_of(1, 2), 1, leader_lost=LEADER_LOST, stage="collectives")
    job = change.job(job, met=False, ranks=job.ranks[1:], processes=job.processes[1:])
    found, code = only(change.job(job, skipped=dict.fromkeys(job.asked.looks, LEADER_LOST)))
    assert (found.rule, found.ranks, found.confirmed, code) == ("probe-process-lost", (0,), False, 20)
    assert found.message == (
        "rank 0's process was lost in stage 'collectives', reported by rank 1 "
        f"(node1 pid {job.processes[0].pid}): {LEADER_LOST}"
    )


@pytest.mark.parametrize(
    ("followers", "leader", "node", "words"),
    [
        ((0, 2), 1, "node2", "rank 1's process was lost in stage 'peers', reported by ranks 0,2 (node1 and node3"),
        ((1, 2), 0, "node1", "rank 0's process was lost in stage 'peers', reported by ranks 1-2 (node2 and node3"),
    ],
    ids=["one that replaced rank 0", "rank 0"],
)
def test_followers_that_lost_the_leader_are_one_finding_that_names_its_node(
    job_of, change, only, followers, leader, node, words
):
    found, _ = only(change.process(job_of(3, 1), followers, leader_lost=LEADER_LOST, leader_rank=leader, stage="peers"))
    assert (found.ranks, found.nodes) == ((leader,), (node,))
    assert found.message.startswith(words)
