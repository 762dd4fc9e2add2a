"""Networks that are not connected."""

from __future__ import annotations

import pytest

from distcheck.facts.network import Interface, Link, NetworkFacts, PeerTrial, Resolution

OURS = (
    "network.interfaces",
    "network.routes",
    "network.hostnames",
    "network.master_reachability",
    "network.peer_paths",
)
LOOKS = ("environment", "meeting", "peers")
REFUSED, NO_ROUTE, REJECTED, DROPPED = (
    ("refused", "Connection refused (errno 111)"),
    ("unreachable", "Network is unreachable (errno 101)"),
    ("unreachable", "No route to host (errno 113)"),
    ("timeout", "no answer within 3.0 s"),
)
USES = ("master", "nccl", "gloo")
EVERYWHERE = [(s, t) for s in range(3) for t in range(3) if s != t]


def at(name, address, bits=24):
    return Interface(name=name, address=address, up=True, mtu_bytes=1500, prefix_bits=bits)


def link(name, n, k, speed):
    kind = "physical" if name.startswith("eth") else "virtual"
    return Link(name, f"02:00:00:00:{n:02}:{k:02}", kind, speed_Mbps=speed)


@pytest.fixture
def of(job_of, change):
    """Build a job of three nodes that reach each other at the last of their `addresses` (node: interfaces)."""

    def of(failing=(), how=NO_ROUTE, nodes=3, speeds=None, gpus=0, **addresses):
        job = job_of(nodes, 1, looks=LOOKS, gpus=gpus)
        for n, node in enumerate(job.nodes, start=1):
            own = (at("lo", "127.0.0.1", 8), *addresses.get(node.name, (at("eth0", f"10.0.0.{n}"),)))
            links = tuple(link(i.name, n, k, (speeds or {}).get(i.name, 1000)) for k, i in enumerate(own[1:]))
            name = Resolution(name=node.name, addresses=(own[-1].address,), seconds=0.001)
            network = NetworkFacts(links=links, own_name=name, own_name_binds=own[-1].address, machine_id=f"m{n}")
            job = change.node(job, n - 1, interfaces=own, network=network)
        uids = [p.uid for p in job.processes]
        trials = [
            PeerTrial(uids[s], uids[t], job.nodes[t].interfaces[-1].address, 40000, "met", 0.01, uses=USES)
            for s in range(nodes) for t in range(nodes) if s != t
        ]  # fmt: skip
        shut = {(uids[s], uids[t]) for s, t in failing}
        return change.job(
            job,
            peers=tuple(
                change.job(t, outcome=how[0], detail=how[1]) if (t.source, t.target) in shut else t for t in trials
            ),
        )

    return of


def met_at(change, job, address):
    """Return the job whose other ranks met rank 0 at this address."""
    attempt = change.job(job.processes[1].attempts[0], address=address)
    return change.process(job, range(1, len(job.ranks)), attempts=(attempt,))


GUEST = {"node1": (at("eth0", "172.20.0.2"),)}
TO_GUEST = [(1, 0), (2, 0)]


@pytest.mark.parametrize("how", [NO_ROUTE, REJECTED, DROPPED, REFUSED])
def test_rank_0_behind_a_forwarded_port_is_no_firewall(of, change, only, how):
    finding, exit_code = only(met_at(change, of(TO_GUEST, how, **GUEST), "10.0.0.1"))
    assert (finding.rule, finding.severity, finding.ranks, exit_code) == ("net-subnet-mismatch", "error", (0,), 30)
    assert finding.message.startswith(
        "node1 is behind address translation or port forwarding: the others see node1 at 10.0.0.1, which none of its "
        f"interfaces has, and node2 cannot reach its own address 172.20.0.2 ({how[0]} at 172.20.0.2:40000, {how[1]})"
    )
    assert all(word in finding.fix.text for word in ("mirrored", "host's network", "VPN"))
    assert not any("firewall" in c or "rp_filter" in c for c in finding.fix.commands)


def test_another_rank_behind_address_translation_is_named(of, change, only):
    job = of([(0, 2), (1, 2)], node3=(at("eth0", "172.20.0.2"),))
    finding, _ = only(change.process(job, 2, seen_at="10.0.0.3"))
    assert (finding.rule, finding.ranks) == ("net-subnet-mismatch", (2,))
    assert "the others see node3 at 10.0.0.3" in finding.message


def test_guests_with_one_address_behind_different_hosts_have_no_duplicate_address(of, change, only):
    guests = dict.fromkeys(("node1", "node2"), (at("eth0", "10.0.2.15"),))
    job = of([(0, 1), (1, 0), (2, 0), (2, 1)], REFUSED, **guests)
    finding, _ = only(change.process(met_at(change, job, "192.168.1.1"), 1, seen_at="192.168.1.2"))
    assert (finding.rule, finding.ranks) == ("net-subnet-mismatch", (0, 1))
    assert finding.evidence["node2"] == "seen at 192.168.1.2, has 10.0.2.15"


