"""The rules about NCCL's logs: each fault names its ranks; a healthy job is silent."""

from __future__ import annotations

import msgspec
import pytest
from made.nvml_jobs import told

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, GpuHealth, Gpus, NvLinks, PeerAccess
from distcheck.facts.nccl import NcclLog
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.facts.rank import RankRun

replace = msgspec.structs.replace
LOOKS = ("environment", "meeting", "gpu", "collectives")
FAMILIES = ("collectives.nccl_network", "collectives.nccl_intranode")
PLACE = PciPlace(path=(), numa_node=None)
IB = tuple(
    Nic(name=f"mlx5_{n}", place=PLACE, kind="ib", link_layer="InfiniBand", ports=(1,), rate_Gbps=400.0)
    for n in range(2)
)
ROCE = tuple(replace(nic, link_layer="Ethernet") for nic in IB)
EFA = tuple(replace(nic, name=f"rdmap{n}s0", link_layer="Unspecified") for n, nic in enumerate(IB))
ETHERNET = (Nic(name="eth0", place=PLACE, kind="ethernet", rate_Gbps=25.0),)
NVLS = {"all_reduce 4": "RING/LL", "all_reduce 268435456": "NVLS/SIMPLE"}
SOCKET = {
    "network": "Socket",
    "devices": ("eth0",),
    "no_ib_device": True,
    "gdr": False,
    "gdr_devices": {"eth0": False},
}


def log_of(rank, shape):
    """Return a healthy rank's log: 8 GPUs per node on NVSwitches, InfiniBand between nodes."""
    world, here = sum(shape), next(n for n, _ in enumerate(shape) if rank < sum(shape[: n + 1]))
    first = sum(shape[:here])
    beside = tuple(sorted({first + (rank - first + step) % shape[here] for step in (1, -1)} - {rank}))
    out = len(shape) > 1 and rank == first
    return NcclLog(
        version="2.27.5",
        ranks=world,
        nodes=len(shape),
        local_ranks=shape[here],
        nvls_channels=16,
        nvls_available=True,
        algorithms=NVLS if rank == 0 else {},
        transports={"P2P/CUMEM": 48} | ({"NET/IB/0/GDRDMA": 2} if out else {}),
        peers={"P2P": beside} | ({"NET": ((first + shape[here]) % world,)} if out else {}),
        network="IB",
        devices=("mlx5_0:1/IB", "mlx5_1:1/IB"),
        gdr=True if out else None,
        gdr_devices={"mlx5_0": True, "mlx5_1": True},
        plugins_missing=("NET libnccl-net.so", "TUNER libnccl-tuner.so"),
    )


@pytest.fixture
def nccl_job(job_of, change):
    """Build a healthy NCCL job on nodes with 8 H100."""

    def build(nodes=2, per_node=8, nics=IB):
        shape = (per_node,) * nodes
        job = job_of(nodes, per_node, looks=LOOKS, gpus=8, backend="nccl")
        links = NvLinks(active=(True,) * 18, remote=("switch",) * 18)
        health = GpuHealth(nvlinks=links, fabric=Fabric(3, 0, "", 0, 0, 1))
        access = tuple(PeerAccess((a, b), 0, 0, 0) for a in range(8) for b in range(a))
        for n, node in enumerate(job.nodes):
            devices = tuple(replace(gpu, name="NVIDIA H100 80GB HBM3", health=health) for gpu in node.gpus.devices)
            gpus = replace(node.gpus, devices=devices, peer_access=access)
            job = change.node(job, n, gpus=gpus, pci=Pci(gpus={}, nics=nics))
        for i in range(len(job.ranks)):
            run = RankRun(pid=100 + i, step="done", outcome="done", device="NVIDIA H100", nccl=log_of(i, shape))
            job = change.rank(job, i, run=run)
        return job

    return build


@pytest.fixture
def logs(change):
    """Change fields of the logs of these ranks (None: all)."""

    def changed(job, where, **fields):
        for i in range(len(job.ranks)) if where is None else where:
            run = job.ranks[i].run
            job = change.rank(job, i, run=replace(run, nccl=replace(run.nccl, **fields)))
        return job

    return changed


@pytest.fixture
def says(judge):
    """Return the findings of these families: rule, severity, ranks, nodes."""
    return told(judge, *FAMILIES)


ALL16, NODE1, NODE2 = tuple(range(16)), tuple(range(8)), tuple(range(8, 16))
BOTH = ("node1", "node2")


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("per_node", [1, 2, 8])
@pytest.mark.parametrize("nics", [IB, ROCE, ETHERNET, ()])
def test_a_healthy_job_is_silent(nccl_job, says, nodes, per_node, nics):
    assert says(nccl_job(nodes, per_node, nics)) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_gloo_and_ranks_that_were_not_started_are_silent(nccl_job, change, says, nodes):
    job = nccl_job(nodes)
    assert says(change.rank(job, None, run=RankRun(pid=1, step="done", outcome="done"))) == []
    assert says(change.rank(job, None, run=None)) == []


