"""`distcheck net` over names on real networks: healthy ones, and each fault named on the right ranks and nodes."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from cluster.inside import GATE, JOB, NODES, blocks, filtered, finding, findings, judged, placed
from cluster.reaching import blamed, by_hand, net, on, rename
from forms.sampled import sampled

pytestmark = pytest.mark.without_slurm

PLACES = blocks(2, 2, 2, 2)
NETWORKS = {
    "10.x": ("10.77.0", "10.78.0"),
    "192.168.x": ("192.168.77", "192.168.78"),
    "IPv6": ("fd00:77::", "fd00:78::"),
}
OTHER_NETWORK = {"MASTER_ADDR": "node1-data", "NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"}


def assert_healthy(ended, report):
    assert (ended.code, report["verdict"], findings(report, "error", "warning")) == (0, "pass", []), report["findings"]
    assert (placed(report), report["missing_ranks"]) == (PLACES, [])


@pytest.mark.parametrize("networks", sampled({name: (both,) for name, both in NETWORKS.items()}, "IPv6"))
def test_a_healthy_cluster_is_healthy_on_both_its_networks(bare_on, networks):
    cluster = bare_on(networks)
    for network, env in ((networks[0], {}), (networks[1], OTHER_NETWORK)):
        ended, report = net(cluster, "--save", "/tmp/job.json", **env)
        assert_healthy(ended, report)
        job = json.loads(cluster.read("head", "/tmp/job.json"))
        met = [a for p in job["processes"] for a in p["attempts"] if a["door"] == "master" and a["outcome"] == "met"]
        assert len(met) == 4  # rank 0's process, too, knocks at its own
        assert {t["outcome"] for t in job["peers"]} == {"met"}
        assert all(where["address"].startswith(network) for where in (*met, *job["peers"]))
    ended, report = judged(cluster, *GATE, "--hosts", "node[1-2]", "--nproc", "1", timeout=240)
    assert (ended.code, placed(report), findings(report)) == (0, blocks(1, 1), []), report["findings"]


# -- the own name


def ran(cluster, bad=""):
    """Run a real job with one rank on each node; the bad one's node may hang, and is ended when the others are."""
    env = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    command = ("timeout", "--signal=KILL", "60", sys.executable, JOB)
    running = {n: cluster.start(n, *command, env={**env, "RANK": str(r)}) for r, n in enumerate(NODES)}
    ended = {node: run.wait(90) for node, run in running.items() if node != bad}
    if bad:
        running[bad].interrupt(signal.SIGTERM)
        running[bad].wait(30)
    return ended


@pytest.mark.parametrize("networks", sampled(["10.x", "192.168.x"]))
def test_an_own_name_on_the_loopback_works_by_luck_or_not_as_gloo_shows(bare_on, networks):
    cluster = bare_on(NETWORKS[networks])
    rename(cluster, "node2", "node2", "127.0.1.1")
    ended, report = net(cluster)
    found = finding(report, "net-hostname-loopback")
    assert (found["ranks"], found["nodes"]) == on(2)
    assert "127.0.1.1" in found["message"]
    assert found["fix"]["commands"] == ["export GLOO_SOCKET_IFNAME=eth0"]
    if networks == "10.x":
        assert (ended.code, found["severity"], findings(report, "error")) == (0, "warning", [])
        assert {node: (e.code, e.out) for node, e in ran(cluster).items()} == {
            node: (0, f"rank {rank} of 4 summed up 10\n") for rank, node in enumerate(NODES)
        }
    else:
        assert (ended.code, blamed(report)) == (30, {"net-hostname-loopback": on(2)})
        healthy = ran(cluster, bad="node2")
        assert all(e.code for e in healthy.values()), healthy
        assert any("127.0.1.1" in e.err for e in healthy.values()), healthy
        assert_healthy(*net(cluster, GLOO_SOCKET_IFNAME="eth0"))


# -- the name of the meeting place


def test_a_master_addr_that_leads_elsewhere_on_one_node(bare):
    rename(bare, "node3", "node1", f"{bare.networks[0]}.14")
    ended, report = net(bare, "--join-timeout", "4")
    assert (ended.code, blamed(report)) == (30, {"net-dns-differs": on(3)})
    assert f"node1 resolves to {bare.networks[0]}.14" in finding(report, "net-dns-differs")["message"]


def test_a_master_addr_outside_the_job_is_reported_by_name(bare):
    rename(bare, "node3", "node1", f"{bare.networks[0]}.10")
    (zero, (report,)), _, (_, (lost,)), _ = by_hand(bare, "--join-timeout", "4")
    assert (zero.code, blamed(report)) == (20, {"env-rank-missing": ([2], [])})
    assert blamed(lost) == {"net-master-refused": ([2], ["node3"])}  # who is alone cannot know better
    found = finding(lost, "net-master-refused")
    assert f"connection refused at node1 ({bare.networks[0]}.10:29500)" in found["message"]
    assert found["fix"]["commands"] == ["ssh node3 getent ahosts node1"]


