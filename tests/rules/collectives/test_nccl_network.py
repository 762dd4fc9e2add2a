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
from distcheck.rules import find_rule

replace = msgspec.structs.replace
LOOKS = ("environment", "meeting", "gpu", "collectives")
FAMILIES = ("nccl_transport", "nccl_nodes")
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
        nvls_created=True,
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


def test_perf_socket_instead_of_ib_names_all_nodes_without_access_to_their_adapters(nccl_job, logs, says, judge):
    job = logs(nccl_job(), None, **SOCKET)
    assert says(job) == [("perf-socket-instead-of-ib", "error", ALL16, BOTH)]
    (finding,) = judge(job, *FAMILIES).findings
    assert finding.scope == "job"
    assert "mlx5_0 (InfiniBand, 400 Gb/s)" in finding.message
    assert finding.evidence["NCCL says"] == "NET/IB : No device found."


def test_perf_socket_instead_of_ib_names_only_nodes_that_have_such_adapters(nccl_job, logs, change, says, judge):
    job = change.node(logs(nccl_job(), None, **SOCKET), 0, pci=Pci(gpus={}, nics=ETHERNET))
    assert says(job) == [("perf-socket-instead-of-ib", "error", NODE2, ("node2",))]
    assert judge(job, *FAMILIES).findings[0].scope == "node"