def test_an_empty_log_is_silent(nccl_job, change, says):
    job = nccl_job()
    empty = RankRun(pid=1, step="done", outcome="done", nccl=NcclLog())
    assert says(change.rank(job, None, run=empty)) == []


def test_a_log_that_could_not_be_read_is_listed_and_fails_nothing(nccl_job, change, judge):
    job = nccl_job()
    run = RankRun(pid=1, step="done", outcome="done", nccl=Missing(reason="it was left"))
    said = judge(change.rank(job, [3, 9], run=run), *FAMILIES)
    assert [(n.ranks, n.nodes, n.reason, n.required) for n in said.not_checked] == [
        ((3, 9), BOTH, "it was left", False)
    ]
    assert said.verdict.exit_code == 0


SLOW, PLUGIN, BYPASS, NVLS_RULE, GDR, SPLIT = (
    "perf-socket-instead-of-ib", "nccl-net-plugin-missing", "perf-p2p-not-nvlink", "perf-nvls-not-used", "gdr-not-used",
    "nccl-hostid-split",
)  # fmt: skip
AWS = {"network": "AWS Libfabric", "plugins": ("NET AWS Libfabric (v8)",)}
BROKEN = {"plugins_missing": (), "plugins_failed": ("NET libnccl-net-ofi.so: libfabric.so.1: cannot open",)}
OFI, LIBFABRIC = {"settings": {"NCCL_NET_PLUGIN": "ofi"}}, {"settings": {"NCCL_NET": "AWS Libfabric"}}
RING = {"all_reduce 268435456": "RING/SIMPLE"}
SMALL_RING = {"all_reduce 67108864": "RING/SIMPLE"}
NO_NVLS = {"nvls_channels": 0}
HOST_A = {"nodes": 9, "local_ranks": 1, "peers": {"NET": (0, 9)}, "settings": {"NCCL_HOSTID": "a"}}
DOWN = tuple(replace(nic, active=False) for nic in IB)
CASES = [
    # nodes, adapters, ranks whose logs change, fields of the logs; then rule, severity, ranks, what the finding says
    (2, IB, None, SOCKET, SLOW, "error", ALL16, "scope job; mlx5_0 (InfiniBand, 400 Gb/s); NET/IB : No device found."),
    (2, IB, None, {**SOCKET, "settings": {"NCCL_IB_DISABLE": "1"}}, SLOW, "warning", ALL16,
     "NCCL_IB_DISABLE=1 selects; unset NCCL_IB_DISABLE"),
    (2, IB, None, {**SOCKET, "settings": {"NCCL_NET": "Socket"}}, SLOW, "warning", ALL16,
     "NCCL_NET=Socket selects; unset NCCL_NET"),
    (2, ROCE, None, SOCKET, SLOW, "warning", ALL16, ""),
    (2, EFA, None, SOCKET, PLUGIN, "error", ALL16, "libnccl-net.so; its own Socket; /opt/amazon/ofi-nccl/lib"),
    (2, IB, NODE2, {**BROKEN, **OFI}, PLUGIN, "warning", NODE2,
     "NCCL_NET_PLUGIN=ofi requires; its own IB transport; libfabric.so.1: cannot open; $(find / -name "),
    (2, IB, NODE2, {**BROKEN, **LIBFABRIC}, PLUGIN, "warning", NODE2, "NCCL_NET=AWS Libfabric requires"),
    (2, IB, NODE2, {**BROKEN, **OFI, "network": ""}, PLUGIN, "error", NODE2, "has no network"),
    (1, IB, [2], {"peers": {"P2P": (1,), "SHM": (3,)}}, BYPASS, "warning", (2,),
     "GPUs of the same node that NVLink connects"),
    (1, IB, [2], {"peers": {"P2P": (1,), "NET": (3,)}}, BYPASS, "warning", (2,),
     "GPUs of the same node that NVLink connects"),
    (1, IB, None, {"peers": {"SHM": (0, 1)}, "settings": {"NCCL_P2P_DISABLE": "1"}}, BYPASS, "warning", NODE1,
     "scope job; owner user; NVLink connects; NCCL_P2P_DISABLE=1 is set; unset NCCL_P2P_DISABLE"),
    (1, IB, [0], {"algorithms": NVLS | RING}, NVLS_RULE, "warning", NODE1,
     "RING/SIMPLE for all_reduce of 256 MiB"),
    (1, IB, [0], {"algorithms": SMALL_RING, "nvls_available": False, **NO_NVLS, "plugins": ("TUNER ofi",)}, NVLS_RULE,
     "warning", NODE1, "not available; 'NVLS channels': 0; TUNER ofi"),
    (2, IB, [8], {"gdr": False, "gdr_devices": {"mlx5_0": False}}, GDR, "warning", (8,),
     "does not let mlx5_0 access GPU memory; nvidia-peermem"),
    (2, IB, [0, 8], {"gdr": False}, GDR, "warning", (0, 8), ""),
    (2, IB, [8], {"gdr": False}, GDR, "info", (8,), ""),
    (2, IB, [8], {"gdr": False, "settings": {"NCCL_NET_GDR_LEVEL": "LOC"}}, GDR, "warning", (8,),
     "NCCL_NET_GDR_LEVEL=LOC is set"),
    (2, IB, NODE2, HOST_A, SPLIT, "warning", NODE2,
     "NCCL counts 1 of the 8 ranks of node2 on one node; NCCL_HOSTID=a is set"),
    (2, IB, NODE2, {**HOST_A, "settings": {}}, SPLIT, "warning", NODE2,
     "NCCL counts 1 of the 8 ranks of node2 on one node"),
    (2, IB, None, {"nodes": 1, "local_ranks": 16}, SPLIT, "error", ALL16, ""),
]  # fmt: skip
SILENT = [
    (2, ETHERNET, None, SOCKET),
    (2, DOWN, None, SOCKET),
    (1, IB, None, SOCKET),
    (2, EFA, None, AWS),
    (2, IB, NODE2, {**BROKEN, **OFI, "network": "Libfabric"}),
    (2, IB, None, {"settings": {"NCCL_NET_PLUGIN": "none"}}),
    (2, IB, None, {"settings": {"NCCL_NET": "IB"}}),
    (2, IB, None, {"settings": {"NCCL_NET": "Socket"}}),
    (2, IB, [0], {"peers": {"P2P": (1,), "NET": (8, 9)}}),
    (1, IB, [0], {"algorithms": {"all_reduce 1048576": "RING/LL"}}),
    (1, IB, [0], {"algorithms": {"268435456": "RING/SIMPLE"}}),
    (1, IB, [0], {"algorithms": {"broadcast 268435456": "RING/SIMPLE"}}),
    (1, IB, [0], {"algorithms": {"all_reduce 268435456": "SYMMETRIC/AllReduce_RSxLDMC_AGxSTMC"}}),
    (1, IB, [0], {"algorithms": RING, "version": "2.16.5"}),
    (1, IB, [0], {"algorithms": RING, "settings": {"NCCL_NVLS_ENABLE": "0"}}),
    (1, IB, [0], {"algorithms": RING, "settings": {"NCCL_ALGO": "Ring"}}),
    (1, IB, [0], {"algorithms": RING, "settings": {"NCCL_ALGO": "^NVLS"}}),
    (1, IB, [0], {"algorithms": RING, "settings": {"NCCL_PROTO": "LL128"}}),
    (1, IB, [0], {"algorithms": RING, "nodes": 2, "local_ranks": 8}),
    (2, IB, [0], {"algorithms": RING}),
    (2, IB, [0, 8], {"gdr": False, "gdr_devices": {}}),
    (2, IB, None, {"nodes": 1, "local_ranks": 16, "mnnvl": True}),
    (2, IB, None, {"nodes": None, "local_ranks": None}),
]


