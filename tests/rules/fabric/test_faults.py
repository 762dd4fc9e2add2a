"""What the rules of the fabric find: the adapters of nodes with two ranks each, variables of the ranks, the finding."""

from __future__ import annotations

import msgspec
import pytest
from made.hcas import V1, V2, efa, hfi1, infiniband, ipv4, roce, rxe

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.job import Collectives

RAILS = [infiniband(f"mlx5_{n}") for n in range(4)]
PAIR, WIDE = RAILS[:2], [infiniband(f"mlx5_{n}") for n in (0, 1, 10, 11)]
OTHER_NAMES = [infiniband(f"ibp{n}s0") for n in range(4)]
STORAGE = [*WIDE, infiniband("mlx5_storage")]
ALL = ((0, 1, 2, 3), ("node1", "node2"))
DOWN = {"state": "DOWN", "physical": "Polling"}
ZERO = "0000:0000:0000:0000"
ABSENT = [rail._replace(file="absent") for rail in PAIR]
EFAS = [efa(f"rdmap{n}s27") for n in (16, 17)]
NO_FILES = [adapter._replace(file="absent") for adapter in EFAS]
LOCAL, GLOBAL6 = "fe80:0000:0000:0000:a288:c2ff:fef0:0001", "2001:0db8:0000:0000:0000:0000:0000:0001"
SIX = ((LOCAL, V1), (LOCAL, V2), (GLOBAL6, V1), (GLOBAL6, V2))
UNSEEN = ((LOCAL, ""), (LOCAL, ""), (ipv4("10.1.0.2"), ""), (ipv4("10.1.0.2"), ""))
"""GIDs whose types and interfaces sysfs does not show."""
NO_LIBRARY = "libibverbs.so.1: cannot open shared object file: No such file or directory"
NO_GDR = {"peer_memory": (), "open_driver": False}


def but(name, rails=RAILS, **fields):
    """Return rails with one changed."""
    return [rail._replace(**fields) if rail.name == name else rail for rail in rails]


def with_facts(adapters, **fields):
    """Return a node with other facts than those of healthy libraries and modules."""
    return lambda read: read(adapters, **fields)


def plugged(adapters):
    return with_facts(adapters, net_plugin="libnccl-net.so")


def denied(adapters, *names, **facts):
    """Return a node as a device cgroup that refuses these adapters leaves it."""

    def make(read):
        found, refused = read(adapters, **facts), {"device_file": "denied", "denied": "Operation not permitted"}
        hcas = tuple(msgspec.structs.replace(h, **refused) if h.name in names else h for h in found.hcas)
        return msgspec.structs.replace(found, hcas=hcas)

    return make


def asked(adapters, offered, abi=6):
    """Return a node whose kernel tells its interface's version and whose libibverbs offers these adapters."""

    def make(read):
        found = read(adapters)
        hcas = tuple(msgspec.structs.replace(h, abi=abi) for h in found.hcas)
        return msgspec.structs.replace(found, hcas=hcas, offered=offered)

    return make


def keys(*values):
    return [infiniband(keys=values)]


def row(record, named, words, *nodes, **variables):
    return record, named, words, nodes, variables


