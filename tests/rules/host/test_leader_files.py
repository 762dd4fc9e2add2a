"""A leader that may not open enough files for all processes of the job."""

from __future__ import annotations

import pytest

from distcheck.facts.network import Attempt

FAMILIES = ("host.probe", "environment.ranks")


def _with_room(job, change, room, absent):
    """Give rank 0's process room for so many followers, and leave out the last `absent` ranks."""
    return change.keep(change.process(job, 0, most_followers=room), *range(len(job.ranks) - absent))


@pytest.mark.parametrize("launcher", ["by hand", "slurm", "distcheck"])
def test_a_limit_that_is_reached_explains_the_ranks_that_are_missing(job_of, change, judge, launcher):
    job = job_of(20, 2, launcher)
    followers = len({r.process for r in job.ranks[:-8]}) - 1
    said = judge(_with_room(job, change, followers, 8), *FAMILIES)
    (found,) = said.findings
    assert (found.rule, found.severity, found.nodes) == ("probe-open-files", "error", ("node1",))
    assert f"to {followers} processes; the job has {len(job.processes) - 1} others" in found.message
    assert "ulimit -Hn" in found.fix.commands
    assert said.verdict.exit_code == 30
    assert "could not open more connections" in {n.rule: n.reason for n in said.not_checked}["env-rank-missing"]


def test_who_was_told_that_rank_0_is_out_of_files_names_that_and_blames_no_port(job_of, change, judge):
    told = (Attempt("10.0.0.1", 29500, "master", "full", detail="rank 0's process may not open more files"),)
    job = change.keep(job_of(20, 2, "slurm"), 6)
    job = change.job(change.process(job, 0, attempts=told), met=False)
    said = judge(job, *FAMILIES, "network.master_reachability", "environment.master_port")
    (found,) = said.findings
    assert (found.rule, found.severity, found.ranks) == ("probe-open-files", "error", (6,))
    assert "rank 0's process may not open more files" in found.message
    assert said.verdict.exit_code == 30


def test_a_limit_that_is_not_reached_is_not_why_ranks_are_missing(job_of, change, judge):
    said = judge(_with_room(job_of(20, 2), change, 35, 8), *FAMILIES)
    assert {f.rule: f.severity for f in said.findings} == {"env-rank-missing": "error", "probe-open-files": "warning"}


@pytest.mark.parametrize(
    ("room", "absent"), [(39, 8), (1 << 20, 8), (None, 8), (1, 0)], ids=["enough", "plenty", "older file", "all came"]
)
def test_a_limit_that_suffices_is_silent(job_of, change, judge, room, absent):
    found = judge(_with_room(job_of(20, 2), change, room, absent), *FAMILIES).findings
    assert "probe-open-files" not in {f.rule for f in found}