@pytest.mark.parametrize(("nodes", "nics", "where", "fields", "rule", "severity", "ranks", "words"), CASES)
def test_what_the_logs_show(nccl_job, logs, judge, nodes, nics, where, fields, rule, severity, ranks, words):
    found = judge(logs(nccl_job(nodes, nics=nics), where, **fields), *FAMILIES).findings
    names = tuple(name for name, its in zip(BOTH, (NODE1, NODE2), strict=True) if {*its} & {*ranks})
    assert [(f.rule, f.severity, f.ranks, f.nodes) for f in found] == [(rule, severity, ranks, names)]
    said = f"{found[0].message}; scope {found[0].scope}; owner {found[0].owner}; {found[0].evidence}; {found[0].fix}"
    assert [part for part in words.split("; ") if part not in said] == []


@pytest.mark.parametrize(("nodes", "nics", "where", "fields"), SILENT)
def test_what_is_no_fault_is_silent(nccl_job, logs, says, nodes, nics, where, fields):
    assert says(logs(nccl_job(nodes, nics=nics), where, **fields)) == []


def test_only_nodes_that_have_such_adapters_are_named(nccl_job, logs, change, judge):
    job = change.node(logs(nccl_job(), None, **SOCKET), 0, pci=Pci(gpus={}, nics=ETHERNET))
    (finding,) = judge(job, *FAMILIES).findings
    assert (finding.rule, finding.severity, finding.ranks, finding.scope) == (SLOW, "error", NODE2, "node")