FULL, OTHER_SUBNET = keys(0xFFFF, 0x8001), (("fe80:0000:0000:0001:a088:c203:00f0:0001", V1),)
SIX_ROCE = [roce(gids=SIX)]
MIXED = [roce(), roce("mlx5_1", gids=SIX)]
MOVED = (*SIX, (ipv4("10.1.0.3"), V1), (ipv4("10.1.0.3"), V2))
INDEX, NO_IPV4, ELSEWHERE = "roce-gid-index-wrong", "roce-no-ipv4-gid", "roce-port-in-other-namespace"
SELECTS = "mlx5_1 in NCCL_IB_HCA=mlx5_1 also selects mlx5_10 and mlx5_11"
FEWER = "node2: 3 InfiniBand or RoCE ports; other nodes have 4"
LOST = "node2: no InfiniBand or RoCE ports that NCCL_IB_HCA allows; other nodes have 2"
FAULTY = [
    row("ib-port-down warning", [3], "mlx5_2:1 of node3: down (Polling); up on the other nodes",
        RAILS, RAILS, but("mlx5_2", **DOWN), RAILS),
    row("ib-port-down error", [3], "; the node has no active port left",
        RAILS, RAILS, [rail._replace(**DOWN) for rail in RAILS], RAILS),
    row("ib-port-down warning", [1], "", but("mlx5_0", **DOWN), RAILS),
    row("ib-no-subnet-manager error", [3], "mlx5_0:1, mlx5_1:1, mlx5_2:1 and mlx5_3:1 of node3: in state INIT",
        RAILS, RAILS, [rail._replace(state="INIT") for rail in RAILS], RAILS),
    row("ib-no-subnet-manager warning", [2], "", RAILS, but("mlx5_0", state="INIT")),
    *[row("ib-rate-degraded warning", [3], f"mlx5_2:1 of node3: {rate.split()[0]} Gb/s ({rate[-7:-1]}); ports of "
          "that name on other nodes have 400 Gb/s", RAILS, RAILS, but("mlx5_2", rate=rate), RAILS)
      for rate in ("200 Gb/sec (2X NDR)", "200 Gb/sec (4X HDR)", "100 Gb/sec (1X NDR)")],
    row("ib-rate-degraded warning", [1, 2], "the other ports of its board have 400 Gb/s",
        *[[*RAILS, infiniband("mlx5_4", rate="200 Gb/sec (4X HDR)")]] * 2),
    row("ib-rate-degraded warning", [1, 2], "expected 4 lanes", *[[infiniband(rate="50 Gb/sec (1X HDR)")]] * 2),
    row("ib-sriov-vf-guid warning", [2], "", RAILS, but("mlx5_2", guid=ZERO, **DOWN)),

    *[row(f"ib-hca-no-match {severity}", [1, 2], "", WIDE, WIDE, NCCL_IB_HCA=value) for value, severity in
      (("mlx4", "error"), (" mlx5_0", "error"), ("=mlx5", "error"), ("mlx5:2", "error"), ("^", "warning"),
       ("^mlx5", "warning"))],
    row("ib-hca-no-match warning", [1, 2], "' mlx5_1' in NCCL_IB_HCA==mlx5_0, mlx5_1: the blank belongs to the name",
        WIDE, WIDE, NCCL_IB_HCA="=mlx5_0, mlx5_1"),
    row("ib-hca-no-match warning", [1, 2], "'=mlx5_1'", WIDE, WIDE, NCCL_IB_HCA="=mlx5_0,=mlx5_1"),
    row("ib-hca-no-match error", [2], "", WIDE, OTHER_NAMES, NCCL_IB_HCA="mlx5_0,mlx5_10,mlx5_11"),
    row("ib-hca-no-match error", [2], "", WIDE, [infiniband("ibp0s0")], WIDE, NCCL_IB_HCA="mlx5"),
    row("ib-hca-prefix-trap warning", [1, 2], SELECTS, WIDE, WIDE, NCCL_IB_HCA="mlx5_1"),
    row("ib-hca-prefix-trap warning", [1, 2], "also excludes mlx5_10 and mlx5_11", WIDE, WIDE, NCCL_IB_HCA="^mlx5_1"),
    row("ib-mixed-link-layer info", [1, 2], "", *[[*WIDE, roce("mlx5_bond_0")]] * 2),
    row("ib-mixed-link-layer error", [1, 2], "", WIDE, [roce(f"rocep{n}s0", f"10.{n}.0.1") for n in range(4)]),
    row("ib-hcas-differ warning", [2], FEWER, WIDE, WIDE[:3], WIDE),
    row("ib-hcas-differ error", [2], "", WIDE, [], WIDE),
    row("ib-hcas-differ error", [2], FEWER, WIDE, WIDE[:3], WIDE, NCCL_IGNORE_NET_MISMATCH="0"),
    *[row("ib-hcas-differ error", [2], FEWER, STORAGE, STORAGE[1:], WIDE, NCCL_IB_HCA=value,
          NCCL_IGNORE_NET_MISMATCH="0") for value in ("=mlx5_0,mlx5_1,mlx5_10,mlx5_11", "^mlx5_storage")],
    *[row("ib-hcas-differ error", [2], LOST, WIDE[:3], WIDE[:1], WIDE[:3], NCCL_IB_HCA=value)
      for value in ("^mlx5_0", "=mlx5_1,mlx5_10")],

    row("ib-no-device-in-container error", [2],
        "node2: mlx5_0 and mlx5_1 are active, but /dev/infiniband has no file for them", PAIR, ABSENT),
    row("ib-no-device-in-container error", [1, 2], f"libibverbs cannot be loaded ({NO_LIBRARY})",
        *[with_facts(PAIR, libibverbs=NO_LIBRARY)] * 2),
    row("ib-no-device-in-container error", [2], "node2: mlx5_0 and mlx5_1 are active, but libibverbs has no provider "
        "that fits their driver (mlx5_core, kernel ABI 6)", asked(PAIR, ("mlx5_0", "mlx5_1")), asked(PAIR, ())),
    row("ib-device-not-openable warning", [2], "1 of 2 active adapters cannot be opened: mlx5_1 (/dev/infiniband/"
        "uverbs1: Operation not permitted)", PAIR, denied(PAIR, "mlx5_1")),
    row("ib-device-not-openable error", [2], "", PAIR, denied(PAIR, "mlx5_0", "mlx5_1")),
    row("ib-device-not-openable info", [1, 2], "", *[denied(PAIR, "mlx5_1")] * 2),
    row("nccl-efa-plugin-missing warning", [1, 2], "", [efa()], [efa()]),
    row("nccl-efa-provider-missing error", [2],
        "rdmap16s27 and rdmap17s27 (EFA): /dev/infiniband has no file for them", plugged(EFAS), plugged(NO_FILES)),
    row("nccl-efa-provider-missing warning", [1, 2], "", plugged(NO_FILES), plugged(NO_FILES)),
    row("nccl-efa-provider-missing error", [2], "/dev/infiniband/uverbs0: Operation not permitted", plugged(EFAS),
        denied(EFAS, *[adapter.name for adapter in EFAS], net_plugin="libnccl-net.so")),
    *[row("nccl-efa-provider-missing warning", [1, 2], "", plugged(EFAS), plugged(EFAS), FI_PROVIDER=value)
      for value in ("tcp", "^efa", "shm;tcp")],

    row(f"{INDEX} error", [1, 2], "NCCL_IB_GID_INDEX=5 has no GID on mlx5_0:1 of node1",
        [roce()], [roce(address="10.1.0.2")], NCCL_IB_GID_INDEX="5"),
    row(f"{INDEX} error", [3], "is RoCE v2 IPv6 on mlx5_0:1 of node3, and RoCE v2 IPv4 elsewhere",
        [roce()], [roce(address="10.1.0.2")], [roce(gids=MOVED)], NCCL_IB_GID_INDEX="3"),
    *[row(f"{INDEX} warning", [1, 2], "", [roce()], [roce(address="10.1.0.2")], NCCL_IB_GID_INDEX=index)
      for index in ("0", "1", "2")],  # link-local or RoCE v1
    row(f"{INDEX} info", [1, 2], "", *[[roce(), roce("mlx5_1", gids=((LOCAL, V1), (LOCAL, V2)) * 2)]] * 2,
        NCCL_IB_GID_INDEX="3"),
    row(f"{INDEX} error", [3], "", MIXED, MIXED, [roce(gids=SIX), roce("mlx5_1", gids=SIX)], NCCL_IB_GID_INDEX="3"),
    row(f"{NO_IPV4} error", [2], "mlx5_0:1 of node2 has no IPv4 GID of type RoCE v2",
        [roce()], [roce(address="")], [roce(address="10.1.0.3")]),
    row(f"{NO_IPV4} warning", [2], "", *[[roce(), roce("mlx5_1", f"10.2.0.{n}" if n else "")] for n in (1, 0, 2)]),
    row(f"{NO_IPV4} warning", [1, 2], "", SIX_ROCE, SIX_ROCE),
    row(f"{ELSEWHERE} error", [2], "mlx5_0:1 of node2: the network interface is in another network namespace",
        [roce()], [roce(gids=UNSEEN)]),
    row(f"{ELSEWHERE} error", [2], "", [roce()], [roce(gids=UNSEEN)], NCCL_IB_GID_INDEX="3"),
    row(f"{ELSEWHERE} warning", [2], "", [roce(), roce("mlx5_1")], [roce(gids=UNSEEN), roce("mlx5_1", "10.2.0.2")]),
    row("ib-subnet-differs warning", [2], "", [infiniband()], [infiniband(gids=OTHER_SUBNET)], [infiniband()]),
    row("ib-pkey error", [2], "mlx5_0:1 of node2: not in the partition of the other ports (key 0x0001)",
        FULL, keys(0xFFFF, 0x8002), FULL, NCCL_IB_PKEY="1"),
    row("ib-pkey error", [1, 2], "", FULL, FULL, NCCL_IB_PKEY="5"),
    row("ib-pkey error", [1, 2], "limited members", keys(0x7FFF), keys(0x7FFF)),

    row("gdr-module-missing warning", [1, 2], "", *[with_facts(PAIR, **NO_GDR)] * 2),
    row("gdr-on-some-nodes warning", [2], "node1 and node3 can use it", PAIR, with_facts(PAIR, **NO_GDR), PAIR),
]  # fmt: skip