def test_translation_that_nobody_needs_is_silent(of, change, silent):
    """All reach each other at their own addresses, as pods behind a service and hosts with a public address do."""
    assert silent(change.process(met_at(change, of(), "192.168.1.1"), 2, seen_at="192.168.1.9"))


@pytest.mark.parametrize(
    ("how", "seen", "pods"),
    {
        "as firewalld rejects": (REJECTED, "10.0.0.1", False),
        "dropped": (DROPPED, "10.0.0.1", False),
        "beside each other, met at a public address": (DROPPED, "34.1.2.3", False),
        "behind a service": (DROPPED, "10.96.0.7", True),
    }.values(),
)
def test_an_address_that_the_node_has_is_behind_a_firewall(of, change, rules, how, seen, pods):
    far = {f"node{n}": (at("eth0", f"10.{n}.0.1"),) for n in range(1, 4)} if pods else {}
    job = met_at(change, of(EVERYWHERE, how, **far), seen)
    job = change.environment(job, None, KUBERNETES_SERVICE_HOST="10.96.0.1") if pods else job
    assert rules(job) == ["net-firewall-ephemeral"]


@pytest.mark.parametrize(
    ("failing", "ranks", "words", "address"),
    [
        (TO_GUEST, (0,), "node2 and node3 cannot reach node1 without a route, but", "172.20.0.2"),
        ([(1, 0), (1, 2)], (1,), "node2 cannot reach node1 and node3 without a route, but", "172.20.0.2"),
        ([(1, 0), (0, 1)], (0, 1), "node1 and node2 cannot reach each other without a route (", "172.20.0.2"),
    ],
)
def test_no_route_is_no_firewall_either(of, only, failing, ranks, words, address):
    finding, exit_code = only(of(failing, **GUEST))
    assert (finding.rule, finding.ranks, finding.scope, exit_code) == ("net-subnet-mismatch", ranks, "link", 20)
    assert finding.message.startswith(words)
    assert f"ip route get {address}  # on node2" in finding.fix.commands
    assert not any("firewall" in c for c in finding.fix.commands)


TWO = (at("eth1", "10.1.0.1"), at("eth0", "10.0.0.1"))
ALIAS = (at("docker0", "172.17.0.1", 16), at("eth0:1", "10.9.0.1"), at("eth0", "10.0.0.1"))


@pytest.mark.parametrize(
    ("failing", "own", "first", "reverse"),
    [
        (TO_GUEST, (at("eth0", "10.0.0.1"),), "sudo nft list ruleset  # on node1", False),
        (TO_GUEST, ALIAS, "sudo nft list ruleset  # on node1", False),
        (TO_GUEST, TWO, "sudo nft list ruleset  # on node1", True),
        ([(1, 0)], (at("eth0", "10.0.0.1"),), "sudo nft list ruleset  # on node1", False),
        ([(1, 0), (1, 2)], TWO, "sudo nft list ruleset  # on node2", True),
    ],
    ids=["one adapter", "one adapter with an alias", "two adapters", "one pair", "out of a node"],
)
def test_a_one_way_path_is_a_rule_of_the_node_it_leads_to(of, only, failing, own, first, reverse):
    finding, _ = only(of(failing, DROPPED, node1=own))
    assert finding.rule == "net-asymmetric-route"
    assert finding.fix.commands[0] == first
    assert any("firewall-cmd" in c for c in finding.fix.commands)
    assert [c.partition("  # ")[2] for c in finding.fix.commands if "rp_filter" in c] == ["on node1"] * reverse
    assert finding.ranks == ((0,) if len({s for s, _ in failing}) > 1 or not reverse else (1,))


@pytest.mark.parametrize(
    ("detail", "manner", "command"),
    [
        (NO_ROUTE[1], "no route", "ip route get 10.0.0.1  # on node2"),
        (REJECTED[1], "rejected, or no route", "sudo firewall-cmd --add-port=29500/tcp  # on node1"),
    ],
)
def test_an_unreachable_master_is_judged_by_the_kernels_error(of, change, only, detail, manner, command):
    job = of(node1=(at("eth0", "10.0.0.1"),))
    attempt = change.job(job.processes[1].attempts[0], address="10.0.0.1", outcome="unreachable", detail=detail)
    finding, _ = only(change.job(change.process(job, 1, attempts=(attempt,)), peers=()))
    assert (finding.rule, finding.ranks) == ("net-master-unreachable", (1,))
    assert f"10.0.0.1:29500: {manner}, {detail}" in finding.message
    assert finding.fix.commands == (command,)
