"""Rules about the interfaces that NCCL and Gloo use, and the nodes' names and addresses."""

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Interface, Link, NetworkFacts, PeerTrial, Resolution
from distcheck.rules.network.explained_trials import explained_trials
from distcheck.selection.interfaces import gloo, nccl, settings

LOOKS = ("environment", "meeting", "peers")
FAMILIES = ("network.interfaces", "network.routes", "network.hostnames")
UNKNOWN = Missing(reason="[Errno -2] Name or service not known")


def at(name, address, bits=24, *, up=True):
    return Interface(name=name, address=address, up=up, mtu_bytes=1500, prefix_bits=bits)


LO = at("lo", "127.0.0.1", 8)
DOCKER = at("docker0", "172.17.0.1", 16)
BRIDGE = at("br-1f2e", "172.18.0.1", 16)


def plain(n):
    return (LO, at("eth0", f"10.0.0.{n}"))


def high(n):
    """Return interfaces with addresses above 127, from which Gloo connects to a loopback."""
    return (LO, at("eth0", f"192.168.0.{n}"))


def two_cards(n):
    return (LO, at("eth0", f"10.0.0.{n}"), at("eth1", f"10.1.0.{n}"))


def routed(n):
    """Return interfaces in a separate, routed network for each node."""
    return (LO, at("eth0", f"10.0.{n}.1", 31))


def ipv6(n):
    return (LO, at("lo", "::1", 128), at("eth0", f"fd00::{n}", 64), at("eth0", f"fe80::{n}", 64))


def bridged(n):
    return (LO, BRIDGE, at("eth0", f"10.0.0.{n}"))


HEALTHY = {
    "plain": plain,
    "two cards": two_cards,
    "routed": routed,
    "IPv6 only": ipv6,
    "both families": lambda n: (*plain(n), *ipv6(n)[1:]),
    "docker": lambda n: (LO, DOCKER, at("eth0", f"10.0.0.{n}"), at("veth12", f"fe80::a{n}", 64)),
    "IPoIB": lambda n: (*plain(n), at("ib0", f"10.8.0.{n}")),
    "bond": lambda n: (LO, at("bond0", f"10.0.0.{n}"), at("bond0.100", f"10.3.0.{n}")),
    "bridge after": lambda n: (*plain(n), BRIDGE, at("virbr0", "192.168.122.1")),
    "service processor": lambda n: (*plain(n), at("enxb03af2b6059f", "169.254.3.1", 16)),
    "unknown prefixes": lambda n: (LO, at("eth0", f"10.0.0.{n}", None)),
}


def network(n, interfaces, *, physical=False, binds=None, resolves=None, files=None, **more):
    kinds = {"lo": "loopback"}
    names = list(dict.fromkeys(i.name for i in interfaces))
    links = tuple(
        Link(
            name=name,
            mac=f"02:00:00:00:{n:02x}:{number:02x}",
            kind=kinds.get(name, "physical" if physical and name.startswith(("eth", "ib")) else "virtual"),
        )
        for number, name in enumerate(names)
    )
    first = next((i.address for i in interfaces if i.name in {"eth0", "bond0"}), "127.0.0.1")
    binds = first if binds is None else binds
    found = (binds,) if isinstance(binds, str) else ()
    own = resolves or Resolution(name=f"node{n}", addresses=found, seconds=0.001)
    return NetworkFacts(
        links=links, own_name=own, own_name_binds=binds, nccl_files=files or {}, **({"machine_id": f"m{n}"} | more)
    )


@pytest.fixture
def of(job_of, change):
    """Build a healthy job whose processes reached each other wherever the libraries listen."""

    def of(nodes=4, shape=plain, per_node=1, gpus=0, **more):
        job = job_of(nodes, per_node, looks=LOOKS, gpus=gpus, **more)
        for n in range(nodes):
            interfaces = shape(n + 1)
            job = change.node(job, n, interfaces=interfaces, network=network(n + 1, interfaces))
        addresses = [next(i.address for i in node.interfaces if i.name in {"eth0", "bond0"}) for node in job.nodes]
        master = Resolution(name="node1", addresses=(addresses[0],), seconds=0.001)
        return tried(change, change.process(job, None, master_resolution=master))

    return of