@pytest.mark.parametrize(("record", "named", "words", "nodes", "variables"), FAULTY)
def test_a_fault_of_adapters_is_one_finding_about_their_nodes(fabric, finding, record, named, words, nodes, variables):
    found = finding(fabric(*nodes, **variables))
    assert f"{found.rule} {found.severity}" == record
    assert found.nodes == tuple(f"node{n}" for n in named)
    assert found.ranks == tuple(rank for n in named for rank in (2 * n - 2, 2 * n - 1))
    assert words in found.message


HEALTHY = {
    "InfiniBand": RAILS,
    "RoCE": [roce(f"mlx5_{n}", f"10.{n}.0.1") for n in range(4)],
    "no adapters": [],
    "an unused port": [*RAILS, infiniband("mlx5_9", **DOWN)],
    "slow storage": [*RAILS, infiniband("mlx5_9", rate="100 Gb/sec (4X EDR)", board="MT_storage")],
    "management": [*RAILS, roce("mlx5_bond_0", rate="25 Gb/sec (1X EDR)")],
    "Omni-Path": [hfi1()],
    "Soft-RoCE": [rxe()],
}


@pytest.mark.parametrize("adapters", HEALTHY.values(), ids=HEALTHY)
def test_healthy_nodes_have_no_finding_above_info(fabric, judge, adapters):
    assert [f for f in judge(fabric(*[adapters] * 4)).findings if f.severity != "info"] == []


