"""distcheck that starts its probes by ssh through gateways: node1 logs in to node2, and node3 to node4."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster.inside import NODES, blocks, findings, placed
from cluster.test_outside_ssh import SMALL, assert_healthy, has_met, left, look, statuses
from sampled import sampled
from waiting import until

import distcheck

pytestmark = pytest.mark.without_slurm

PACKAGE = str(Path(distcheck.__file__).parent)
HEAD = "10.77.0.1"
SETUP = ("--setup", "echo ${SSH_CONNECTION%% *} >> /tmp/from")
"""Notes on each node where its logins come from."""


@pytest.fixture
def tree(cluster):
    """A cluster with so low a threshold that its four nodes need a tree."""
    edit(cluster, "head", "s/^FROM_HOSTS = .*/FROM_HOSTS = 2/", "tree.py")
    return cluster


def edit(cluster, node, change, file):
    assert cluster.run(node, "sed", "-i", change, f"{PACKAGE}/launch/remote/{file}").code == 0


def logins(cluster) -> dict[str, set[str]]:
    """Return from which nodes distcheck was started on each."""
    names = {cluster.run("head", "getent", "hosts", node).out.split()[0]: node for node in ("head", *NODES)}
    return {node: {names[line] for line in cluster.read(node, "/tmp/from").split()} for node in NODES}


@pytest.mark.parametrize("words", [("env",), ("net",), ("gate", *SMALL, "--join-timeout", "30")], ids=lambda w: w[0])
def test_a_healthy_job_passes_through_gateways_and_nothing_is_left(tree, words):
    assert_healthy(*look(tree, *words, *SETUP), blocks(2, 2, 2, 2))
    assert logins(tree) == {"node1": {"head"}, "node2": {"node1"}, "node3": {"head"}, "node4": {"node3"}}


@pytest.mark.parametrize("file", ["/root/.ssh/id_ed25519", "/etc/ssh/ssh_known_hosts"])
def test_nodes_that_cannot_log_in_to_each_other_pass_by_direct_logins(tree, file):
    for node in NODES:
        assert tree.run(node, "rm", file).code == 0
    assert_healthy(*look(tree, "env", *SETUP), blocks(2, 2, 2, 2))
    assert logins(tree) == {node: {"head"} for node in NODES}


def test_a_gateway_that_hangs_delays_its_share_for_a_short_time_only(tree):
    edit(tree, "node1", "s/^import base64$/import base64, time; time.sleep(12)/", "gateway.py")
    ended, report = look(tree, "env", *SETUP)
    assert_healthy(ended, report, blocks(2, 2, 2, 2))
    assert report["seconds"] < 20
    assert logins(tree)["node2"] == {"head"}
    until(lambda: not left(tree), 20)


def test_nodes_without_distcheck_or_sshd_are_named_as_without_a_tree(tree):
    tree.kill_service("node2", "sshd")
    tree.kill_service("node3", "sshd")
    assert tree.run("node4", "mv", PACKAGE, f"{PACKAGE}.hidden").code == 0
    _, report = look(tree, "env", "--join-timeout", "8")
    told = {f["rule"]: f for f in report["findings"]}
    assert {rule: f["nodes"] for rule, f in told.items()} == {
        "launch-node-unreachable": ["node2", "node3"],
        "launch-probe-missing": ["node4"],
    }
    assert "port 22: Connection refused" in told["launch-node-unreachable"]["message"]
    assert statuses(report) == ["ok"] * 2 + ["missing"] * 6


@pytest.mark.parametrize("frozen", ["node2", "node3"], ids=["a host of a share", "a gateway's node"])
def test_a_frozen_node_costs_its_own_row_only(tree, frozen):
    tree.freeze(frozen)
    ended, report = look(tree, "env", "--timeout", "30")
    assert (ended.code, report["verdict"]) == (20, "unknown")
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    assert [f["nodes"] for f in errors] == [[frozen]]
    assert statuses(report).count("ok") == 6


@pytest.mark.parametrize("signum", sampled([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], signal.SIGKILL))
def test_a_signal_ends_gateways_and_probes_on_all_nodes(tree, signum):
    hosts = ("--hosts", "node[1-4],node9", "--nproc", "2")
    waiting = ("--join-timeout", "60", "--connect-timeout", "60")  # nobody is node9, and so long it is waited for
    run = tree.start("head", "distcheck", "env", *hosts, *waiting, "--format", "json")
    until(lambda: has_met(tree, 3), 40)
    run.interrupt(signum)
    began = time.monotonic()
    ended = run.wait(30)
    until(lambda: not left(tree), 15)
    assert time.monotonic() - began < 20
    if signum != signal.SIGKILL:
        assert ended.code == 128 + signum


def test_the_innocent_ranks_are_whole_when_some_go_directly(tree):
    assert tree.run("node1", "rm", "/root/.ssh/id_ed25519").code == 0
    ended, report = look(tree, "net", *SETUP)
    assert (ended.code, findings(report, "error"), placed(report)) == (0, [], blocks(2, 2, 2, 2))
    assert logins(tree) == {"node1": {"head"}, "node2": {"head"}, "node3": {"head"}, "node4": {"node3"}}