def test_a_master_addr_that_one_node_does_not_know(bare):
    rename(bare, "node3", "node1", "")
    ended, report = net(bare, "--join-timeout", "4")
    assert (ended.code, blamed(report)) == (30, {"env-master-addr-unresolvable": on(3)})


def test_a_master_addr_of_another_node_than_rank_0s(cluster):
    ended, report = net(cluster, "--join-timeout", "10", MASTER_ADDR="node2")
    assert (ended.code, blamed(report)) == (30, {"env-master-addr-not-rank0-host": ([0], ["node1"])})
    found = finding(report, "env-master-addr-not-rank0-host")
    assert found["fix"]["commands"] == ["export MASTER_ADDR=node1"]
    assert "MASTER_ADDR node2 is 10.77.0.12" in found["message"]


def test_every_address_of_the_master_is_the_same_master_and_joined_at_once(bare):
    first, _ = bare.networks
    own = {"node1": "127.0.0.1", "node2": f"{first}.11", "node3": "node1-data", "node4": "node1.cluster.example"}
    rename(bare, "node4", "node1.cluster.example", f"{first}.11")
    (zero, (report,)), *others = by_hand(bare, only={node: {"MASTER_ADDR": address} for node, address in own.items()})
    assert [zero.code, *(ended.code for ended, _ in others)] == [0, 0, 0, 0]
    assert (report["verdict"], findings(report)) == ("pass", []), report["findings"]
    assert report["seconds"] < 8  # half of --join-timeout is 10 s
    assert blamed(report, "info") == {}


@pytest.fixture
def dual(bare):
    """The same nodes with IPv6 addresses besides, to which their names lead as well; they are gone after the test."""
    both = "".join(f"fd00:77::1{other[-1]} {other}\n" for other in NODES)
    for node in NODES:
        assert bare.netns(node, "ip", "address", "add", f"fd00:77::1{node[-1]}/64", "dev", "eth0", "nodad").code == 0
        bare.write(node, "/etc/hosts", bare.read(node, "/etc/hosts") + both)
    yield bare
    for node in NODES:  # a node is sooner healed without it; a test may have deleted one
        bare.netns(node, "ip", "address", "delete", f"fd00:77::1{node[-1]}/64", "dev", "eth0")


def test_a_dead_ipv6_address_of_master_addr_is_reported_by_every_node_that_tries_it(dual):
    filtered(dual, "node1", "meta nfproto ipv6 iifname eth0 tcp dport 29500 drop")
    ended, report = net(dual)
    assert (ended.code, blamed(report)) == (0, {}), report
    assert blamed(report, "warning") == {"net-ipv4-ipv6-mixed": on(2, 3, 4)}, report


# -- names of hosts


def test_equal_host_names_of_two_machines_are_an_error_only_if_nccl_confuses_them(bare):
    for node in ("node3", "node4"):
        bare.write(
            node,
            "/tmp/disguise",
            "#!/bin/sh -e\nhostname node\nmkdir /tmp/upper /tmp/work\n"
            "mount -t overlay -o lowerdir=/sys/class,upperdir=/tmp/upper,workdir=/tmp/work overlay /sys/class\n"
            f"mkdir -p /sys/class/dmi/id\necho {node} > /sys/class/dmi/id/product_uuid\n",
        )
        assert bare.run(node, "/tmp/disguise").code == 0
        rename(bare, node, "node", f"{bare.networks[0]}.1{node[-1]}")
    ended, report = net(bare, "--backend", "nccl")
    assert (ended.code, list(blamed(report))) == (30, ["net-duplicate-hostname"])
    assert finding(report, "net-duplicate-hostname")["ranks"] == on(3, 4)[0]

    bare.write("node4", "/tmp/boot_id", "00000000-0000-4000-8000-000000000004\n")
    assert bare.run("node4", "mount", "--bind", "/tmp/boot_id", "/proc/sys/kernel/random/boot_id").code == 0
    ended, report = net(bare, "--backend", "nccl")
    assert (ended.code, findings(report)) == (0, [])
    assert "net-duplicate-hostname" not in blamed(report, "info")


def test_hanging_reverse_dns_is_a_warning_and_delays_only_briefly(bare):
    filtered(bare, "head", "udp dport 53 drop")
    network = bare.networks[0]
    for number, node in enumerate(("head", *NODES), start=10):
        bare.write(node, "/etc/hosts", f"127.0.0.1 localhost\n{network}.{number} {node}\n")
        bare.write(node, "/etc/resolv.conf", f"nameserver {network}.10\noptions timeout:20 attempts:5\n")
        assert bare.run(node, "sed", "-i", "s/^hosts:.*/hosts: files dns/", "/etc/nsswitch.conf").code == 0
    ended, report = net(bare, hosts=f"{network}.[11-14]")
    assert (ended.code, findings(report)) == (0, ["net-reverse-dns-slow"]), report["findings"]
    assert blamed(report, "warning") == {"net-reverse-dns-slow": on(1, 2, 3, 4)}
    assert "without an answer" in finding(report, "net-reverse-dns-slow")["message"]
    assert report["seconds"] < 20  # of one look-up alone