SILENT = [
    row("", [], "a single node", but("mlx5_2", **DOWN)),
    row("", [], "NCCL uses sockets", RAILS, but("mlx5_2", **DOWN), NCCL_IB_DISABLE="1"),
    row("", [], "the port that is down is excluded", RAILS, but("mlx5_2", **DOWN), NCCL_IB_HCA="=mlx5_0,mlx5_1"),
    row("", [], "other boards", RAILS, [r._replace(rate="200 Gb/sec (4X HDR)", board="MT_0000000223") for r in RAILS]),
    *[row("", [], "", WIDE, WIDE, NCCL_IB_HCA=value) for value in
      ("mlx5", "=mlx5_0,mlx5_1", "^mlx5_10", "mlx5_0:1", "mlx5_1,mlx5_10,mlx5_11", "^=mlx5_0")],
    row("", [], "several kinds of nodes", WIDE, OTHER_NAMES, NCCL_IB_HCA="mlx5_,ibp"),
    row("", [], "several kinds of nodes", WIDE, WIDE[:2], WIDE[:2]),
    row("", [], "one link layer is left", *[[*WIDE, roce("mlx5_bond_0")]] * 2, NCCL_IB_HCA="^mlx5_bond_0"),
    *[row("", [], "", STORAGE, WIDE, STORAGE, NCCL_IB_HCA=value, NCCL_IGNORE_NET_MISMATCH="0")
      for value in ("=mlx5_0,mlx5_1,mlx5_10,mlx5_11", "^mlx5_storage")],
    row("", [], "the plugin is there", plugged([efa()]), plugged([efa()])),
    row("", [], "sockets are wanted", plugged(NO_FILES), plugged(NO_FILES), NCCL_NET="Socket"),
    row("", [], "libfabric uses the other one", plugged([EFAS[0], NO_FILES[1]]), plugged(EFAS)),
    *[row("", [], "", plugged(EFAS), plugged(EFAS), FI_PROVIDER=value)
      for value in ("efa", "EFA,shm", "^psm3,udp", "", "efa-direct")],
    row("", [], "no EFA", PAIR, PAIR, FI_PROVIDER="tcp"),
    row("", [], "NCCL uses the other one", *[asked(PAIR, ("mlx5_1",))] * 2),
    row("", [], "the kernel tells no version", *[asked(PAIR, (), abi=None)] * 2),
    row("", [], "libibverbs was not asked", *[asked(PAIR, None)] * 2),
    *[row("", [], "", [roce()], [roce(address="10.1.0.2")], **variables)
      for variables in ({}, {"NCCL_IB_GID_INDEX": "3"}, {"NCCL_IB_GID_INDEX": "-1"})],
    row("", [], "InfiniBand ignores it", [infiniband()], [infiniband()], NCCL_IB_GID_INDEX="5"),
    row("", [], "ports of other names", MIXED, MIXED, NCCL_IB_GID_INDEX="3"),
    row("", [], "one port without an address on all nodes", *[[roce(), roce("mlx5_1", "")]] * 2),
    row("", [], "NCCL uses the entry of the pod's macvlan interface", [roce()],
        [roce(gids=((LOCAL, ""), (ipv4("10.1.0.9"), ""), (LOCAL, V2), (ipv4("10.1.0.2"), V2)))]),
    row("", [], "IPv6 is wanted", SIX_ROCE, SIX_ROCE, NCCL_IB_ADDR_FAMILY="AF_INET6"),
    row("", [], "a common subnet", *[[infiniband(), infiniband("mlx5_1", gids=OTHER_SUBNET)]] * 2),
    row("", [], "", FULL, FULL),
    row("", [], "one full member suffices", FULL, keys(0x7FFF, 0x0001)),
    row("", [], "", FULL, FULL, NCCL_IB_PKEY="1"),
    row("", [], "no adapters were read", Infiniband(), Infiniband()),
    row("", [], "ordering is as usual", *[with_facts(PAIR, virtual=True)] * 2),
]  # fmt: skip


