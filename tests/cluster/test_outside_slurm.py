"""distcheck in an allocation that starts its probes by srun."""

from __future__ import annotations

import sys

from cluster import batch
from cluster.inside import (
    GATE,
    PLAIN_JOB,
    assert_broken_probe,
    assert_healthy,
    blocks,
    finding,
    findings,
    mapped,
    placed,
    reports,
)
from real.spoiling import BROKEN, SITE

PYTHON = f"{sys.prefix}/bin/python"
EACH_TASK = ("--nodes=4", "--ntasks-per-node=2")
NUMBERED = mapped("SLURM_", "PROCID NTASKS LOCALID", PYTHON, PLAIN_JOB)


def salloc(cluster, shape, *command, timeout=150):
    ended = cluster.run("node1", "salloc", *shape, *command, timeout=timeout)
    (report,) = reports(ended)
    return ended, report


def hide_python(cluster, node):
    assert cluster.run(node, "mv", PYTHON, f"{PYTHON}.hidden").code == 0


def test_a_healthy_allocation_is_healthy_in_an_uneven_layout(cluster):
    shape = ("--nodes=4", "--ntasks=8")
    ended, report = salloc(cluster, shape, "distcheck", "net", "--join-timeout", "30", "--format", "json")
    assert (ended.code, report["verdict"], findings(report)) == (0, "pass", []), report
    assert placed(report) == blocks(5, 1, 1, 1)
    assert (report["world"]["launcher"], report["missing_ranks"]) == ("slurm", [])
    assert {row["status"] for row in report["ranks"]} == {"ok"}


def test_a_batch_script_gates_and_its_job_runs_after_the_pass(cluster):
    # srun takes MASTER_ADDR and MASTER_PORT along from here to the job; distcheck meets where the job will.
    script = 'export MASTER_ADDR=node1 MASTER_PORT=29500 OMP_NUM_THREADS=1\nexec "$@"\n'
    ended = batch.run(cluster, script, "distcheck", *GATE, "--", "srun", *NUMBERED, timeout=200)
    report = assert_healthy([ended], blocks(2, 2), "slurm")
    assert findings(report, "info") == []


def test_a_node_without_python_is_excluded_and_the_job_does_not_run(cluster):
    hide_python(cluster, "node3")
    job = ("--", "srun", "touch", "/shared/ran")
    gate = ("distcheck", *GATE[:-4], "--join-timeout", "8", "--format", "json", "--exclude-file", "/tmp/exclude")
    ended, report = salloc(cluster, ("--nodes=3", "--ntasks-per-node=1"), *gate, *job)
    assert (ended.code, findings(report, "error")) == (40, ["launch-probe-missing"]), report
    found = finding(report, "launch-probe-missing")
    assert (found["nodes"], found["ranks"]) == (["node3"], [2])
    assert "No such file or directory" in found["message"]
    assert cluster.read("node1", "/tmp/exclude") == "node3\n"
    assert cluster.run("node1", "test", "-e", "/shared/ran").code == 1


def test_with_a_spare_node_the_good_ones_pass_and_the_bad_one_is_named(cluster):
    hide_python(cluster, "node1")
    look = ("distcheck", "env", "--nproc", "2", "--need", "3", "--join-timeout", "8", "--format", "json")
    # the batch shell is on node1, whose Python is gone: distcheck itself is started by another name of it
    look = (f"{PYTHON}.hidden", "-m", *look, "--python", PYTHON, "--exclude-file", "/tmp/exclude")
    ended, report = salloc(cluster, ("--nodes=4", "--ntasks-per-node=1"), *look)
    assert (ended.code, report["verdict"]) == (0, "warn"), report
    assert findings(report) == ["launch-node-left-out"]
    found = finding(report, "launch-node-left-out")
    assert (found["nodes"], found["evidence"]["good"]) == (["node1"], ["node2", "node3", "node4"])
    assert found["fix"]["commands"] == ["# add to srun: --nodelist=node2,node3,node4 --nodes=3"]
    moved = [(rank, f"node{int(node[-1]) + 1}", local) for rank, node, local in blocks(2, 2, 2)]
    assert placed(report) == moved
    assert cluster.read("node1", "/tmp/exclude") == "node1\n"


def test_sruns_own_output_is_shown_when_it_starts_nothing(cluster):
    ended, report = salloc(
        cluster, ("--nodes=2", "--ntasks-per-node=1"),
        "distcheck", "env", "--launcher-args=--constraint=no-such-feature", "--format", "json",
    )  # fmt: skip
    assert (ended.code, findings(report)) == (30, ["launch-failed"]), report
    found = finding(report, "launch-failed")
    assert found["scope"] == "job"
    assert "srun: error: Unable to create step for job" in found["message"]
    assert "--constraint=no-such-feature" in found["evidence"]["command"]


def test_a_node_whose_slurmd_died_after_the_allocation_is_named(cluster):
    script = "ssh node3 'kill -9 $(cat /run/slurmd.pid)' && exec \"$@\""
    look = ("distcheck", "env", "--timeout", "40", "--join-timeout", "30", "--format", "json")
    ended, report = salloc(cluster, EACH_TASK, "sh", "-c", script, "sh", *look)
    assert (ended.code, findings(report, "error")) == (20, ["launch-node-unreachable"]), report["findings"]
    found = finding(report, "launch-node-unreachable")
    assert (found["nodes"], found["ranks"]) == (["node3"], [4, 5])
    assert "Communication connection failure" in found["message"]
    assert report["exclude"]["nodes"] == []


def test_a_probe_in_which_distcheck_fails_is_named_and_no_node_is_blamed(cluster):
    cluster.write("node3", SITE, BROKEN)
    look = ("distcheck", "env", "--join-timeout", "8", "--format", "json")
    assert_broken_probe(*salloc(cluster, EACH_TASK, *look))


def test_a_signal_ends_the_tasks_and_gives_a_partial_report(cluster):
    hide_python(cluster, "node4")  # so that the others wait
    look = ("distcheck", "env", "--join-timeout", "40", "--format", "json")
    ended, report = salloc(cluster, EACH_TASK, "timeout", "--preserve-status", "--signal=TERM", "7", *look)
    assert ended.code == 143, report
    blamed = [(f["rule"], f["nodes"]) for f in report["findings"] if f["severity"] == "error"]
    assert blamed in ([], [("launch-probe-missing", ["node4"])]), "the others are not blamed for their end"
    assert ended.seconds < 35, "it does not wait for the roll call"