def tried(change, job, *, missed=(), untried=()):
    """Return a job whose processes tried all others; addresses in `missed` do not answer."""
    trials = []
    number = {node.key: n for n, node in enumerate(job.nodes, start=1)}
    for target in job.processes:
        rank = next(r for r in job.ranks if r.process == target.uid)
        node = job.node_of(rank)
        master = next((i.address for i in node.interfaces if i.name in {"eth0", "bond0"}), "127.0.0.1")
        uses = {master: ["master"]}
        takes = nccl(node.interfaces, settings(rank.environment, node.network.nccl_files))
        if takes:
            uses.setdefault(takes[0].address, []).append("nccl")
        listens = gloo(node.interfaces, rank.environment, node.network.own_name_binds)
        for interface in () if isinstance(listens, Missing) else listens:
            uses.setdefault(interface.address, []).append("gloo")
        for source in job.processes:
            if source.node == target.node:
                continue
            for address, use in uses.items():
                where = (number[target.node], address)
                if where in untried:
                    continue
                outcome = "timeout" if where in missed or (number[source.node], *where) in missed else "met"
                trials.append(PeerTrial(source.uid, target.uid, address, 40000, outcome, 0.01, uses=tuple(use)))
    return change.job(job, peers=tuple(trials))


def with_node(change, job, n, *interfaces, **more):
    """Return the job with other interfaces on the n-th node, counted from 1."""
    return change.node(job, n - 1, interfaces=interfaces, network=network(n, interfaces, **more))


@pytest.fixture
def said(judge):
    def said(job, *families):
        return [(f.rule, f.severity, f.ranks) for f in judge(job, *(families or FAMILIES)).findings]

    return said


@pytest.fixture
def only(judge):
    def only(job):
        findings = judge(job, *FAMILIES).findings
        assert len(findings) == 1, [f.message for f in findings]
        return findings[0]

    return only


# -- healthy


@pytest.mark.parametrize("shape", HEALTHY.values(), ids=HEALTHY)
@pytest.mark.parametrize(("nodes", "per_node", "gpus"), [(1, 1, 0), (1, 8, 8), (2, 2, 0), (4, 2, 2)])
def test_a_healthy_job_is_silent(of, judge, change, shape, nodes, per_node, gpus):
    job = of(nodes, shape, per_node, gpus=gpus)
    for tried_or_not in job, change.job(job, peers=()):
        assert judge(tried_or_not, *FAMILIES)[:2] == ((), ())


def test_a_job_without_network_facts_is_silent(job_of, judge, change):
    job = change.environment(job_of(4, looks=LOOKS, gpus=2), None, NCCL_SOCKET_IFNAME="eth9")
    assert judge(job, *FAMILIES)[:2] == ((), ())


@pytest.mark.parametrize("backend", ["auto", "nccl", "gloo"])
@pytest.mark.parametrize(("value", "address"), [(None, "10.0.0.2"), ("eth1", "10.1.0.2")])
def test_closed_ports_are_reported_by_another_rule(of, said, change, backend, value, address):
    job = change.environment(of(4, two_cards, gpus=1, backend=backend), None, NCCL_SOCKET_IFNAME=value)
    job = tried(change, job, missed=[(2, address)])
    assert said(job) == []
    assert explained_trials(job) == frozenset()


# -- a choice that is at fault


def row(record, ranks, *words, fix=(), env=(None, {}), odd=None, missed=(), untried=(), **job):
    """Return a job with variables of some ranks, nodes with `odd` interfaces and addresses missed, and its finding."""
    commands = (fix,) if isinstance(fix, str) else fix
    return record.split(), ranks, words, commands, env, odd or {}, {"missed": missed, "untried": untried}, job