@pytest.mark.parametrize(("record", "named", "why", "nodes", "variables"), SILENT)
def test_what_is_no_fault_of_adapters_is_silent(fabric, told, record, named, why, nodes, variables):
    assert told(fabric(*nodes, **variables)) == [], why


def test_adapters_do_not_matter_to_gloo_or_where_they_are_unknown(fabric, told, change):
    job = fabric(RAILS, but("mlx5_2", **DOWN))
    assert told(change.asked(job, backend="gloo")) == []
    assert told(change.node(job, None, infiniband=None)) == []


def test_distcheck_node_compares_the_ports_of_one_board(fabric, told, change):
    rails = [*RAILS, infiniband("mlx5_4")]
    one = [*rails[:4], rails[4]._replace(**DOWN)]
    for adapters, expected in ((rails, []), (one, ["ib-port-down"]), ([*RAILS[:3], infiniband("x", **DOWN)], [])):
        job = change.rank(fabric(adapters, looks=("node",)), None, environment={})
        assert [rule for rule, *_ in told(job)] == expected


def test_adapters_that_could_not_be_read_are_not_checked(fabric, judge, change):
    hanging = Missing(reason="the RDMA adapters did not answer within 5 s: an adapter or its driver hangs")
    said = judge(change.node(fabric(RAILS, RAILS), 1, infiniband=hanging), "fabric.ports")
    assert {(n.nodes, n.reason, n.required) for n in said.not_checked} == {(("node2",), hanging.reason, False)}
    assert said.findings == ()


