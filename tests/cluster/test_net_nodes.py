"""`distcheck net` over interfaces and nodes that are not as they should be, each named on the right ranks and nodes."""

from __future__ import annotations

import pytest
from cluster.inside import NODES, finding, findings
from cluster.reaching import blamed, by_hand, net, on
from real.waiting import until

pytestmark = pytest.mark.without_slurm

EVERYWHERE = on(1, 2, 3, 4)
ETH0 = ["export NCCL_SOCKET_IFNAME==eth0"]


# -- what was chosen


def test_an_ill_nccl_socket_ifname(cluster):
    ended, report = net(cluster, NCCL_SOCKET_IFNAME="eth9")
    assert ended.code == 30
    assert findings(report, "error", "warning", "info") == ["net-nccl-ifname-no-match"], report["findings"]
    assert blamed(report) == {"net-nccl-ifname-no-match": EVERYWHERE}
    assert finding(report, "net-nccl-ifname-no-match")["fix"]["commands"] == ETH0


def test_an_ill_gloo_socket_ifname(cluster):
    ended, report = net(cluster, GLOO_SOCKET_IFNAME="eth9")
    assert (ended.code, findings(report)) == (30, ["net-gloo-ifname-wrong"]), report["findings"]
    assert blamed(report) == {"net-gloo-ifname-wrong": EVERYWHERE}
    assert finding(report, "net-gloo-ifname-wrong")["fix"]["commands"] == ["export GLOO_SOCKET_IFNAME=eth0"]


def test_a_variable_that_one_node_alone_has(cluster):
    ended = by_hand(cluster, only={"node3": {"NCCL_SOCKET_IFNAME": "lo"}})
    assert [(e.code, len(reports)) for e, reports in ended] == [(30, 1), (30, 0), (30, 0), (30, 0)]
    (report,) = ended[0][1]
    assert blamed(report) == {"net-nccl-picks-loopback-or-docker": ([2], ["node3"])}


def test_a_reachable_extra_network_on_one_node_is_not_a_fault(cluster):
    ended = by_hand(cluster, only={"node3": {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}})
    assert [e.code for e, _ in ended] == [0] * 4
    assert blamed(ended[0][1][0]) == {}


def test_a_configuration_file_of_nccls_on_one_node(bare):
    bare.write("node3", "/etc/nccl.conf", "NCCL_SOCKET_IFNAME=lo\n")
    ended, report = net(bare)
    assert (ended.code, blamed(report)) == (30, {"net-nccl-picks-loopback-or-docker": on(3)})
    assert "in NCCL's configuration file" in finding(report, "net-nccl-picks-loopback-or-docker")["message"]


@pytest.fixture
def bridged(bare):
    """The same nodes with a bridge of containers, which is gone after the test: a node is sooner healed without it."""
    lines = """link add br-1f2e index 2 type bridge
        link add veth1 type veth peer name veth2
        link set veth1 master br-1f2e up
        link set veth2 up
        address add 172.18.0.1/16 broadcast + dev br-1f2e
        link set br-1f2e up"""
    for node in NODES:
        assert bare.netns(node, "ip", "-batch", "-", text=lines).code == 0
    for node in NODES:  # the kernel sees within a second that a link is up
        until(lambda node=node: "state UP" in bare.netns(node, "ip", "link", "show", "br-1f2e").out)
    yield bare
    for node in NODES:
        assert bare.netns(node, "ip", "-batch", "-", text="link delete veth1\nlink delete br-1f2e").code == 0


def test_a_bridge_of_containers_that_nccl_takes_first(bridged):
    ended, report = net(bridged, "--backend", "nccl")
    assert (ended.code, blamed(report)) == (30, {"net-nccl-auto-wrong-iface": EVERYWHERE})
    assert "br-1f2e (172.18.0.1)" in finding(report, "net-nccl-auto-wrong-iface")["message"]
    assert finding(report, "net-nccl-auto-wrong-iface")["fix"]["commands"] == ETH0
    ended, report = net(bridged, "--backend", "nccl", NCCL_SOCKET_IFNAME="=eth0")
    assert (ended.code, blamed(report)) == (0, {}), report["findings"]


# -- links and nodes


def link(cluster, node, port, state):
    assert cluster.switch("ip", "link", "set", f"{node}-{port}", state).code == 0


def test_a_cable_that_hangs_loose_a_frozen_node_and_one_without_power(bare):
    link(bare, "node2", "eth0", "down")
    bare.freeze("node3")
    bare.cut("node4")
    ended, report = net(bare, "--join-timeout", "6")
    assert (ended.code, report["verdict"], report["exclude"]["nodes"]) == (20, "unknown", [])
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    assert sorted(node for f in errors for node in f["nodes"]) == ["node2", "node3", "node4"]
    assert {node: rank for f in errors for node, rank in zip(f["nodes"], f["ranks"][::2], strict=True)} == {
        "node2": 2, "node3": 4, "node4": 6,
    }  # fmt: skip
    assert {f["rule"] for f in errors} <= {"launch-node-unreachable", "launch-probe-silent"}
    assert report["missing_ranks"] == [2, 3, 4, 5, 6, 7]
    bare.thaw("node3")


@pytest.mark.parametrize("down", ["node1", "node3"])
def test_a_nodes_cable_pulled_before_a_start_by_hand(bare, down):
    link(bare, down, "eth0", "down")
    ended = by_hand(bare, "--join-timeout", "4")
    assert [e.code for e, _ in ended] == [20] * 4
    lonely = [1, 2, 3] if down == "node1" else [2]
    (of_zero,) = ended[0][1]
    assert blamed(of_zero) == {"env-rank-missing": (lonely, [])}
    for rank in lonely:
        (own,) = ended[rank][1]
        assert blamed(own) == {"net-master-unreachable": ([rank], [NODES[rank]])}


def test_rank_0s_interface_that_is_down_is_reported_for_its_node(bare):
    assert bare.netns("node1", "ip", "link", "set", "eth0", "down").code == 0
    ended, report = net(bare, "--join-timeout", "6")
    assert (ended.code, report["verdict"]) == (20, "unknown")
    assert list(blamed(report).values()) == [on(1)]
    assert set(blamed(report)) <= {"launch-node-unreachable", "launch-probe-silent"}


def test_an_address_that_two_nodes_have(bare):
    address = f"{bare.networks[0]}.13"
    for node in ("head", "node1", "node2"):  # who has been spoken to keeps the address until it falls silent
        assert bare.netns(node, "ping", "-c", "1", "-W", "5", address).code == 0
    assert bare.netns("node4", "ip", "address", "add", f"{address}/24", "dev", "eth0").code == 0
    ended, report = net(bare, NCCL_SOCKET_IFNAME="eth0", GLOO_SOCKET_IFNAME="eth0")
    assert (ended.code, blamed(report)) == (30, {"net-duplicate-ip": on(3, 4)})
    message = finding(report, "net-duplicate-ip")["message"]
    assert "node3 (eth0 02:00:00:00:00:0d) and node4 (eth0 02:00:00:00:00:0e)" in message
    assert address in message
