"""Networks that are not connected, and the interface by which the kernel sends."""

from __future__ import annotations

import pytest

from distcheck.facts.infiniband import Hca, HcaPort, Infiniband
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
@pytest.mark.parametrize(
    ("kernel", "command"), [("6.8.0", "ip -brief"), ("5.15-microsoft-standard-WSL2", "# in %USER")]
)
def test_rank_0_behind_a_forwarded_port_is_no_firewall(of, change, only, how, kernel, command):
    job = change.node(met_at(change, of(TO_GUEST, how, **GUEST), "10.0.0.1"), 0, kernel=kernel)
    finding, exit_code = only(job)
    assert (finding.rule, finding.severity, finding.ranks, exit_code) == ("net-subnet-mismatch", "error", (0,), 30)
    assert finding.message.startswith(
        "node1 is behind address translation or port forwarding: the others see node1 at 10.0.0.1, which none of its "
        f"interfaces has, and node2 cannot reach its own address 172.20.0.2 ({how[0]} at 172.20.0.2:40000, {how[1]})"
    )
    assert all(word in finding.fix.text for word in ("mirrored", "host's network", "VPN"))
    assert finding.fix.commands[0].startswith(command)
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
    assert finding.evidence["adapters of node1"] == ("eth1, eth0" if reverse else "eth0")
    assert finding.ranks == ((0,) if len({s for s, _ in failing}) > 1 or not reverse else (1,))


@pytest.mark.parametrize(
    ("detail", "own", "manner", "commands"),
    [
        (NO_ROUTE[1], ("eth0", "10.0.0.1"), "no route", ["ip route get 10.0.0.1  # on node2"]),
        (REJECTED[1], ("eth0", "10.0.0.1"), "rejected, or no route",
         ["sudo firewall-cmd --add-port=29500/tcp  # on node1"]),
        (REJECTED[1], ("eth0", "10.0.0.7"), "no host has this address, or rejected, or no route",
         ["ip neigh show 10.0.0.1  # on node2; FAILED or INCOMPLETE: no host has this address",
          "sudo firewall-cmd --add-port=29500/tcp  # on the host of rank 0"]),
    ],
)  # fmt: skip
def test_an_unreachable_master_is_judged_by_the_kernels_error(of, change, only, detail, own, manner, commands):
    job = of(node1=(at(*own),))
    attempt = change.job(job.processes[1].attempts[0], address="10.0.0.1", outcome="unreachable", detail=detail)
    job = change.keep(change.process(job, 1, attempts=(attempt,)), *((0, 1, 2) if own[1] == "10.0.0.1" else (1,)))
    finding, _ = only(change.job(job, peers=()) if len(job.ranks) > 1 else change.job(job, met=False, peers=()))
    assert (finding.rule, finding.ranks) == ("net-master-unreachable", (1,))
    assert f"10.0.0.1:29500: {manner}, {detail}" in finding.message
    assert list(finding.fix.commands) == commands


# -- two adapters


def two(first, second):
    """Return the interfaces of three nodes, by name, what the address begins with, and the length of its prefix."""
    return {f"node{n}": tuple(at(name, f"{net}{n}", bits) for name, net, bits in (first, second)) for n in range(1, 4)}


TWINS = two(("eth0", "10.0.0.1", 24), ("eth1", "10.0.0.2", 24))


def over(change, job, name, uses=("gloo",)):
    """Return the job whose nodes reach each other for these uses, and send through this interface."""
    nodes = {node.key: node for node in job.nodes}
    source = {
        p.uid: next(i.address for i in nodes[p.node].interfaces if i.name == name and i.address != "127.0.0.1")
        for p in job.processes
    }
    return change.job(job, peers=tuple(change.job(t, uses=uses, sent_from=source[t.source]) for t in job.peers))


