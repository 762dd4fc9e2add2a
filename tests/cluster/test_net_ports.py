"""`distcheck net` where ports are shut, on the way or by another program: what, at which ranks, in which direction."""

from __future__ import annotations

import signal
import sys

import pytest
from cluster.inside import NODES, filtered, finding, findings, reports
from cluster.reaching import net
from real.waiting import until

BOTH_WAYS = "on ephemeral ports"
ONE_WAY = f"{BOTH_WAYS}, but the other direction works"
NEW = "tcp flags & (syn|ack) == syn"
CLOSED = "net-master-unreachable"


def only(report, rule, ranks, severity="error"):
    """Return the one finding, which is this rule's at these ranks; whatever is unknown besides is no finding."""
    told = [(f["rule"], f["severity"], f["ranks"]) for f in report["findings"] if f["severity"] != "info"]
    assert told == [(rule, severity, ranks)], report["findings"]
    found = finding(report, rule)
    assert found["nodes"] == [NODES[n] for n in dict.fromkeys(rank // 2 for rank in ranks)]
    return found


# -- the way to MASTER_PORT


@pytest.mark.parametrize(
    ("answer", "manner"),
    [
        ("drop", "packets are dropped"),
        ("reject with tcp reset", "rejected although rank 0 listens, Connection refused (errno 111)"),
        ("reject with icmp type admin-prohibited", "rejected, or no route, No route to host (errno 113)"),
    ],
    ids=["dropped", "reset", "admin-prohibited"],
)
def test_a_shut_master_port_is_named_with_the_manner_and_the_ranks(cluster, answer, manner):
    filtered(cluster, "node1", f"iifname eth0 tcp dport 29500 {answer}")
    ended, report = net(cluster)
    found = only(report, CLOSED, [*range(2, 8)])
    assert (ended.code, found["scope"]) == (20, "link")
    assert f"cannot reach rank 0 at MASTER_ADDR node1 (10.77.0.11:29500: {manner}" in found["message"]
    assert report["missing_ranks"] == []


def test_a_master_that_drops_all_packets_is_reported_on_stderr_before_the_roll_call_closes(cluster):
    filtered(cluster, "node1", "iifname eth0 tcp dport != 22 drop")
    ended, report = net(cluster, "--join-timeout", "12")
    assert "distcheck: waiting for ranks 2-7; the roll call closes in" in ended.err
    for rank in (2, 4, 6):
        assert f"distcheck: rank {rank} is still trying to reach rank 0 at node1:29500; the roll call" in ended.err
    found = only(report, CLOSED, [2, 3, 4, 5, 6, 7])
    assert "packets are dropped, no answer within 3.0 s" in found["message"]
    assert (ended.code, ended.seconds >= 12) == (20, True)
    assert [n["rule"] for n in report["not_checked"]] == ["net-firewall-ephemeral"]


# -- the ports that the kernel chooses


WAYS = {
    "into node2": (
        {"node2": f"{NEW} tcp dport != 22 drop"},
        "net-asymmetric-route", [2, 3], "node1, node3 and node4 cannot reach node2 ", ONE_WAY,
    ),
    "between node2 and node3": (
        {"node2": "ip saddr 10.77.0.13 drop"},
        "net-firewall-ephemeral", [2, 3, 4, 5], "node2 and node3 cannot reach each other ", BOTH_WAYS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_a_blocked_path_is_named_with_its_direction_and_no_other_is_blamed(cluster, name):
    filters, rule, ranks, words, nature = WAYS[name]
    for node, shut in filters.items():
        filtered(cluster, node, shut)
    ended, report = net(cluster)
    found = only(report, rule, ranks)
    assert (ended.code, found["scope"]) == (20, "link")
    assert found["message"].startswith(f"{words}{nature} (timeout at 10.77.0.1")
    where = "node2" if name == "into node2" else "node2 and node3"
    assert {c.partition("  # on ")[2] for c in found["fix"]["commands"] if "rp_filter" not in c} == {where}


def test_only_ssh_and_master_port_open_everywhere_is_the_site_s_fault(cluster):
    filtered(cluster, NODES, f"{NEW} tcp dport != {{ 22, 29500 }} reject with icmp type admin-prohibited")
    ended, report = net(cluster)
    found = only(report, "net-firewall-ephemeral", [*range(8)])
    assert (ended.code, found["scope"], report["exclude"]["nodes"]) == (30, "system", [])
    assert "no node can reach any other on ephemeral ports (unreachable at 10.77.0.1" in found["message"]


# -- MASTER_PORT taken

STORE = (
    "import time, torch.distributed; "
    "store = torch.distributed.TCPStore('node1', 29500, 2, True, wait_for_workers=False); time.sleep(600)"
)


@pytest.fixture
def taken(cluster):
    """Have a program listen on node1's port 29500; return its pid there."""
    started = []

    def take(*argv, user="root"):
        script = 'echo $$ > /tmp/pid; exec setpriv --reuid="$0" --clear-groups "$@"'
        started.append(cluster.start("node1", "sh", "-c", script, user, sys.executable, *argv))
        until(lambda: cluster.netns("node1", "ss", "-Hltn", "sport = :29500").out, 60)
        return int(cluster.read("node1", "/tmp/pid"))

    yield take
    for listener in started:
        listener.interrupt(signal.SIGKILL)
        listener.wait()


@pytest.mark.parametrize(
    ("program", "user", "behaves"),
    [
        (("-m", "http.server", "29500"), "nobody", "it answers the other ranks with '<!DOCTYPE HTML>"),
        (("-c", STORE), "root", "it is a store of torch.distributed (TCPStore), of another job or an earlier one"),
    ],
    ids=["HTTP", "store of torch"],
)
def test_the_owner_of_a_taken_master_port_is_named_with_its_answer(cluster, taken, program, user, behaves):
    pid = taken(*program, user=user)
    ended, report = net(cluster)
    assert ended.code == 30
    (found,) = [f for f in report["findings"] if f["severity"] != "info"]
    assert (found["rule"], found["severity"], found["ranks"], found["nodes"]) == (
        "net-port-in-use", "error", [0], ["node1"],
    )  # fmt: skip
    assert f"MASTER_PORT 29500 is taken by process {pid} (" in found["message"]
    assert found["message"].endswith(behaves) or behaves.endswith("HTML>")
    assert behaves in found["message"]
    evidence = found["evidence"]
    assert (evidence["pid"], evidence["user"]) == (pid, user)
    assert evidence["command"] == " ".join((sys.executable, *program))
    assert evidence["started"].startswith("20")
    # Whose process it is decides whether ending it is offered.
    assert found["fix"]["commands"][0] == (f"ssh node1 kill {pid}" if user == "root" else "export MASTER_PORT=29501")


# -- what a user without privileges meets


def unprivileged(cluster, port):
    """Start one rank on each node by hand, as nobody; return how they ended and the one report."""
    env = {"HOME": "/tmp", "MASTER_ADDR": "node1", "MASTER_PORT": port, "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    become = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
    words = ("distcheck", "net", "--format", "json")
    started = [cluster.start(n, *become, *words, env=env | {"RANK": str(rank)}) for rank, n in enumerate(NODES)]
    ended = [s.wait() for s in started]
    (report,) = reports(*ended)
    return ended, report


def test_a_holder_that_cannot_be_seen_is_looked_for_by_its_port(cluster, taken):
    taken("-m", "http.server", "29500")
    ended, report = unprivileged(cluster, "29500")
    assert ({e.code for e in ended}, findings(report)) == ({30}, ["net-port-in-use"])
    found = finding(report, "net-port-in-use")
    assert (found["ranks"], found["nodes"]) == ([0], ["node1"])
    assert "is taken by a process that is not visible (" in found["message"]
    assert found["fix"]["commands"] == ["ssh node1 sudo ss -ltnp 'sport = :29500'", "export MASTER_PORT=29501"]
