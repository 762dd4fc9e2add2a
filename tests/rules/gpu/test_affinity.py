"""GPUs on whole machines as sysfs shows them: only the faulty ranks are named."""

from __future__ import annotations

import msgspec
import pytest
from made import machines

from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuHealth
from distcheck.facts.pci import Pci
from distcheck.probe import pci

OURS = ("gpu.affinity",)
LOOKS = ("environment", "meeting", "gpu")
replace = msgspec.structs.replace
MACHINES = {
    "dgx_h100": machines.DGX_H100,
    "dgx_a100": machines.DGX_A100,
    "pcie_l40s": machines.PCIE_L40S,
    "azure_h100": machines.AZURE_H100,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return what the tree of a machine shows; each machine is written and read once."""
    read: dict[str, Pci] = {}

    def tree(machine):
        key = repr(machine)
        if key not in read:
            read[key] = pci.collect(machines.write(tmp_path_factory.mktemp("machine"), machine))
            assert isinstance(read[key], Pci)
        return read[key]

    return tree


@pytest.fixture
def on(tree, job_of, change):
    """Build a job on these machines; rank i of a node takes GPU i and may run on every CPU."""

    def on(*shapes, per_node=8, takes=None, launcher="by hand", **variables):
        job = job_of(len(shapes), per_node, launcher=launcher, looks=LOOKS, gpus=8)
        job = change.environment(job, None, **variables)
        for n, machine in enumerate(shapes):
            gpus = job.nodes[n].gpus
            addresses = machines.gpus(machine)
            devices = tuple(replace(g, pci=a, health=GpuHealth()) for g, a in zip(gpus.devices, addresses, strict=True))
            job = change.node(job, n, gpus=replace(gpus, devices=devices), pci=tree(machine), cpus=224)
        job = change.rank(job, None, cpu_list="0-223", cpus=224)
        for i, rank in enumerate(job.ranks):
            order = (takes or {}).get(i // per_node)
            if order is not None:
                job = change.rank(job, i, gpu=f"GPU-{i // per_node + 1}-{order[rank.placement.local_rank]}")
        return job

    return on


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_healthy_machines_of_every_shape_are_silent(on, silent, name, nodes):
    assert silent(on(*[MACHINES[name]] * nodes))


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_a_job_on_part_of_a_node_is_silent(on, says, per_node):
    assert says(on(*[machines.DGX_H100] * 3, per_node=per_node)) == []


# -- gpu-far-from-cpu


def test_a_rank_pinned_to_the_other_socket_is_named(on, change, says, only):
    job = change.rank(on(machines.DGX_H100), 2, cpu_list="56-63", cpus=8)
    assert says(job) == [("gpu-far-from-cpu", "warning", (2,), ("node1",))]
    finding, _ = only(job)
    assert "bound to CPUs 56-63; the CPUs next to its GPU 2 (0000:52:00.0) are 0-55,112-167" in finding.message
    assert "numactl --cpunodebind=0" in " ".join(finding.fix.commands)


@pytest.mark.parametrize(
    ("cpus", "lists"),
    [
        (224, ["0-7"] * 4 + ["56-63"] * 4),  # next to their GPUs
        (224, ["55-111"] + ["0-223"] * 7),  # one CPU is next to the GPU
        (8, ["56-63"] * 8),  # all CPUs of the node: not pinned
        *((224, [unknown] * 8) for unknown in ("", "everywhere", "5-")),
    ],
)
def test_ranks_with_a_cpu_next_to_their_gpu_or_unknown_ones_are_silent(on, change, says, cpus, lists):
    job = change.node(on(machines.DGX_H100), 0, cpus=cpus)
    for rank, cpu_list in enumerate(lists):
        job = change.rank(job, rank, cpu_list=cpu_list, cpus=None)
    assert says(job) == []


def test_a_job_with_the_cpus_of_one_socket_names_the_gpus_of_the_other(on, change, says, only):
    job = change.rank(on(machines.DGX_H100, machines.DGX_H100), None, cpu_list="0-15", cpus=16)
    far = (4, 5, 6, 7, 12, 13, 14, 15)
    assert says(job) == [("gpu-far-from-cpu", "warning", far, ("node1", "node2"))]
    assert "same for ranks 5-7,12-15 (node1 and node2)" in only(job)[0].message


def test_nvml_takes_precedence_over_sysfs(on, change, gpus, says):
    job = change.rank(on(machines.DGX_H100), 0, cpu_list="56-63", cpus=8)
    assert says(gpus(job, each=lambda _: {"health": GpuHealth(cpus="56-111")})) == []


@pytest.mark.parametrize(
    ("launcher", "word"), [("by hand", "numactl"), ("torchrun", "--numa-binding"), ("slurm", "enforce-binding")]
)
def test_the_fix_fits_the_launcher(on, change, only, launcher, word):
    job = change.rank(on(machines.DGX_H100, launcher=launcher), 0, cpu_list="56-63", cpus=8)
    assert word in only(job)[0].fix.commands[0]


# -- gpu-far-from-nic


def test_a_list_that_leaves_one_adapter_names_the_ranks_that_are_far_from_it(on, says, only):
    job = on(machines.DGX_H100, machines.DGX_H100, NCCL_IB_HCA="=mlx5_0")
    far = (*range(1, 8), *range(9, 16))
    assert says(job) == [("gpu-far-from-nic", "warning", far, ("node1", "node2"))]
    finding, _ = only(job)
    assert "with NCCL_IB_HCA==mlx5_0 GPU 1 (0000:43:00.0) reaches the network through mlx5_0 on" in finding.message
    assert "on another root complex of its NUMA node, although mlx5_3 is on its switch" in finding.message
    assert "rank 5" in finding.evidence
    assert "mlx5_0 on another NUMA node" in finding.evidence["rank 5"]
    assert "export NCCL_IB_HCA==mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11" in finding.fix.commands


def test_only_the_node_with_another_list_is_named(on, change, says):
    job = on(*[machines.DGX_H100] * 3)
    job = change.environment(job, range(8, 16), NCCL_IB_HCA="^mlx5_9")
    assert says(job) == [("gpu-far-from-nic", "warning", (13,), ("node2",))]


@pytest.mark.parametrize(
    ("value", "far"),
    [
        ("mlx5", ()),
        ("", ()),
        ("mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11", ()),
        ("^=mlx5_1,mlx5_2,mlx5_7,mlx5_8", ()),
        # Without = it is a name prefix: mlx5_10 and mlx5_11 are excluded too.
        ("^mlx5_1,mlx5_2,mlx5_7,mlx5_8", (6, 7)),
        ("=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_1", (6, 7)),
        ("mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:2", (7,)),
        ("mlx4", ()),
    ],
)
def test_the_list_is_read_as_nccl_reads_it(on, says, value, far):
    result = says(on(machines.DGX_H100, machines.DGX_H100, NCCL_IB_HCA=value))
    both = (*far, *(rank + 8 for rank in far))
    assert result == ([("gpu-far-from-nic", "warning", both, ("node1", "node2"))] if far else [])


@pytest.mark.parametrize(
    ("lines", "found"), [(("NCCL_IB_HCA==mlx5_0",), 1), (("NCCL_IB_HCA==mlx5_0", "NCCL_IB_DISABLE=1"), 0)]
)
def test_a_configuration_file_is_read_like_the_variables(on, change, says, judge, lines, found):
    job = change.nccl_file(on(machines.DGX_H100, machines.DGX_H100), None, *lines)
    assert len(says(job)) == found
    removal = "sudo sed -i '/^NCCL_IB_HCA=/d' /etc/nccl.conf"
    assert all(f.fix.commands[0] == removal for f in judge(job, "gpu.affinity").findings)
    assert says(change.environment(job, None, NCCL_IB_HCA="")) == []


H100, LONE = machines.DGX_H100, machines.only(machines.DGX_H100, ["mlx5_0"])
SLOW, ETHERNET, ELSEWHERE = (
    machines.change(H100, "mlx5_3", **fields) for fields in ({"gbps": 100}, {"link": "Ethernet"}, {"file": False})
)
DARK = H100
for adapter in (0, 3, 4, 6, 9, 10):
    DARK = machines.change(DARK, f"mlx5_{adapter}", up=False)
ONE = {"NCCL_IB_HCA": "=mlx5_0"}
NEAREST = {
    "InfiniBand is off": (H100, ONE | {"NCCL_IB_DISABLE": "1"}),
    "sockets": (H100, ONE | {"NCCL_NET": "Socket"}),
    "a plugin decides": (H100, ONE | {"NCCL_NET_PLUGIN": "aws-ofi"}),
    "a topology file decides": (H100, ONE | {"NCCL_TOPO_FILE": "/opt/topo.xml"}),
    "a hypervisor makes up the PCI tree": (machines.AZURE_H100, ONE),
    "a single adapter": (LONE, {}),
    "half of the adapters of shared switches": (machines.DGX_A100, {"NCCL_IB_HCA": "=mlx5_0,mlx5_2,mlx5_6,mlx5_8"}),
    "the nearer one is slower": (SLOW, {"NCCL_IB_HCA": "^mlx5_3"}),
    "the nearer one has another link type": (ETHERNET, {"NCCL_IB_HCA": "^mlx5_3"}),
    "the nearer one is outside the container": (ELSEWHERE, {}),
    "ports are down everywhere": (DARK, {}),
}


@pytest.mark.parametrize("case", NEAREST)
def test_the_nearest_adapter_that_nccl_may_use_is_silent(on, says, case):
    machine, variables = NEAREST[case]
    assert says(on(machine, machine, **variables)) == []


@pytest.mark.parametrize("variables", [{"NCCL_IB_DISABLE": "true"}, {"NCCL_NET_PLUGIN": "none"}, {"NCCL_NET": "ib"}])
def test_unrelated_variables_do_not_silence_it(on, says, variables):
    assert len(says(on(H100, H100, **ONE, **variables))) == 1
    assert says(on(H100, **ONE, **variables)) == [], "a single node needs no adapter"


def test_an_adapter_of_the_other_socket_is_far_from_cards_in_slots(on, says):
    job = on(machines.PCIE_L40S, machines.PCIE_L40S, NCCL_IB_HCA="mlx5_0")
    far = (4, 5, 6, 7, 12, 13, 14, 15)
    assert says(job) == [("gpu-far-from-nic", "warning", far, ("node1", "node2"))]


def test_a_port_that_is_down_while_the_others_are_up_is_named(on, says, only):
    dark = machines.change(machines.DGX_H100, "mlx5_9", up=False)
    job = on(machines.DGX_H100, dark)
    assert says(job) == [("gpu-far-from-nic", "warning", (13,), ("node2",))]
    finding, _ = only(job)
    assert "GPU 5 (0000:c3:00.0) reaches the network through" in finding.message
    assert "mlx5_9 is on its switch but down" in finding.message
    assert finding.owner == "admin"
    assert "ibstat mlx5_9" in finding.fix.commands


def test_a_port_that_is_down_and_excluded_is_silent(on, says):
    dark = machines.change(machines.DGX_H100, "mlx5_9", up=False)
    assert says(on(machines.DGX_H100, dark, NCCL_IB_HCA="^mlx5_9")) == [
        ("gpu-far-from-nic", "warning", (5,), ("node1",))
    ]


def test_an_unreadable_pci_tree_is_not_checked(on, change, judge):
    job = change.node(on(machines.DGX_H100, machines.DGX_H100), 1, pci=Missing(reason="sysfs did not answer"))
    (unseen,) = [n for n in judge(job, "gpu.affinity").not_checked if n.rule == "gpu-far-from-nic"]
    assert (unseen.nodes, unseen.reason, unseen.required) == (("node2",), "sysfs did not answer", False)