@pytest.mark.parametrize("variable", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_sockets_selected_by_a_variable_are_a_warning_that_names_it(nccl_job, logs, says, judge, variable):
    job = logs(nccl_job(), None, **SOCKET, settings=variable)
    assert says(job) == [("perf-socket-instead-of-ib", "warning", ALL16, BOTH)]
    ((name, value),) = variable.items()
    (finding,) = judge(job, *FAMILIES).findings
    assert f"{name}={value}" in finding.message
    assert finding.fix.commands == (f"unset {name}",)


def test_sockets_beside_roce_are_a_warning_and_beside_ethernet_silent(nccl_job, logs, says):
    assert says(logs(nccl_job(nics=ROCE), None, **SOCKET)) == [("perf-socket-instead-of-ib", "warning", ALL16, BOTH)]
    assert says(logs(nccl_job(nics=ETHERNET), None, **SOCKET)) == []
    down = tuple(replace(nic, active=False) for nic in IB)
    assert says(logs(nccl_job(nics=down), None, **SOCKET)) == []


def test_sockets_on_one_node_are_silent(nccl_job, logs, says):
    assert says(logs(nccl_job(1), None, **SOCKET)) == []


def test_sockets_are_not_judged_without_adapter_facts(nccl_job, logs, change, judge):
    job = change.node(logs(nccl_job(), None, **SOCKET), None, pci=None)
    said = judge(job, *FAMILIES)
    assert said.findings == ()
    assert [(n.rule, n.nodes, n.required) for n in said.not_checked] == [("perf-socket-instead-of-ib", BOTH, False)]


def test_nccl_net_plugin_missing_is_an_error_on_efa_and_the_only_finding(nccl_job, logs, says, judge):
    job = logs(nccl_job(nics=EFA), None, **SOCKET)
    assert says(job) == [("nccl-net-plugin-missing", "error", ALL16, BOTH)]
    (finding,) = judge(job, *FAMILIES).findings
    assert "libnccl-net.so was not found" in finding.message
    assert "/opt/amazon/ofi-nccl/lib" in " ".join(finding.fix.commands)
    used = logs(nccl_job(nics=EFA), None, network="AWS Libfabric", plugins=("NET AWS Libfabric (v8)",))
    assert says(used) == []


@pytest.mark.parametrize(("name", "value"), [("NCCL_NET_PLUGIN", "ofi"), ("NCCL_NET", "AWS Libfabric")])
def test_a_required_plugin_that_does_not_load_is_named_with_its_reason(nccl_job, logs, says, judge, name, value):
    broken = {"plugins_missing": (), "plugins_failed": ("NET libnccl-net-ofi.so: libfabric.so.1: cannot open",)}
    job = logs(nccl_job(), NODE2, settings={name: value}, **broken)
    assert says(job) == [("nccl-net-plugin-missing", "warning", NODE2, ("node2",))]
    (finding,) = judge(job, *FAMILIES).findings
    assert f"{name}={value}" in finding.message
    assert "could not be loaded" in finding.message
    assert finding.evidence["failed"] == ["NET libnccl-net-ofi.so: libfabric.so.1: cannot open"]
    assert finding.fix.commands[-1].startswith('export LD_LIBRARY_PATH="$(dirname "$(find / -name ')
    assert says(logs(job, NODE2, network="")) == [("nccl-net-plugin-missing", "error", NODE2, ("node2",))]
    assert says(logs(job, NODE2, network="Libfabric")) == []


def test_googles_plugin_is_expected_where_its_variables_are_set(nccl_job, logs, change, says):
    job = change.environment(logs(nccl_job(nics=ETHERNET), None, **SOCKET), None, NCCL_FASTRAK_CTRL_DEV="eth0")
    assert says(job) == [("nccl-net-plugin-missing", "error", ALL16, BOTH)]
    assert says(logs(job, None, network="FasTrak", gdr=True)) == []


@pytest.mark.parametrize("value", ["none", "IB", "Socket"])
def test_nccls_own_transports_are_no_plugins(nccl_job, logs, says, value):
    name = "NCCL_NET_PLUGIN" if value == "none" else "NCCL_NET"
    assert says(logs(nccl_job(), None, settings={name: value})) == []


@pytest.mark.parametrize("how", ["SHM", "NET"])
def test_perf_p2p_not_nvlink_names_the_ranks_that_bypass_nvlink(nccl_job, logs, says, judge, how):
    job = logs(nccl_job(1), [2], peers={"P2P": (1,), how: (3,)}, transports={f"{how}/x": 4})
    assert says(job) == [("perf-p2p-not-nvlink", "warning", (2,), ("node1",))]
    assert judge(job, *FAMILIES).findings[0].message.endswith("GPUs of the same node that NVLink connects")


def test_perf_p2p_not_nvlink_names_the_variable(nccl_job, logs, judge):
    job = logs(nccl_job(1), None, peers={"SHM": (0, 1)}, settings={"NCCL_P2P_DISABLE": "1"})
    (finding,) = judge(job, *FAMILIES).findings
    assert (finding.rule, finding.ranks, finding.scope) == ("perf-p2p-not-nvlink", NODE1, "job")
    assert finding.message.endswith("NVLink connects; NCCL_P2P_DISABLE=1 is set")
    assert (finding.fix.commands, finding.owner) == (("unset NCCL_P2P_DISABLE",), "user")


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


def test_the_network_between_nodes_does_not_bypass_nvlink(nccl_job, logs, says):
    assert says(logs(nccl_job(), [0], peers={"P2P": (1,), "NET": (8, 9)})) == []


def test_perf_nvls_not_used_is_reported_for_eight_gpus_on_switches_at_large_sizes(nccl_job, logs, says, judge):
    job = logs(nccl_job(1), [0], algorithms=NVLS | {"all_reduce 268435456": "RING/SIMPLE"})
    assert says(job) == [("perf-nvls-not-used", "warning", NODE1, ("node1",))]
    (finding,) = judge(job, *FAMILIES).findings
    assert "RING/SIMPLE for all_reduce of 256 MiB" in finding.message
    assert "its model chose another algorithm" in finding.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nvls_available": False, "nvls_created": False, "nvls_channels": 0}, "no multicast support"),
        ({"nvls_created": False, "nvls_channels": 0}, "set up no channels"),
        ({"plugins": ("TUNER nccl_ofi_tuner",)}, "the TUNER nccl_ofi_tuner plugin chose another algorithm"),
    ],
)
def test_the_likely_reason_is_given(nccl_job, logs, judge, fields, words):
    job = logs(nccl_job(1), [0], algorithms={"all_reduce 67108864": "RING/SIMPLE"}, **fields)
    (finding,) = judge(job, *FAMILIES).findings
    assert words in finding.message


RING = {"all_reduce 268435456": "RING/SIMPLE"}


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithms": {"all_reduce 1048576": "RING/LL"}},
        {"algorithms": {"268435456": "RING/SIMPLE"}},
        {"algorithms": {"broadcast 268435456": "RING/SIMPLE"}},
        {"algorithms": {"all_reduce 268435456": "SYMMETRIC/AllReduce_RSxLDMC_AGxSTMC"}},
        {"algorithms": RING, "version": "2.16.5"},
        {"algorithms": RING, "settings": {"NCCL_NVLS_ENABLE": "0"}},
        {"algorithms": RING, "settings": {"NCCL_ALGO": "Ring"}},
        {"algorithms": RING, "settings": {"NCCL_ALGO": "^NVLS"}},
        {"algorithms": RING, "settings": {"NCCL_PROTO": "LL128"}},
        {"algorithms": RING, "nodes": 2, "local_ranks": 8},
    ],
)
def test_nvls_is_not_expected_in_these_cases(nccl_job, logs, says, fields):
    assert says(logs(nccl_job(1), [0], **fields)) == []