NCCL_LO, NCCL_AUTO = "net-nccl-picks-loopback-or-docker", "net-nccl-auto-wrong-iface"
NO_MATCH, SUBNET, MIXED = "net-nccl-ifname-no-match error", "net-subnet-mismatch error", "net-ipv4-ipv6-mixed error"
USE_NCCL, USE_GLOO = "export NCCL_SOCKET_IFNAME==eth0", "export GLOO_SOCKET_IFNAME=eth0"
ON_ETH1 = {"NCCL_SOCKET_IFNAME": "eth1"}
NODES = (1, 2, 3, 4)
ENS5, ON_LO = {"files": {"NCCL_SOCKET_IFNAME": "ens5"}}, {"binds": "127.0.1.1"}
DOWN = (LO, at("eth0", "10.0.0.3"), at("eth1", "10.1.0.3", up=False))
BOTH = HEALTHY["both families"]
REVERSED = lambda n: (LO, at("ens1", f"10.1.0.{n}"), at("eth0", f"10.0.0.{n}"))  # noqa: E731
FOREIGN = Resolution(name="node3", addresses=("10.0.0.77",), seconds=0.001)
BOTH_WAYS = {"odd": {3: ((*plain(3), at("eth1", "10.9.0.3")), {})}, "missed": [(3, "10.9.0.3")]}
LINK_LOCAL = {"odd": {2: ((*plain(2), at("eth1", "fe80::2", 64)), {})}, "missed": [(2, "fe80::2")], "gpus": 1}
FAULTY = [
    *[row(NO_MATCH, (0,), "NCCL_SOCKET_IFNAME is ens5", "eth0 (10.0.0.1)", fix=USE_NCCL,
          env=(0, {"NCCL_SOCKET_IFNAME": "ens5"}), nodes=nodes, gpus=gpus) for nodes in (1, 4) for gpus in (0, 1)],
    row(NO_MATCH, tuple(range(8)), env=(None, {"NCCL_SOCKET_IFNAME": "ens5"}), per_node=2),
    row(NO_MATCH, (1,), "(eth1 is down)", env=(1, ON_ETH1),
        odd={2: ((*plain(2), at("eth1", "10.1.0.2", up=False)), {})}, nodes=2),
    row(NO_MATCH, (1,), "AF_INET6", fix=(USE_NCCL, "export NCCL_SOCKET_FAMILY=AF_INET"),
        env=(1, {"NCCL_SOCKET_FAMILY": "AF_INET6"}), nodes=2, gpus=1),
    row(NO_MATCH, (1,), fix=("unset NCCL_COMM_ID", USE_NCCL), env=(1, {"NCCL_COMM_ID": "10.99.0.1:5000"}), nodes=2,
        gpus=1),
    *[row(f"{NCCL_LO} error", (2,), "lo (127.0.0.1) (NCCL_SOCKET_IFNAME=lo)", "expected eth0 (10.0.0.3)", fix=USE_NCCL,
          env=(2, {"NCCL_SOCKET_IFNAME": "lo"}), missed=[(3, "127.0.0.1")], gpus=gpus) for gpus in (0, 1)],
    row(f"{NCCL_LO} error", (0, 1, 2, 3), env=(None, {"NCCL_SOCKET_IFNAME": "docker0"}),
        missed=[(n, "172.17.0.1") for n in NODES], shape=HEALTHY["docker"], gpus=1),
    row(f"{NCCL_LO} error", (0, 1), "lo (127.0.0.1) (NCCL_SOCKET_FAMILY=AF_INET)",
        fix=(USE_NCCL, "export NCCL_SOCKET_FAMILY=AF_INET6"), env=(None, {"NCCL_SOCKET_FAMILY": "AF_INET"}),
        missed=[(1, "127.0.0.1"), (2, "127.0.0.1")], nodes=2, shape=lambda n: (LO, *ipv6(n)[1:]), gpus=1),
    *[row(f"{NCCL_AUTO} {severity}", (1,), "br-1f2e (172.18.0.1)", "expected eth0 (10.0.0.2)", fix=USE_NCCL,
          odd={2: (bridged(2), {})}, missed=[(2, "172.18.0.1")], gpus=gpus)
      for gpus, severity in ((1, "error"), (0, "info"))],
    row(f"{NCCL_AUTO} error", (0, 1, 2, 3), missed=[(n, "172.18.0.1") for n in NODES], shape=bridged, gpus=1),
    row(f"{NCCL_AUTO} warning", (0, 1), untried=[(n, "172.18.0.1") for n in NODES], nodes=2, shape=bridged, gpus=1),
    row(f"{NCCL_AUTO} error", (1,), odd={2: ((LO, at("ens1", "192.168.7.2"), *plain(2)[1:]), {})},
        missed=[(2, "192.168.7.2")], nodes=2, gpus=1),
    *[row(SUBNET, (2,), "eth1 (10.9.0.3) (NCCL_SOCKET_IFNAME=eth1)", fix=USE_NCCL, env=(2, ON_ETH1), gpus=gpus,
          **BOTH_WAYS) for gpus in (0, 1)],
    row(SUBNET, (2,), fix=USE_GLOO, env=(2, {"GLOO_SOCKET_IFNAME": "eth1"}), **BOTH_WAYS),
    row(SUBNET, (2,), env=(None, ON_ETH1), odd={3: ((*plain(3), at("eth1", "10.2.0.3")), {})},
        missed=[(3, "10.2.0.3"), *((3, n, f"10.1.0.{n}") for n in (1, 2, 4))], shape=two_cards, gpus=1),
    row(SUBNET, (1,), odd={2: ((LO, at("ens1", "10.1.0.2", up=False), at("eth0", "10.0.0.2")), {})},
        missed=[(2, n, f"10.1.0.{n}") for n in (1, 3, 4)], shape=REVERSED, gpus=1),
    row("net-ipv6-link-local error", (1,), fix=USE_NCCL, env=(1, ON_ETH1), **LINK_LOCAL),
    row("net-ipv6-link-local error", (1,), env=(1, {"GLOO_SOCKET_IFNAME": "eth1"}), **LINK_LOCAL),
    row("net-gloo-ifname-wrong error", (2,), env=(2, {"GLOO_SOCKET_IFNAME": "lo"}), missed=[(3, "127.0.0.1")]),
    row("net-gloo-ifname-wrong error", (0, 1), env=(None, {"GLOO_SOCKET_IFNAME": "eth9"}), nodes=1, per_node=2),
    row("net-hostname-loopback warning", (2,), "10.0.0.77, which the node does not have", missed=[(3, "127.0.0.1")],
        odd={3: (plain(3), {"binds": Missing(reason="none binds"), "resolves": FOREIGN})}),
    row("net-hostname-wrong-nic error", (2,), fix=USE_GLOO, missed=[(3, "192.168.9.3")],
        odd={3: ((LO, at("eth0", "10.0.0.3"), at("eth1", "192.168.9.3")), {"binds": "192.168.9.3"})}),
    row(MIXED, (2,), odd={3: (BOTH(3), {"binds": "fd00::3"})}, shape=BOTH),
    row(MIXED, (2,), env=(2, {"NCCL_SOCKET_FAMILY": "AF_INET6"}), missed=[(3, "fd00::3")], shape=BOTH, gpus=1),
    *[row(f"net-nccl-ifname-syntax {severity}", (2,), repr(value), fix=f"export NCCL_SOCKET_IFNAME={right}",
          env=(2, {"NCCL_SOCKET_IFNAME": value}), missed=[(3, "127.0.0.1")], shape=two_cards, gpus=gpus)
      for value, severity, right in [
        ("=^lo", "error", "'^=lo'"), (" eth0", "error", "eth0"), ("eth9 ", "error", "=eth0"), ("^=", "error", "=eth0"),
        ('"eth0"', "error", "eth0"), ("eth0 eth1", "error", "eth0,eth1"), ("eth0;eth1", "error", "eth0,eth1"),
        ("eth*", "error", "eth"), ("!docker0", "error", "=eth0"), ("==eth0", "error", "=eth0"),
        ("^docker,^lo", "error", "'^docker,lo'"), ("^docker,^eth1", "error", "=eth0"), ("e", "warning", "=eth0"),
        ("eth0, eth1", "warning", "eth0,eth1"), ("=eth0,=eth9", "info", "=eth0,eth9"), ("^", "warning", "=eth0")]
      for gpus in (0, 1)],
    *[row("net-gloo-ifname-wrong error", (2,), f"GLOO_SOCKET_IFNAME={repr(value) if ' ' in value else value})",
          fix=USE_GLOO, env=(2, {"GLOO_SOCKET_IFNAME": value}), gpus=gpus)
      for value in ("eth", "^lo", "=eth0", "eth0, eth1", "eth9", "eth0,,eth1", " eth0", "{eth0}") for gpus in (0, 1)],
    row(NO_MATCH, (1,), "NCCL_SOCKET_IFNAME is ens5 in NCCL's configuration file", odd={2: (plain(2), ENS5)}, nodes=2),
    row(f"{NCCL_LO} error", (1,), "(NCCL_SOCKET_IFNAME=lo in NCCL's configuration file)", missed=[(2, "127.0.0.1")],
        odd={2: (plain(2), {"files": {"NCCL_SOCKET_IFNAME": "lo"}})}, nodes=2),
    *[row("net-ipv4-ipv6-mixed warning", (2,), env=(2, {"NCCL_SOCKET_FAMILY": value}))
      for value in ("IPv4", "AF_INET ", "inet6", "2")],
    *[row(f"net-hostname-loopback {severity}", (2,), words, fix=USE_GLOO, missed=[(3, address)], shape=high, gpus=gpus,
          odd={3: (high(3), {"binds": own, "resolves": resolves})}, backend=backend)
      for own, resolves, address, words in (
        ("127.0.1.1", None, "127.0.1.1", "127.0.1.1"), ("::1", None, "::1", "::1"),
        (UNKNOWN, UNKNOWN, "127.0.0.1", "does not resolve"))
      for gpus, backend, severity in (
        (0, "auto", "error"), (1, "auto", "info"), (1, "gloo", "error"), (0, "gloo", "error"))],
    row("net-hostname-loopback warning", (2,), "works only as long as", odd={3: (plain(3), ON_LO)},
        missed=[(3, "127.0.1.1")]),
    row("net-hostname-loopback error", (1, 2), odd={2: (plain(2), ON_LO), 3: (plain(3), ON_LO)},
        missed=[(3, "127.0.1.1"), (2, "127.0.1.1")]),
    *[row(f"{rule} error", (2,), "eth1 (10.1.0.3)", "which is down", fix=USE_GLOO, shape=two_cards,
          env=(None, {"GLOO_SOCKET_IFNAME": value}),
          odd={n: (DOWN if n == 3 else two_cards(n), {"binds": f"10.{number}.0.{n}"}) for n in NODES},
          missed=[(3, "10.1.0.3"), *((3, n, f"10.1.0.{n}") for n in (1, 2, 4))])
      for rule, value, number in (("net-gloo-ifname-wrong", "eth1", 0), ("net-hostname-wrong-nic", "", 1))],
    row("net-duplicate-hostname error", (0, 2), fix="unset NCCL_HOSTID", env=((0, 2), {"NCCL_HOSTID": "a"}), nodes=3,
        gpus=1),
    row("net-duplicate-ip error", (1, 2), "node2 (eth0 02:00:00:00:02:01)", odd={3: ((LO, at("eth0", "10.0.0.2")), {})},
        missed=[(2, "10.0.0.2")]),
]  # fmt: skip