def test_sockets_are_not_judged_without_adapter_facts(nccl_job, logs, change, judge):
    job = change.node(logs(nccl_job(), None, **SOCKET), None, pci=None)
    said = judge(job, *FAMILIES)
    assert said.findings == ()
    assert [(n.rule, n.nodes, n.required) for n in said.not_checked] == [("perf-socket-instead-of-ib", BOTH, False)]


def test_googles_plugin_is_expected_where_its_variables_are_set(nccl_job, logs, change, says):
    job = change.environment(logs(nccl_job(nics=ETHERNET), None, **SOCKET), None, NCCL_FASTRAK_CTRL_DEV="eth0")
    assert says(job) == [("nccl-net-plugin-missing", "error", ALL16, BOTH)]
    assert says(logs(job, None, network="FasTrak", gdr=True)) == []


@pytest.mark.parametrize(
    ("name", "value", "fields"),
    [
        ("NCCL_P2P_LEVEL", "LOC", {"peers": {"SHM": (0, 1, 8, 9)}}),
        ("NCCL_IB_DISABLE", "1", SOCKET),
        ("NCCL_NET", "Socket", SOCKET),
        ("NCCL_NET_GDR_LEVEL", "LOC", {"gdr": False}),
        ("NCCL_HOSTID", "a", {"nodes": 1, "local_ranks": 16}),
        ("NCCL_HOSTID", "a", {"nodes": 16, "local_ranks": 1, "peers": {"NET": (0, 9)}}),
    ],
)
def test_a_setting_of_nccls_files_is_removed_from_them(nccl_job, logs, change, judge, name, value, fields):
    line, home = f"{name}={value}", "/home/eve/.nccl.conf"
    site = change.nccl_file(logs(nccl_job(), None, settings={name: value}, **fields), None, line)
    job = change.nccl_file(site, NODE2, line, path=home, origin="HOME+passwd")
    command = f"sed -i '/^{name}=/d'"
    commands = [c for f in judge(job, *FAMILIES).findings for c in f.fix.commands if name in c]
    assert set(commands) == {f"sudo {command} /etc/nccl.conf", f"{command} {home}"}
    assert {f.owner for f in judge(job, *FAMILIES).findings if f.scope == "job"} <= {"user"}
    (owner,) = {f.owner for f in judge(site, *FAMILIES).findings}
    assert owner == "admin"


@pytest.mark.parametrize("access", [(1, 0, 0), (0, 3, 0), (0, 0, 1)])
def test_gpus_without_nvlink_or_peer_access_may_use_shared_memory(nccl_job, logs, change, says, access):
    job = logs(nccl_job(1), [2], peers={"SHM": (3,)})
    pairs = tuple(PeerAccess((a, b), *access) for a in range(8) for b in range(a))
    assert says(change.node(job, 0, gpus=replace(job.nodes[0].gpus, peer_access=pairs))) == []


def test_nvls_is_not_expected_with_few_gpus_or_other_hardware(nccl_job, logs, change, says):
    assert says(logs(nccl_job(1, 4), [0], algorithms=RING)) == []
    job = logs(nccl_job(1), [0], algorithms=RING)
    gpus = job.nodes[0].gpus
    assert isinstance(gpus, Gpus)

    def with_gpus(**fields):
        return change.node(job, 0, gpus=replace(gpus, devices=tuple(replace(g, **fields) for g in gpus.devices)))

    health = gpus.devices[0].health
    assert says(with_gpus(name="NVIDIA A100-SXM4-80GB")) == []
    assert says(with_gpus(health=replace(health, nvlinks=NvLinks(active=(True,) * 12, remote=("gpu",) * 12)))) == []
    assert says(with_gpus(health=replace(health, fabric=Fabric(2, 0, "", 0, 0, 0)))) == []
    assert says(change.node(job, 0, gpus=replace(gpus, confidential_compute=True))) == []


def test_desktop_gpus_are_left_out(nccl_job, logs, change, says):
    job = logs(nccl_job(), [0, 8], gdr=False)
    for n, node in enumerate(job.nodes):
        devices = tuple(replace(gpu, name="NVIDIA GeForce RTX 4090") for gpu in node.gpus.devices)
        job = change.node(job, n, gpus=replace(node.gpus, devices=devices))
    assert says(job) == []


def test_pods_of_one_machine_that_nccl_treats_as_one_node_are_healthy(nccl_job, logs, change, says):
    job = change.node(logs(nccl_job(), None, nodes=1, local_ranks=16), None, boot_id="boot")
    assert says(job) == []


def test_nodes_are_not_compared_if_ranks_are_missing(nccl_job, logs, change, says):
    assert says(change.keep(logs(nccl_job(), None, nodes=1, local_ranks=16), 0, 1)) == []