def test_nvls_is_not_expected_with_few_gpus_on_several_nodes_or_other_hardware(nccl_job, logs, change, says):
    assert says(logs(nccl_job(1, 4), [0], algorithms=RING)) == []
    assert says(logs(nccl_job(2), [0], algorithms=RING)) == []
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


def test_gdr_not_used_reports_that_the_driver_does_not_allow_it(nccl_job, logs, says, judge):
    job = logs(nccl_job(), [8], gdr=False, gdr_devices={"mlx5_0": False}, transports={"NET/IB/0": 2})
    assert says(job) == [("gdr-not-used", "warning", (8,), ("node2",))]
    (finding,) = judge(job, *FAMILIES).findings
    assert "does not let mlx5_0 access GPU memory" in finding.message
    assert "nvidia-peermem" in " ".join(finding.fix.commands)


def test_gdr_unused_by_all_is_a_warning_and_unused_by_some_is_info(nccl_job, logs, says):
    job = nccl_job()
    assert says(logs(job, [0, 8], gdr=False)) == [("gdr-not-used", "warning", (0, 8), BOTH)]
    assert says(logs(job, [8], gdr=False)) == [("gdr-not-used", "info", (8,), ("node2",))]


def test_a_level_that_forbids_gdr_is_named(nccl_job, logs, judge):
    job = logs(nccl_job(), [8], gdr=False, settings={"NCCL_NET_GDR_LEVEL": "LOC"})
    (finding,) = judge(job, *FAMILIES).findings
    assert (finding.rule, finding.severity) == ("gdr-not-used", "warning")
    assert "NCCL_NET_GDR_LEVEL=LOC is set" in finding.message


def test_desktop_gpus_and_unreported_adapters_are_left_out(nccl_job, logs, change, says):
    job = logs(nccl_job(), [0, 8], gdr=False)
    assert says(logs(job, None, gdr_devices={})) == []
    for n in range(2):
        gpus = job.nodes[n].gpus
        job = change.node(
            job, n, gpus=replace(gpus, devices=tuple(replace(g, name="NVIDIA GeForce RTX 4090") for g in gpus.devices))
        )
    assert says(job) == []


def test_nccl_hostid_split_names_the_node_that_nccl_splits(nccl_job, logs, says, judge):
    job = logs(nccl_job(), NODE2, nodes=9, local_ranks=1, peers={"NET": (0, 9)}, settings={"NCCL_HOSTID": "a"})
    job = logs(job, NODE1, nodes=9)
    assert says(job) == [("nccl-hostid-split", "warning", NODE2, ("node2",))]
    (finding,) = judge(job, *FAMILIES).findings
    counted = "NCCL counts 1 of the 8 ranks of node2 on one node"
    assert finding.message.endswith(f"{counted}; NCCL_HOSTID=a is set")
    (finding,) = judge(logs(job, None, settings={}), *FAMILIES).findings
    assert finding.message.endswith(counted)


def test_machines_that_nccl_treats_as_one_are_an_error(nccl_job, logs, says):
    job = logs(nccl_job(), None, nodes=1, local_ranks=16)
    assert says(job) == [("nccl-hostid-split", "error", ALL16, BOTH)]
    assert says(logs(job, None, mnnvl=True)) == [], "NVLink joins them"


def test_pods_of_one_machine_that_nccl_treats_as_one_node_are_healthy(nccl_job, logs, change, says):
    job = change.node(logs(nccl_job(), None, nodes=1, local_ranks=16), None, boot_id="boot")
    assert says(job) == []


def test_nodes_are_not_compared_if_ranks_or_counts_are_missing(nccl_job, logs, change, says):
    assert says(logs(nccl_job(), None, nodes=None, local_ranks=None)) == []
    assert says(change.keep(logs(nccl_job(), None, nodes=1, local_ranks=16), 0, 1)) == []


def test_aliases_lead_to_these_rules():
    assert find_rule("gdr-level-too-strict").name == "gdr-not-used"