def made(of, change, env, odd, trials, more):
    job = change.environment(of(**more), env[0], **env[1])
    for n, (interfaces, facts) in odd.items():
        job = with_node(change, job, n, *interfaces, **facts)
    return tried(change, job, **trials)


@pytest.mark.parametrize(("record", "ranks", "words", "commands", "env", "odd", "trials", "more"), FAULTY)
def test_a_faulty_choice_is_one_finding_that_explains_the_failing_paths(
    of, judge, change, record, ranks, words, commands, env, odd, trials, more
):
    job = made(of, change, env, odd, trials, more)
    (finding,), _, verdict, _ = judge(job, *FAMILIES)
    assert ([finding.rule, finding.severity], finding.ranks) == (record, ranks)
    assert verdict.exit_code == (30 if finding.severity == "error" else 0)
    assert all(word in finding.message for word in words), finding.message
    assert finding.fix.commands == commands or not commands
    assert {(t.source, t.target, t.address) for t in job.peers if t.outcome != "met"} == explained_trials(job)


SILENT = [
    *[row("", (), env=(None, {"NCCL_SOCKET_IFNAME": value}), gpus=gpus)
      for value in ("eth0", "=eth0", "^docker,lo", "eth", "eth0:1", "^=lo", ",eth0", "") for gpus in (0, 1)],
    *[row("", (), env=(None, {name: "lo"}), nodes=1, per_node=4, gpus=gpus)
      for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") for gpus in (0, 1)],
    row("", (), env=(None, {"NCCL_HOSTID": "a"}), nodes=1, per_node=2),
    row("", (), odd={1: (plain(1), ON_LO)}, nodes=1, per_node=4),
    row("", (), odd={3: (plain(3), ON_LO)}, missed=[(3, "127.0.1.1")], gpus=1, backend="nccl"),
    row("", (), odd={3: ((LO, at("eth0", "10.0.0.3"), at("eth1", "192.168.9.3")), {"binds": "192.168.9.3"})}),
    row("", (), odd={3: (BOTH(3), {"binds": "fd00::3"})}, shape=BOTH, gpus=1, backend="nccl"),
    row("", (), env=(2, {"NCCL_SOCKET_FAMILY": "AF_INET6"}), shape=BOTH, gpus=1),
    row("", (), env=(2, {"NCCL_SOCKET_FAMILY": "AF_INET"})),
    row("", (), env=(2, {"GLOO_SOCKET_IFNAME": "eth0"}), odd={3: (high(3), ON_LO)}, shape=high),
    row("", (), env=(1, {"NCCL_SOCKET_IFNAME": "eth0"}), odd={2: (plain(2), ENS5)}, nodes=2),
    row("", (), shape=lambda n: (LO, at("eth0", f"172.17.0.{n}", 16)), gpus=2),
    row("", (), shape=bridged, gpus=1),
    row("", (), shape=lambda n: (LO, at("tun0", f"10.7.0.{n}"), *plain(n)[1:]), gpus=1),
    *[row("", (), env=(2, {"NCCL_SOCKET_IFNAME": value}), missed=[(3, "127.0.0.1")], gpus=1, backend="gloo")
      for value in ("ens5", "lo", "eth0, eth1", "^")],
    row("", (), env=(2, {"GLOO_SOCKET_IFNAME": "eth9"}), backend="nccl"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "ranks", "words", "commands", "env", "odd", "trials", "more"), SILENT)
def test_a_choice_that_is_reached_or_that_no_library_uses_is_silent(
    of, said, change, record, ranks, words, commands, env, odd, trials, more
):
    assert said(made(of, change, env, odd, trials, more)) == []


def test_a_node_without_interfaces_is_reported(of, said, change):
    for gpus, severity in ((1, "error"), (0, "info")):
        job = with_node(change, of(1, gpus=gpus), 1)
        assert said(job, "network.interfaces") == [("net-nccl-ifname-no-match", severity, (0,))]


def test_interfaces_that_could_not_be_listed_are_not_checked(of, judge, change):
    job = change.node(of(2), 1, interfaces=Missing(reason="no netlink"))
    assert [(n.rule, n.nodes) for n in judge(job, *FAMILIES).not_checked] == [("net-nccl-ifname-no-match", ("node2",))]


@pytest.mark.parametrize(("gpus", "severity"), [(1, "error"), (0, "info")])
def test_a_container_on_dockers_own_network_is_reported(of, said, change, gpus, severity):
    inside = (LO, at("eth0", "172.17.0.2", 16))
    job = with_node(change, of(2, gpus=gpus), 2, *inside, binds="10.0.0.99")
    job = tried(change, job, missed=[(2, "172.17.0.2")])
    assert said(job, "network.interfaces") == [("net-nccl-picks-loopback-or-docker", severity, (1,))]


def test_nodes_in_one_network_namespace_share_the_loopback(of, said, change):
    job = change.node(of(2), None, boot_id="boot", network_namespace="net:[1]")
    assert said(change.environment(job, None, NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")) == []


def test_a_second_unreachable_interface_of_nccl_is_a_warning(of, only, said, change):
    job = tried(change, of(2, two_cards, gpus=1))
    uids = [p.uid for p in job.processes]
    more = tuple(
        PeerTrial(uids[2 - n], uids[n - 1], f"10.1.0.{n}", 40000, "timeout", 3.0, uses=("nccl",)) for n in (1, 2)
    )
    finding = only(change.job(job, peers=job.peers + more))
    assert (finding.rule, finding.severity, finding.ranks) == ("net-nccl-auto-wrong-iface", "warning", (0, 1))
    other_use = tuple(change.job(t, uses=("gloo",)) for t in more)
    assert said(change.job(job, peers=job.peers + other_use)) == []


# -- host names


def test_a_host_name_on_a_slower_link_is_a_warning(of, only, change):
    job = of(2, two_cards)
    for n, slow in ((1, 100_000), (2, 1000)):
        facts, speeds = network(n, two_cards(n), binds=f"10.1.0.{n}"), {"eth0": 100_000, "eth1": slow}
        links = tuple(change.job(link, speed_Mbps=speeds.get(link.name)) for link in facts.links)
        job = change.node(job, n - 1, network=change.job(facts, links=links))
    finding = only(tried(change, job))
    assert (finding.rule, finding.severity, finding.ranks) == ("net-hostname-wrong-nic", "warning", (1,))
    assert "a slower link than eth0 (10.0.0.2), the path to rank 0" in finding.message


# -- address families


def test_a_node_without_the_address_family_of_the_others_is_an_error(of, said, change):
    both = lambda n: (LO, at("eth0", f"fd00::{n}", 64), at("eth0", f"10.0.0.{n}"))  # noqa: E731
    job = with_node(change, of(4, both), 3, *plain(3))
    job = tried(change, job, missed=[(3, n, f"fd00::{n}") for n in (1, 2, 4)])
    assert said(job, *FAMILIES, "network.peer_paths") == [("net-ipv4-ipv6-mixed", "error", (2,))]


@pytest.mark.parametrize("family", ["10.0.0.3", "fd00::3"])
def test_an_address_of_a_family_that_a_node_lacks_is_no_fault_of_its_paths(of, said, change, family):
    job = with_node(change, of(4), 3, *plain(3), at("eth0", family, 64 if ":" in family else 24))
    job = with_node(change, job, 4, *plain(4), at("eth0", "fd00::4", 64))
    uids = [p.uid for p in job.processes]
    ways = ((2, 3, "fd00::4", "unreachable"), (1, 3, "fd00::4", "unreachable"))
    trials = [PeerTrial(uids[s], uids[t], where, 40000, end, 0.01, uses=("master",)) for s, t, where, end in ways]
    job = change.job(job, peers=(*job.peers, *trials))
    assert len(explained_trials(job)) == (2 if family == "10.0.0.3" else 1)
    assert said(job, *FAMILIES) == []


@pytest.mark.parametrize(("outcome", "rules"), [
    ("timeout", [("net-ipv4-ipv6-mixed", "warning", (1,))]), ("refused", []), ("met", []),
])  # fmt: skip
def test_an_ipv6_address_that_does_not_answer_is_a_warning(of, said, change, outcome, rules):
    attempts = tuple(
        Attempt(address=address, port=29500, door="master", outcome=end)
        for address, end in (("fd00::1", outcome), ("10.0.0.1", "met"))
    )
    assert said(change.process(of(2), 1, attempts=attempts)) == rules


# -- duplicate names and addresses


def test_two_machines_that_nccl_treats_as_one_are_an_error(of, only, said, change):
    job = change.node(of(2, gpus=1), None, hostname="clone", boot_id=Missing(reason="no /proc"))
    finding = only(job)
    assert (finding.rule, finding.severity, finding.ranks) == ("net-duplicate-hostname", "error", (0, 1))
    renamed = tuple(f"sudo hostnamectl set-hostname {name}  # on {name}" for name in ("node1", "node2"))
    assert finding.fix.commands == renamed, "the scheduler's names"
    assert only(change.node(job, None, name="clone")).fix.commands == ("hostnamectl",), "they have no other name"
    one = change.node(job, None, network=network(1, plain(1)))
    assert "net-duplicate-hostname" not in [rule for rule, _, _ in said(one)]


def test_equal_host_names_with_different_boot_ids_are_silent(of, said, change):
    assert said(change.node(of(3, gpus=1), [0, 1], hostname="ubuntu")) == []


def test_one_nccl_hostid_of_a_file_on_all_machines_is_an_error(of, only, change):
    job = change.nccl_file(of(3, gpus=1), None, "NCCL_HOSTID=a")
    finding = only(job)
    assert (finding.rule, finding.severity, finding.ranks) == ("net-duplicate-hostname", "error", (0, 1, 2))
    assert (finding.fix.commands, finding.owner) == (("sudo sed -i '/^NCCL_HOSTID=/d' /etc/nccl.conf",), "admin")
    assert only(change.environment(job, 0, NCCL_HOSTID="b")).ranks == (1, 2)


def test_a_duplicate_address_explains_failing_paths_in_its_network(of, said, change):
    job = with_node(change, of(4, two_cards), 3, LO, at("eth0", "10.0.0.2"), at("eth1", "10.1.0.3"))
    job = tried(change, job, missed=[(3, 4, "10.0.0.4")])
    assert said(job, "network.hostnames", "network.peer_paths") == [("net-duplicate-ip", "error", (1, 2))]
    assert [t[1:] for t in explained_trials(job)] == [(job.processes[3].uid, "10.0.0.4")]
    elsewhere = change.environment(job, None, NCCL_SOCKET_IFNAME="eth1", GLOO_SOCKET_IFNAME="eth1")
    elsewhere = tried(change, elsewhere, missed=[(3, 4, "10.1.0.4")])
    assert ("net-asymmetric-route", "error", (2, 3)) in said(elsewhere, "network.hostnames", "network.peer_paths")


def test_a_duplicate_address_on_unused_links_is_info(of, said, change):
    job = of(2, lambda n: (*plain(n), at("eth7", "192.168.1.1")), gpus=1)
    for n in (1, 2):
        job = with_node(change, job, n, *plain(n), at("eth7", "192.168.1.1", up=True), physical=True)
    job = tried(change, change.environment(job, None, NCCL_SOCKET_IFNAME="=eth0"))
    assert said(job) == [("net-duplicate-ip", "info", (0, 1))]


def test_a_link_shared_by_two_nodes_is_no_duplicate(of, said, change):
    job = with_node(change, of(2), 2, *plain(1))
    assert said(change.node(job, 1, network=network(1, plain(1)))) == []