@pytest.mark.parametrize(
    ("speeds", "variable", "severity", "rates", "command"),
    [
        ({"eth0": 1000, "eth1": 100_000}, "eth1", "warning", ("100000", "1000"), "sudo ip address change 10.0.0.11/24"),
        ({"eth0": 1000, "eth1": 1000}, "eth1", "warning", ("1000", "1000"), "sudo ip address change 10.0.0.11/24"),
        ({"eth0": 1000, "eth1": None}, "eth1", "warning", ("no rate", "1000"), "sudo ip address change 10.0.0.11/24"),
        ({"eth0": 1000, "eth1": None}, None, "warning", ("no rate", "1000"), "export GLOO_SOCKET_IFNAME=eth0"),
        ({"eth0": 1000, "eth1": 100}, None, "warning", ("100", "1000"), "export GLOO_SOCKET_IFNAME=eth0"),
        ({"eth0": 1000, "eth1": 1000}, None, "info", ("1000", "1000"), "sudo ip address change 10.0.0.11/24"),
    ],
)
def test_the_adapter_by_which_the_kernel_sends_is_named_with_both_rates(
    of, change, judge, speeds, variable, severity, rates, command
):
    job = change.environment(of(speeds=speeds, **TWINS), None, GLOO_SOCKET_IFNAME=variable)
    (finding,) = judge(change.asked(over(change, job, "eth0"), backend="gloo"), "network.routes").findings
    assert (finding.rule, finding.severity, finding.ranks) == ("net-two-nics-one-subnet", severity, (0, 1, 2))
    used, other = (f"{rate} reported" if rate == "no rate" else f"{rate} Mbit/s" for rate in rates)
    assert finding.message == (
        f"ranks 0-2 (node1, node2 and node3): Gloo uses eth1 (10.0.0.21, {used})"
        + (" by GLOO_SOCKET_IFNAME=eth1" if variable else "")
        + f", but node1 sends to 10.0.0.22 through eth0 (10.0.0.11, {other}); both are in 10.0.0.0/24"
    )
    assert finding.fix.commands[0].startswith(command)
    assert finding.evidence["node3"] == "eth1 (10.0.0.23), eth0 (10.0.0.13)"


def test_nccl_is_judged_by_its_own_interface(of, change, judge):
    job = of(speeds={"eth0": 100_000, "eth1": 1000}, **TWINS)
    (finding,) = judge(change.asked(over(change, job, "eth1", ("nccl",)), backend="nccl"), "network.routes").findings
    assert finding.severity == "warning"
    assert "NCCL uses eth0 (10.0.0.11, 100000 Mbit/s), but node1 sends to 10.0.0.22 through eth1" in finding.message


def test_nccl_only_meets_at_an_interface_beside_infiniband_adapters(of, change, judge):
    port = HcaPort(number=1, link_layer="InfiniBand", state="ACTIVE")
    job = over(change, of(gpus=1, speeds={"eth0": 100_000, "eth1": 1000}, **TWINS), "eth1", ("nccl",))
    for hcas, severity in ((), "warning"), ((Hca(name="mlx5_0", ports=(port,)),), "info"):
        judged = judge(change.node(job, None, infiniband=Infiniband(hcas=hcas)), "network.routes").findings
        assert [f.severity for f in judged if "NCCL uses" in f.message] == [severity]


def test_the_library_that_the_job_uses_decides(of, change, judge):
    job = of(speeds={"eth0": 100, "eth1": 1000}, **two(("eth1", "10.0.0.1", 24), ("eth0", "10.0.0.2", 24)))
    job = change.node(job, None, network=change.job(job.nodes[0].network, own_name_binds="127.0.0.1"))
    assert [f.severity for f in judge(job, "network.routes").findings] == ["info"]  # of NCCL, without GPUs


def test_a_route_through_a_slower_adapter_of_another_network_is_a_warning(of, change, judge):
    far = {f"node{n}": (at("eth0", f"10.9.{n}.1"), at("eth1", f"10.1.{n}.1")) for n in range(1, 4)}
    job = of(speeds={"eth0": 1000, "eth1": 100_000}, **far)
    (finding,) = judge(over(change, job, "eth0"), "network.routes").findings
    assert (finding.severity, finding.fix.commands) == ("warning", ("export GLOO_SOCKET_IFNAME=eth0",))
    assert finding.message.endswith("to 10.1.2.1 through eth0 (10.9.1.1, 1000 Mbit/s); eth1 is not the route to it")