def test_partly_read_adapters_count_and_the_gap_is_listed(fabric, judge):
    said = judge(fabric(RAILS, with_facts(but("mlx5_0", **DOWN), unread="hangs")), "fabric.ports", "fabric.hcas")
    assert [f.rule for f in said.findings] == ["ib-port-down"]
    assert {n.reason for n in said.not_checked} == {"hangs"}


def test_an_adapter_of_another_kind_and_one_port_with_both_link_layers_are_two_findings(fabric, told):
    assert ("ib-mixed-link-layer", "error", *ALL) in told(fabric(WIDE, [roce("mlx5_0"), *WIDE[1:]]))


@pytest.mark.parametrize(
    ("value", "exact"),
    [("mlx5_1:1", "=mlx5_1:1"), ("^mlx5_1:1", "'^=mlx5_1:1'"), ("mlx5_1:1,mlx5_0:1", "=mlx5_1:1,mlx5_0:1")],
)
def test_whole_names_keep_their_ports(fabric, finding, value, exact):
    assert finding(fabric(WIDE, WIDE, NCCL_IB_HCA=value)).fix.commands == (f"export NCCL_IB_HCA={exact}",)


def test_ranks_with_one_adapter_each_are_compared_by_rank(fabric, told, change):
    job = fabric(WIDE, WIDE)
    for place, rail in ((0, "=mlx5_0"), (1, "=mlx5_1"), (2, "=mlx5_0"), (3, "=mlx5_0")):
        job = change.environment(job, place, NCCL_IB_HCA=rail)
    assert told(job) == []


@pytest.mark.parametrize(
    ("nodes", "name", "wrong", "right", "record"),
    [
        (WIDE, "NCCL_IB_HCA", "mlx4", "mlx5", "ib-hca-no-match error user"),
        (plugged(EFAS), "FI_PROVIDER", "tcp", "efa", "nccl-efa-provider-missing warning user"),
    ],
)
def test_a_setting_of_a_file_counts_below_the_variable(
    fabric, finding, told, change, nodes, name, wrong, right, record
):
    job = change.nccl_file(fabric(nodes, nodes), None, f"{name}={wrong}")
    found = finding(job)
    assert f"{found.rule} {found.severity} {found.owner}" == record
    assert found.fix.commands[0] == f"sudo sed -i '/^{name}=/d' /etc/nccl.conf"
    assert told(change.environment(job, None, **{name: right})) == []
    assert finding(change.environment(job, None, **{name: wrong})).owner == "user"


@pytest.mark.parametrize(
    ("limit", "severity"),
    [(64 << 10, "error"), (8 << 20, "error"), (512 << 20, "warning"), (1 << 30, ""), (-1, ""), (None, "")],
)
def test_ib_fork_or_memlock_by_the_limit(fabric, told, change, limit, severity):
    job = change.process(fabric(PAIR, PAIR), [2, 3], locked_memory_bytes=limit)
    assert told(job) == ([("ib-fork-or-memlock", severity, (2, 3), ("node2",))] if severity else [])
    assert told(change.process(fabric([], []), None, locked_memory_bytes=limit)) == []


def test_nccl_efa_plugin_missing_until_nccls_log_decides(fabric, told, change):
    log = Collectives(backend="nccl")
    assert told(change.job(fabric([efa()], [efa()]), collectives=log)) == []
