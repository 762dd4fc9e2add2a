"""`distcheck net` where paths lose packets or are slow: the node, the direction, and nothing on a healthy cluster."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from cluster import delay
from cluster.inside import (
    NODES,
    blocks,
    change,
    filtered,
    finding,
    findings,
    limit,
    placed,
)
from cluster.reaching import by_hand, net, on, rename

HEAVY = "meta length > 1400 drop"
FROM_NODE2 = "ip saddr 10.77.0.12"
OTHERS = ("node1", "node3", "node4")


# -- a healthy cluster, at rest and at work


@pytest.fixture
def at_work(cluster):
    """Have something else use the CPUs of two nodes."""
    busy = [cluster.start(node, "sh", "-c", "while :; do :; done") for node in ("node2", "node3")]
    yield
    for loop in busy:
        loop.interrupt(signal.SIGKILL)
        loop.wait()


def assert_healthy(ended, report):
    assert (ended.code, report["verdict"], findings(report)) == (0, "pass", []), report["findings"]
    assert placed(report) == blocks(2, 2, 2, 2)


def test_a_healthy_cluster_is_healthy(cluster):
    assert_healthy(*net(cluster))


def test_two_nodes_whose_cpus_are_busy_are_healthy(cluster, at_work):
    assert_healthy(*net(cluster))


def told_by_hand(cluster):
    """Return the exit codes of ranks that were started by hand, and their one report."""
    ended = by_hand(cluster)
    (report,) = [report for _, told in ended for report in told]
    return {e.code for e, _ in ended}, report


# -- packet sizes: ssh itself would hang, so that one rank is started on each node by hand


def offload(cluster, state):
    for node in NODES:
        change(cluster, node, "ethtool", "-K", "eth0", "tso", state, "gso", state)


@pytest.fixture
def single_segments(cluster):
    """Have the kernel hand on segment by segment, as a real link does: whole bursts pass whatever a port carries."""
    offload(cluster, "off")
    yield
    offload(cluster, "on")


def switch_port_of_node2_carries_1000(cluster):
    assert cluster.switch("ip", "link", "set", "node2-eth0", "mtu", "1000").code == 0


NATURE = "although small ones arrive"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda cluster: filtered(cluster, "node2", HEAVY),
            f"node1, node3 and node4 cannot send full-size packets to node2 {NATURE}, but the other direction works",
        ),
        (
            lambda cluster: filtered(cluster, OTHERS, f"{FROM_NODE2} {HEAVY}"),
            f"node2 cannot send full-size packets to node1, node3 and node4 {NATURE}, but the other direction works",
        ),
        (
            switch_port_of_node2_carries_1000,
            f"node2 and node1, node3 and node4 cannot send full-size packets to each other {NATURE} (",
        ),
    ],
    ids=["into node2", "out of node2", "at the switch port, both ways"],
)
def test_a_black_hole_of_full_packets_is_named_with_its_direction_and_the_others_are_innocent(
    cluster, single_segments, spoil, words
):
    spoil(cluster)
    codes, report = told_by_hand(cluster)
    assert (codes, findings(report)) == ({20}, ["net-mtu-mismatch-ip"]), report["findings"]
    found = finding(report, "net-mtu-mismatch-ip")
    assert (found["severity"], found["ranks"], found["nodes"]) == ("error", [1], ["node2"])
    assert found["message"].startswith(words)
    assert "(connected, then no data was acknowledged for " in found["message"]


def test_full_packets_that_arrive_nowhere_are_the_sites_fault(cluster):
    filtered(cluster, NODES, f"iifname eth0 {HEAVY}")
    codes, report = told_by_hand(cluster)
    assert (codes, findings(report)) == ({30}, ["net-mtu-mismatch-ip"]), report["findings"]
    found = finding(report, "net-mtu-mismatch-ip")
    assert (found["scope"], found["ranks"]) == ("system", [0, 1, 2, 3])
    assert found["message"].startswith(f"no node can send full-size packets to any other {NATURE}")


def test_jumbo_frames_that_one_node_alone_has_are_a_warning_there(cluster):
    change(cluster, "node1", "ip", "link", "set", "eth0", "mtu", "9000")
    assert cluster.switch("ip", "link", "set", "node1-eth0", "mtu", "9000").code == 0
    ended, report = net(cluster)
    assert (ended.code, findings(report)) == (0, ["net-mtu-mismatch-ip"]), report["findings"]
    found = finding(report, "net-mtu-mismatch-ip")
    assert (found["severity"], (found["ranks"], found["nodes"])) == ("warning", on(1))
    assert "node1 sends packets of up to 9000 bytes, but datagrams of that size do not arrive" in found["message"]


# -- networks and routes


@pytest.fixture
def guest(cluster):
    """Make node1 a virtual machine: the switch is its host, which forwards one port and translates what it sends."""
    nat = "add table ip t; add chain ip t in { type nat hook prerouting priority -100; }; "
    nat += "add rule ip t in ip daddr 10.77.0.11 tcp dport 29500 dnat to 172.20.0.2; "
    nat += "add chain ip t out { type nat hook postrouting priority 100; }; "
    nat += "add rule ip t out ip saddr 172.20.0.0/24 masquerade"
    host = "ip link set node1-eth0 nomaster; ip address add 172.20.0.1/24 dev node1-eth0; "
    host += f"ip address add 10.77.0.11/24 dev eth0; sysctl -qw net.ipv4.ip_forward=1; nft '{nat}'"
    assert cluster.switch("sh", "-ec", host).code == 0
    inside = "ip address flush dev eth0; ip address add 172.20.0.2/24 dev eth0; ip route add default via 172.20.0.1"
    change(cluster, "node1", "sh", "-ec", inside)
    rename(cluster, "node1", "node1", "172.20.0.2")
    yield
    assert cluster.switch("sh", "-ec", "nft flush ruleset; ip address flush dev eth0").code == 0


def test_rank_0_behind_one_forwarded_port_is_no_firewall(cluster, guest):
    codes, report = told_by_hand(cluster)
    assert (codes, findings(report)) == ({30}, ["net-subnet-mismatch"]), report["findings"]
    found = finding(report, "net-subnet-mismatch")
    assert (found["severity"], found["ranks"], found["nodes"]) == ("error", [0], ["node1"])
    assert "the others see node1 at 10.77.0.11, which none of its interfaces has, and node" in found["message"]
    assert "cannot reach its own address 172.20.0.2 (unreachable at 172.20.0.2:" in found["message"]
    (command,) = found["fix"]["commands"]
    assert command.startswith("ip -brief address  # on node1: ")


# -- losses and rates


def test_a_node_to_which_packets_are_lost_is_named_with_the_direction(cluster):
    """On a busy machine a run may prove the loss on some of the paths only (docs/reachability.md), never on others.

    The filter sees up to 64 KB at a time, and drops all of that or nothing.
    """
    filtered(cluster, "node2", "iifname eth0 numgen random mod 100 < 2 drop")
    ended, report = net(cluster)
    assert (ended.code, findings(report)) == (20, ["net-packet-loss"]), report["findings"]
    found = finding(report, "net-packet-loss")
    assert "node2" in found["nodes"]
    senders = r"node[134](?:, node[34])?(?: and node[34])?"
    words = rf"{senders} cannot send to node2 without packet loss, but the other direction works \("
    assert re.match(words, found["message"]), found["message"]


def test_a_node_with_a_slow_link_is_named(cluster):
    limit(cluster, "node2", 100)
    ended, report = net(cluster)
    assert (ended.code, findings(report)) == (0, ["net-nic-down-or-slow"]), report["findings"]
    found = finding(report, "net-nic-down-or-slow")
    assert (found["severity"], (found["ranks"], found["nodes"])) == ("warning", on(2))
    rate = r"at most \d+ MB/s to(?: and from)? the others; median between the others: \d+ MB/s"
    assert re.fullmatch(f"the network of node2 is slow: {rate}", found["message"]), found["message"]


def test_a_node_that_answers_late_is_named_with_its_round_trip_and_nothing_else_is_blamed(cluster):
    late = cluster.start("node3", sys.executable, delay.__file__, "150")
    assert late.process.stdout.readline() == "ready\n"
    ended, report = net(cluster)
    late.interrupt(signal.SIGKILL)
    assert (ended.code, findings(report)) == (20, ["net-high-latency"]), report["findings"]
    found = finding(report, "net-high-latency")
    assert (found["severity"], (found["ranks"], found["nodes"])) == ("error", on(3))
    assert re.fullmatch(r"the round trip to node3 is 1[5-9]\d ms, between the others 0\.\d+ ms", found["message"])
    assert "tracepath node3" in found["fix"]["commands"]
    (gap,) = [gap for gap in report["not_checked"] if gap["rule"] == "net-nic-down-or-slow"]
    assert (gap["ranks"], gap["nodes"]) == on(3)


def test_equally_slow_links_blame_no_node(cluster):
    for node in NODES:
        limit(cluster, node, 100)
    assert_healthy(*net(cluster))