@pytest.mark.parametrize(("other", "severity"), [(100, "warning"), (None, "warning"), (1000, "info")])
def test_two_adapters_in_one_subnet_may_take_each_others_packets(of, change, judge, other, severity):
    job = change.asked(of(speeds={"eth0": other, "eth1": 1000}, **TWINS), backend="gloo")
    named = change.environment(job, None, GLOO_SOCKET_IFNAME="eth1")
    (finding,), (same,) = (judge(each, "network.routes").findings for each in (job, named))
    assert (same.severity, same.message) == (severity, finding.message)
    assert (finding.rule, finding.severity, finding.ranks) == ("net-two-nics-one-subnet", severity, (0, 1, 2))
    words = "ranks 0-2 (node1, node2 and node3): eth1 (10.0.0.21, 1000 Mbit/s), which Gloo uses,"
    assert finding.message.startswith(words)
    assert "arp_ignore=1" in finding.fix.commands[0]


UPLINKS = {f"node{n}": (at("eth0", f"10.8.{n}.1", 31), at("eth1", f"10.9.{n}.1", 31)) for n in range(1, 4)}
HEALTHY = {
    "a subnet each": (two(("eth0", "10.0.0.", 24), ("eth1", "10.1.0.", 24)), "eth1"),
    "an alias of one adapter": (two(("eth1:1", "10.0.0.1", 24), ("eth1", "10.0.0.2", 24)), "eth1:1"),
    "two addresses of one adapter": (two(("eth1", "10.0.0.1", 24), ("eth1", "10.0.0.2", 24)), "eth1"),
    "uplinks of one rate, routed": (UPLINKS, "eth0"),
    "an address of the host": (two(("eth0", "10.0.0.", 24), ("dummy0", "10.255.0.", 32)), "eth0"),
    "a source address of the host": (two(("dummy0", "10.255.0.", 32), ("eth0", "10.0.0.", 24)), "dummy0"),
    "a container bridge": (two(("docker0", "10.0.0.1", 24), ("eth0", "10.0.0.2", 24)), "eth0"),
    "IPv6": (two(("eth0", "fd00::1", 64), ("eth1", "fd00::2", 64)), "eth1"),
    "unknown masks": (two(("eth0", "10.0.0.1", None), ("eth1", "10.0.0.2", None)), "eth0"),
}


@pytest.mark.parametrize(("addresses", "sent"), HEALTHY.values(), ids=HEALTHY)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_healthy_nodes_with_several_addresses_are_silent(of, change, judge, addresses, sent, backend):
    job = change.asked(of(**addresses), backend=backend)
    job = over(change, job, sent) if backend == "gloo" else job
    assert judge(job, "network.routes")[:2] == judge(change.job(job, peers=()), "network.routes")[:2] == ((), ())


def test_adapters_that_answer_for_their_own_addresses_are_silent(of, change, judge):
    job = of(speeds={"eth0": 100, "eth1": 1000}, **TWINS)
    for quiet, told in ({"eth0", "eth1"}, set()), ({"eth0"}, {"net-two-nics-one-subnet"}):
        for n, node in enumerate(job.nodes):
            links = tuple(change.job(link, arp_ignore=int(link.name in quiet)) for link in node.network.links)
            job = change.node(job, n, network=change.job(node.network, links=links))
        assert {f.rule for f in judge(job, "network.routes").findings} == told


def test_a_member_that_kept_its_address_beside_its_bond_is_no_second_adapter(of, change, judge):
    job = of(**two(("eth0", "10.0.0.1", 24), ("bond0", "10.0.0.2", 24)))
    for n, node in enumerate(job.nodes):
        member, bond = node.network.links
        links = (member, change.job(bond, members={"eth0": True}))
        job = change.node(job, n, network=change.job(node.network, links=links))
    assert judge(job, "network.routes").findings == ()


def test_a_job_on_one_node_uses_no_adapter(of, judge):
    assert judge(of(nodes=1, speeds={"eth0": 100, "eth1": 1000}, node1=TWINS["node1"]), "network.routes").findings == ()
