"""`distcheck net` over interfaces and nodes that are not as they should be, each named on the right ranks and nodes."""

from __future__ import annotations

import pytest
from cluster.inside import NODES, finding, findings
from cluster.reaching import blamed, by_hand, net, on
from forms.sampled import sampled
from real.waiting import until

pytestmark = pytest.mark.without_slurm

EVERYWHERE = on(1, 2, 3, 4)
ETH0 = ["export NCCL_SOCKET_IFNAME==eth0"]
GLOO_ETH0 = ["export GLOO_SOCKET_IFNAME=eth0"]


# -- what was chosen


@pytest.mark.parametrize(
    ("value", "backend", "rule", "severity", "commands"),
    sampled(
        [
            ("eth9", "auto", "net-nccl-ifname-no-match", "error", ETH0),
            ("eth0, eth1", "auto", "net-nccl-ifname-syntax", "warning", ["export NCCL_SOCKET_IFNAME=eth0,eth1"]),
            ("docker,^lo", "auto", "net-nccl-ifname-syntax", "error", ETH0),
            ("^lo,^docker", "nccl", "net-nccl-ifname-syntax", "info", ["export NCCL_SOCKET_IFNAME=^lo,docker"]),
            ("^docker", "nccl", "net-nccl-picks-loopback-or-docker", "error", ETH0),
        ],
        ("eth9", "auto", "net-nccl-ifname-no-match", "error", ETH0),
        ("eth0, eth1", "auto", "net-nccl-ifname-syntax", "warning", ["export NCCL_SOCKET_IFNAME=eth0,eth1"]),
    ),
)
def test_an_ill_nccl_socket_ifname(cluster, value, backend, rule, severity, commands):
    ended, report = net(cluster, "--backend", backend, NCCL_SOCKET_IFNAME=value)
    assert ended.code == (30 if severity == "error" else 0)
    assert findings(report, "error", "warning", "info") == [rule], report["findings"]
    assert blamed(report, severity) == {rule: EVERYWHERE}
    assert finding(report, rule)["fix"]["commands"] == commands


@pytest.mark.parametrize("value", sampled(["eth9", "eth0, eth1", "^lo"], "eth9"))
def test_an_ill_gloo_socket_ifname(cluster, value):
    ended, report = net(cluster, GLOO_SOCKET_IFNAME=value)
    assert (ended.code, findings(report)) == (30, ["net-gloo-ifname-wrong"]), report["findings"]
    assert blamed(report) == {"net-gloo-ifname-wrong": EVERYWHERE}
    assert finding(report, "net-gloo-ifname-wrong")["fix"]["commands"] == GLOO_ETH0


def test_gloos_variable_does_not_matter_with_nccl_nor_nccls_with_gloo(cluster):
    for backend, name in (("nccl", "GLOO_SOCKET_IFNAME"), ("gloo", "NCCL_SOCKET_IFNAME")):
        ended, report = net(cluster, "--backend", backend, **{name: "eth9"})
        assert (ended.code, findings(report, "error", "warning", "info")) == (0, []), report["findings"]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    sampled(
        [
            ("NCCL_SOCKET_IFNAME", "eth9", "net-nccl-ifname-no-match"),
            ("NCCL_SOCKET_IFNAME", "lo", "net-nccl-picks-loopback-or-docker"),
            ("GLOO_SOCKET_IFNAME", "eth1 ", "net-gloo-ifname-wrong"),
            ("GLOO_SOCKET_IFNAME", "lo", "net-gloo-ifname-wrong"),
        ],
        ("NCCL_SOCKET_IFNAME", "lo", "net-nccl-picks-loopback-or-docker"),
        ("GLOO_SOCKET_IFNAME", "lo", "net-gloo-ifname-wrong"),
    ),
)
def test_a_variable_that_one_node_alone_has(cluster, name, value, rule):
    ended = by_hand(cluster, only={"node3": {name: value}})
    assert [(e.code, len(reports)) for e, reports in ended] == [(30, 1), (30, 0), (30, 0), (30, 0)]
    (report,) = ended[0][1]
    assert blamed(report) == {rule: ([2], ["node3"])}


def test_a_reachable_extra_network_on_one_node_is_not_a_fault(cluster):
    ended = by_hand(cluster, only={"node3": {"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}})
    assert [e.code for e, _ in ended] == [0] * 4
    assert blamed(ended[0][1][0]) == {}


@pytest.mark.parametrize(
    ("value", "rule"),
    sampled({"lo": ("lo", "net-nccl-picks-loopback-or-docker"), "ib0": ("ib0", "net-nccl-ifname-no-match")}, "lo"),
)
def test_a_configuration_file_of_nccls_on_one_node(bare, value, rule):
    bare.write("node3", "/etc/nccl.conf", f"NCCL_SOCKET_IFNAME={value}\n")
    ended, report = net(bare)
    assert (ended.code, blamed(report)) == (30, {rule: on(3)})
    assert "in NCCL's configuration file" in finding(report, rule)["message"]


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


def test_a_pulled_cable_of_the_configured_network(bare):
    link(bare, "node3", "eth1", "down")
    ended, report = net(bare, NCCL_SOCKET_IFNAME="eth1", GLOO_SOCKET_IFNAME="eth1")
    assert (ended.code, blamed(report)) == (
        30,
        {"net-nccl-ifname-no-match": on(3), "net-gloo-ifname-wrong": on(3)},
    )
    for rule in blamed(report):
        assert "is down" in finding(report, rule)["message"]


@pytest.mark.parametrize("port", sampled(["eth0", "eth1"], "eth0"))
def test_an_address_that_two_nodes_have(bare, port):
    address = f"{bare.networks[int(port[-1])]}.13"
    for node in ("head", "node1", "node2"):  # who has been spoken to keeps the address until it falls silent
        assert bare.netns(node, "ping", "-c", "1", "-W", "5", address).code == 0
    assert bare.netns("node4", "ip", "address", "add", f"{address}/24", "dev", port).code == 0
    env = {"NCCL_SOCKET_IFNAME": port, "GLOO_SOCKET_IFNAME": port}
    ended, report = net(bare, **env)
    assert (ended.code, blamed(report)) == (30, {"net-duplicate-ip": on(3, 4)})
    message = finding(report, "net-duplicate-ip")["message"]
    assert f"node3 ({port} 02:00:00:00:0{port[-1]}:0d) and node4 ({port} 02:00:00:00:0{port[-1]}:0e)" in message
    assert address in message
