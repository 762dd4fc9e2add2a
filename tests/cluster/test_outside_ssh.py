"""distcheck that starts its probes by ssh: the report is whole, whatever is wrong with the nodes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from cluster.inside import NODES, blocks, filtered, finding, findings, judged, placed, reports
from forms.sampled import sampled
from real.waiting import until

import distcheck

pytestmark = pytest.mark.without_slurm

PYTHON = f"{sys.prefix}/bin/python"
PACKAGE = str(Path(distcheck.__file__).parent)
SMALL = ("--sizes", "1M:1M", "--op", "all_reduce")


def look(cluster, *words, hosts="node[1-4]", **options):
    """Run distcheck for two ranks on each host; return how it ended and its one report."""
    return judged(cluster, *words, *(("--hosts", hosts, "--nproc", "2") if hosts else ()), **options)


def statuses(report) -> list[str]:
    return [row["status"] for row in sorted(report["ranks"], key=lambda row: row["rank"])]


def assert_healthy(ended, report, layout):
    assert (ended.code, report["verdict"], findings(report, "error", "warning", "info")) == (0, "pass", []), report
    assert placed(report) == layout
    assert (report["world"]["ranks"], report["world"]["launcher"]) == (len(layout), "ssh")
    assert (report["missing_ranks"], set(statuses(report))) == ([], {"ok"})


@pytest.mark.parametrize(
    ("words", "start", "hosts"),
    [
        (("env",), "head", "node[1-4]"),
        (("net",), "node2", "node[1-4]-data"),
        (("gate", *SMALL, "--join-timeout", "30"), "head", "node[1-4]"),
    ],
    ids=["env", "net on the other network from a node of the job", "gate"],
)
def test_a_healthy_job_is_healthy_and_nothing_is_left(cluster, words, start, hosts):
    assert_healthy(*look(cluster, *words, at=start, hosts=hosts), blocks(2, 2, 2, 2))


def test_a_command_runs_once_where_distcheck_was_started_and_only_after_a_pass(cluster):
    gate = ("distcheck", "gate", *SMALL, "--nproc", "1", "--format", "json", "--join-timeout", "5", "--hosts")
    then = ("--", "sh", "-c", "echo I run on $(hostname)")
    passed = cluster.run("head", *gate, "node[1-2]", *then, timeout=150)
    assert (passed.code, passed.out) == (0, "I run on head\n"), passed
    failed = cluster.run("head", *gate, "node1,node9", *then, timeout=150)
    assert (failed.code, failed.out) == (20, ""), failed


# -- nodes of which nothing comes


def test_nodes_without_login_are_named_with_sshs_output_beside_the_others_facts(cluster):
    cluster.cut("node3")
    cluster.kill_service("node4", "sshd")
    ended, report = look(cluster, "env", "--join-timeout", "100", "--timeout", "110")
    assert (ended.code, report["verdict"]) == (20, "unknown")
    assert report["seconds"] < 60, "the others are told that nobody else will come"
    assert set(findings(report)) == {"launch-node-unreachable"}
    by_node = {f["nodes"][0]: f for f in report["findings"]}
    assert {node: f["ranks"] for node, f in by_node.items()} == {"node3": [4, 5], "node4": [6, 7]}
    assert "ssh: connect to host node3 port 22: " in by_node["node3"]["message"]
    assert "ssh: connect to host node4 port 22: Connection refused" in by_node["node4"]["message"]
    assert statuses(report) == ["ok"] * 4 + ["missing"] * 4
    assert report["exclude"]["nodes"] == []


def test_nodes_that_fail_in_unlike_ways_each_have_their_own_cause(cluster):
    cluster.kill_service("node2", "sshd")
    assert cluster.run("node3", "mv", PACKAGE, f"{PACKAGE}.hidden").code == 0
    assert cluster.run("node4", "mv", PYTHON, f"{PYTHON}.hidden").code == 0
    ended, report = look(cluster, "env", "--join-timeout", "8", "--exclude-file", "/tmp/exclude")
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node3", "node4"])
    told = {f["nodes"][0]: f for f in report["findings"]}
    assert {node: (f["rule"], f["ranks"]) for node, f in told.items()} == {
        "node2": ("launch-node-unreachable", [2, 3]),
        "node3": ("launch-probe-missing", [4, 5]),
        "node4": ("launch-probe-missing", [6, 7]),
    }
    assert "port 22: Connection refused" in told["node2"]["message"]
    assert "No module named" in told["node3"]["message"]
    assert "No such file or directory" in told["node4"]["message"]
    assert statuses(report) == ["ok"] * 2 + ["missing"] * 6
    assert cluster.read("head", "/tmp/exclude") == "node3\nnode4\n"


def test_another_version_is_a_warning_and_one_that_does_not_understand_is_unreadable(cluster):
    def edit(node, change, file):
        assert cluster.run(node, "sed", "-i", change, f"{PACKAGE}/{file}").code == 0

    edit("node3", 's/^__version__ = .*/__version__ = "0.0.8"/', "__init__.py")
    ended, report = look(cluster, "env", "--join-timeout", "20")
    assert (ended.code, findings(report)) == (0, ["probe-version-differs"]), report
    assert finding(report, "probe-version-differs")["nodes"] == ["node3"]

    edit("node4", 's/^__version__ = .*/__version__ = "0.0.9"/', "__init__.py")
    edit("node4", "s/    master_addr: str/    leader: str/", "launch/remote/assignment.py")
    ended, report = look(cluster, "env", "--join-timeout", "20")
    assert (ended.code, findings(report, "error")) == (20, ["launch-probe-unreadable"]), report
    found = finding(report, "launch-probe-unreadable")
    assert (found["nodes"], found["ranks"]) == (["node4"], [6, 7])
    assert "0.0.9" in found["message"]


def test_the_report_is_whole_when_no_two_nodes_can_reach_each_other(cluster):
    drops = (f"ip saddr {network}.11-{network}.14 drop" for network in cluster.networks)
    filtered(cluster, NODES, "iif lo accept", *drops)
    ended, report = look(cluster, "env", "--join-timeout", "8", "--connect-timeout", "1")
    assert placed(report) == blocks(2, 2, 2, 2)
    assert (report["missing_ranks"], findings(report, "error")) == ([], ["net-master-unreachable"]), report
    assert finding(report, "net-master-unreachable")["ranks"] == [2, 3, 4, 5, 6, 7]
    assert ended.code in {20, 30}, report


def test_a_frozen_node_is_named_within_the_timeout(cluster):
    cluster.freeze("node3")
    ended, report = look(cluster, "env", "--timeout", "14")
    assert (ended.code, report["verdict"]) == (20, "unknown")
    (found,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert (found["nodes"], found["ranks"]) == (["node3"], [4, 5])
    assert found["rule"] in {"launch-node-unreachable", "launch-probe-silent"}
    assert report["seconds"] <= 19


# -- what the job will run in


def test_variables_setup_and_python_are_the_jobs_and_ranks_of_the_starting_shell_stay_there(cluster):
    cluster.write("head", "/shared/job python", f'#!/bin/sh\ntouch /tmp/used; exec {PYTHON} "$@"\n')
    inherited = {
        "NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth1", "RANK": "5", "LOCAL_RANK": "5",
        "PET_NNODES": "9", "TORCHELASTIC_RESTART_COUNT": "3",
    }  # fmt: skip
    words = ("--env", "NCCL_*", "--setup", "export NCCL_IB_DISABLE=1", "--python", "/shared/job python")
    ended, report = look(cluster, "env", *words, "--save", "/tmp/job.json", **inherited)
    assert (ended.code, findings(report)) == (0, []), report
    job = json.loads(cluster.read("head", "/tmp/job.json"))
    assert [(r["environment"]["RANK"], r["environment"]["LOCAL_RANK"]) for r in job["ranks"]] == [
        (str(rank), str(rank % 2)) for rank in range(8)
    ]
    for rank in job["ranks"]:
        names = rank["environment"]
        assert (names["NCCL_SOCKET_IFNAME"], names["NCCL_IB_DISABLE"]) == ("eth0", "1")
        assert not [name for name in names if name.startswith(("PET_", "TORCHELASTIC_", "GLOO_"))]
    assert {cluster.run(node, "test", "-e", "/tmp/used").code for node in NODES} == {0}


# -- endings


def left(cluster) -> dict[str, int]:
    """Return how many processes are on each node of the job, besides its services."""
    return {node: len(processes) for node, processes in cluster.processes().items() if node in NODES}


def has_met(cluster, followers: int) -> bool:
    """Whether so many nodes have come to the roll call of node1; what is known of them goes home before they do."""
    lines = cluster.netns("node1", "ss", "-Htn", "state", "established", "sport != :22").out.splitlines()
    ours, theirs = ({line.split()[n].rpartition(":")[0] for line in lines} for n in (-2, -1))
    return len(theirs - ours) >= followers


@pytest.mark.parametrize(
    "signum", sampled([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], signal.SIGINT, signal.SIGKILL)
)
def test_a_signal_ends_the_probes_of_all_nodes_and_gives_what_is_known(cluster, signum):
    hosts = ("--hosts", "node[1-4],node9", "--nproc", "2")
    waiting = ("--join-timeout", "60", "--connect-timeout", "60")  # nobody is node9, and so long it is waited for
    run = cluster.start("head", "distcheck", "env", *hosts, *waiting, "--format", "json")
    until(lambda: has_met(cluster, 3), 40)
    run.interrupt(signum)
    ended = run.wait(30)
    until(lambda: not left(cluster), 15)
    if signum == signal.SIGKILL:
        return
    (report,) = reports(ended)
    assert (ended.code, report["verdict"]) == (128 + signum, "unknown")
    assert placed(report)[:8] == blocks(2, 2, 2, 2)
    assert (report["exit_code"], report["findings"]) == (128 + signum, [])
    assert report["headline"].startswith(f"INTERRUPTED: {signal.Signals(signum).name} in ")
    assert report["host"] == "head"
