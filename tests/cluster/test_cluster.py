"""The test cluster is what it says it is, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cluster import cgroup, instances
from cluster.node import ClusterError

_TESTS = Path(__file__).parents[1]
_REJECT_SSH = "table ip t { chain c { type filter hook input priority 0; tcp dport 22 reject with tcp reset; }; }"


def _everyone(cluster):
    return ("head", *cluster.nodes)


def _mounts():
    return Path("/proc/self/mountinfo").read_text()


def _traces(prefix):
    """Return what is seen of a cluster from outside."""
    found = [process.cmdline() for process in psutil.process_iter() if any(prefix in a for a in _cmdline(process))]
    found += [path for path in (instances.FOLDERS / prefix, cgroup.hierarchy() / prefix) if path.exists()]
    return found + [line for line in _mounts().splitlines() if prefix in line]


def _cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_namespaces_are_not_shared(cluster):
    kinds = ("net", "uts", "ipc", "pid", "mnt")
    owners = {kind: {str(Path(f"/proc/self/ns/{kind}").readlink())} for kind in kinds}
    for node in _everyone(cluster):
        for kind in kinds:
            owners[kind].add(cluster.run(node, "readlink", f"/proc/self/ns/{kind}").out.strip())
    assert {kind: len(spaces) for kind, spaces in owners.items()} == dict.fromkeys(kinds, 6)


@pytest.mark.parametrize("folder", ["/etc", "/tmp", "/dev/shm", "/run", "/var", sys.prefix, str(_TESTS)])
def test_what_is_written_on_a_node_is_seen_there_only(cluster, folder):
    path = f"{folder}/written-by-{cluster.prefix}"
    cluster.write("node1", path, "mine")
    assert cluster.read("node1", path) == "mine"
    assert cluster.run("node2", "test", "-e", path).code == 1
    assert not Path(path).exists()


def test_the_environment_of_a_program_is_minimal(cluster, monkeypatch):
    monkeypatch.setenv("DISTCHECK_TIMEOUT", "1")
    monkeypatch.setenv("SLURM_PROCID", "3")
    ended = cluster.run("node1", "env", env={"RANK": "0"})
    assert {line.partition("=")[0] for line in ended.out.splitlines()} == {
        "PATH", "HOME", "USER", "LANG", "RANK", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    }  # fmt: skip


def test_no_route_leads_out(cluster):
    for node in _everyone(cluster):
        routes = cluster.run(node, "ip", "route").out.splitlines()
        assert {route.split()[0] for route in routes} == {"10.77.0.0/24", "10.78.0.0/24"}
        assert "unreachable" in cluster.run(node, "ping", "-c1", "-W1", "192.0.2.1").err
    links = cluster.switch("ip", "-o", "link").out.splitlines()
    assert len(links) == 1 + 2 + 2 * 5  # lo, the bridges, and two ports for each node and the head


def test_addresses_may_be_of_ipv6_alone(make_cluster):
    cluster = make_cluster(nodes=2, slurm=False, networks=("fd00:77::", "fd00:78::"))
    assert "eth" not in cluster.run("node1", "ip", "-4", "-o", "address").out
    for name in ("node2", "node2-data", "fd00:78::12"):
        assert cluster.run("node1", "ssh", name, "hostname").out == "node2\n"


def test_clusters_side_by_side_do_not_meet(cluster, make_cluster):
    other = make_cluster(nodes=2, networks=cluster.networks)
    other.write("node1", "/tmp/whose", "other")
    assert cluster.run("node2", "ssh", "node1", "cat /tmp/whose").code == 1
    assert other.run("node2", "ssh", "node1", "cat /tmp/whose").out == "other"
    assert other.run("node1", "ping", "-c1", "-W1", cluster.networks[0] + ".13").code == 1
    assert len(other.run("head", "sinfo", "-h", "-N").out.splitlines()) == 2
    assert len(cluster.run("head", "sinfo", "-h", "-N").out.splitlines()) == 4


def test_nothing_is_left_of_a_cluster(make_cluster):
    mounts = _mounts()
    cluster = make_cluster(nodes=2)
    assert _traces(cluster.prefix)
    cluster.start("node1", "sleep", "1000")
    cluster.start("node1", "srun", "-N2", "sleep", "1000")
    cluster.freeze("node2")
    cluster.conclude()
    assert _traces(cluster.prefix) == []
    assert _mounts() == mounts


def test_nothing_is_left_of_a_cluster_that_did_not_come_up(make_cluster):
    before = set(instances.FOLDERS.glob(f"{instances.NAME}*"))
    with pytest.raises(ClusterError, match="slurm"):
        make_cluster(nodes=1, lines={"NoSuchParameter": "1"})
    for folder in set(instances.FOLDERS.glob(f"{instances.NAME}*")) - before:  # only other workers' may be new
        assert (folder / "owner").read_text().split()[0] != str(os.getpid())


def test_a_cluster_dies_with_its_owner_and_the_next_one_sweeps_the_rest(make_cluster):
    script = "from cluster.cluster import Cluster; print(Cluster(1).prefix, flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
    )  # fmt: skip
    with owner:
        prefix = owner.stdout.readline().strip()
        events = cgroup.hierarchy() / prefix / "cgroup.events"
        assert "populated 1" in events.read_text()
        owner.kill()
    until = time.monotonic() + 20
    while events.exists() and "populated 1" in events.read_text():  # another worker's cluster may sweep it first
        assert time.monotonic() < until
        time.sleep(0.01)
    make_cluster(nodes=1, slurm=False)
    assert _traces(prefix) == []


def test_a_filter_is_gone_after_healing(cluster):
    assert cluster.netns("node2", "nft", "-f", "-", text=_REJECT_SSH).code == 0
    assert "Connection refused" in cluster.run("node1", "ssh", "node2", "true").err
    job = cluster.start("node2", "sleep", "1000")
    cluster.heal()
    assert cluster.run("node1", "ssh", "node2", "hostname").out == "node2\n"
    os.kill(job.pid, 0)  # the node was not started anew for that
    job.interrupt(signal.SIGTERM)
    assert job.wait().code == -signal.SIGTERM


@pytest.mark.parametrize(
    "fault",
    [
        ["ip", "link", "set", "eth0", "down"],
        ["ip", "link", "set", "eth0", "mtu", "1000"],
        ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "100kbit", "burst", "4kb", "latency", "50ms"],
        ["ip", "address", "add", "10.77.0.13/24", "dev", "eth0"],
        ["ethtool", "-K", "eth0", "tso", "off"],
        ["ip", "link", "set", "node2-eth0", "down"],
        ["ip", "link", "set", "node2-eth0", "mtu", "1000"],
    ],
    ids=lambda fault: "-".join(fault[:1] + fault[-3:]),
)
def test_a_fault_of_the_network_is_gone_after_healing(cluster, fault):
    def links():
        return [cluster.run("node2", "ethtool", "-k", "eth0").out, cluster.run("node2", "ip", "-4", "-o", "a").out]

    def ports():
        return [line.split("mtu")[1].split("group")[0] for line in cluster.switch("ip", "-o", "link").out.splitlines()]

    before = links(), sorted(ports())
    ended = cluster.switch(*fault) if "node2-eth0" in fault else cluster.netns("node2", *fault)
    assert ended.code == 0, ended
    cluster.heal()
    assert (links(), sorted(ports())) == before
    assert "tbf" not in cluster.netns("node2", "tc", "qdisc").out
    assert cluster.run("node1", "ping", "-c1", "-W5", "node2").code == 0


@pytest.mark.parametrize(
    "fault",
    [
        "rm /etc/ssh/ssh_known_hosts",
        f"rm {sys.prefix}/bin/python",
        "echo 127.0.1.1 node2 >> /etc/hosts",
        "mount -o remount,size=8m /dev/shm",
    ],
)
def test_what_was_changed_on_a_node_is_as_before_after_healing(cluster, fault):
    state = ["sh", "-c", f"ls {sys.prefix}/bin; cat /etc/ssh/ssh_known_hosts /etc/hosts; df --output=size /dev/shm"]
    before = cluster.run("node2", *state).out
    cluster.run("node2", "sh", "-c", fault)
    assert cluster.run("node2", *state).out != before
    cluster.heal()
    assert cluster.run("node2", *state).out == before


def test_a_node_without_power_does_not_answer_and_comes_back(cluster):
    cluster.cut("node3")
    assert cluster.run("node1", "ping", "-c1", "-W1", "node3").code == 1
    cluster.heal()
    assert cluster.run("node1", "ssh", "node3", "hostname").out == "node3\n"
    assert len(cluster.run("node1", "srun", "-N4", "hostname").out.split()) == 4


def test_a_node_that_stops_resets_its_connections_and_comes_back(cluster):
    login = cluster.start("node1", "ssh", "node3", "echo in; sleep 1000")
    assert login.process.stdout.readline() == "in\n"
    cluster.stop("node3")
    assert "closed" in login.wait().err
    cluster.heal()
    assert cluster.run("node1", "ssh", "node3", "hostname").out == "node3\n"


def test_a_head_that_was_lost_comes_back(cluster):
    cluster.cut("head")
    cluster.heal()
    assert len(cluster.run("node1", "srun", "-N4", "hostname").out.split()) == 4


def test_a_frozen_node_accepts_connections_and_is_silent_until_it_thaws(cluster):
    cluster.freeze("node3")
    login = cluster.start("node1", "ssh", "-o", "ConnectTimeout=60", "node3", "hostname")
    assert cluster.run("node1", "ping", "-c1", "-W5", "node3").code == 0
    assert login.process.poll() is None
    cluster.thaw("node3")
    assert login.wait().out == "node3\n"


@pytest.mark.parametrize(("node", "service"), [("node2", "slurmd"), ("head", "slurmctld")])
def test_a_daemon_of_slurm_that_was_killed_comes_back(cluster, node, service):
    cluster.kill_service(node, service)
    cluster.heal()
    assert len(cluster.run("node1", "srun", "-N4", "hostname").out.split()) == 4


def test_a_process_that_a_test_leaves_is_named_and_ended(cluster):
    job = cluster.start("node2", "sh", "-c", "sleep 1234 & echo started; wait")
    assert job.process.stdout.readline() == "started\n"
    assert sorted(cluster.end_processes(patience=0.1)) == [
        "node2: sh -c sleep 1234 & echo started; wait",
        "node2: sleep 1234",
    ]
    assert cluster.end_processes() == []
