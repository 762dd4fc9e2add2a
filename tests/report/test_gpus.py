"""NUMA node and adapter next to a GPU, in every format."""

from __future__ import annotations

import re

import msgspec
import pytest
from made import machines

from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuHealth
from distcheck.facts.job import Job
from distcheck.facts.pci import Pci
from distcheck.facts.placement import Placement
from distcheck.probe import pci
from distcheck.report import Detail, render
from distcheck.report.document import document
from distcheck.report.gpus import gpus_without_ranks
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import verdict

replace = msgspec.structs.replace
NOTHING = Diagnosis((), (), verdict((), ()))
NICS = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")


@pytest.fixture
def on(tmp_path, job_of, judge):
    """Judge a job on nodes that are all this machine."""

    def on(machine, nodes=2, health=None):
        tree = pci.collect(machines.write(tmp_path / "root", machine))
        assert isinstance(tree, Pci)
        job = job_of(nodes, 8)
        for n, node in enumerate(job.nodes):
            devices = tuple(
                replace(gpu, pci=address, health=health)
                for gpu, address in zip(node.gpus.devices, machines.gpus(machine), strict=True)
            )
            changed = replace(node, pci=tree, gpus=replace(node.gpus, devices=devices))
            job = replace(job, nodes=(*job.nodes[:n], changed, *job.nodes[n + 1 :]))
        return judge(job)

    return on


def rows(judged: tuple[Job, Diagnosis]):
    return [row.gpu for row in document(*judged).ranks]


def test_the_row_names_the_adapter_next_to_the_gpu(on):
    found = rows(on(machines.DGX_H100))
    assert [(gpu.nic, gpu.nic_distance, gpu.numa_node) for gpu in found] == [
        (name, "PIX", n // 4) for name in (NICS, NICS) for n, name in enumerate(name)
    ]
    assert found[0].cpus == "0-55,112-167"


def test_each_node_has_the_adapters_of_its_own_pci_tree(on):
    job, judged = on(machines.DGX_H100, nodes=4)
    first, second, third, last = job.nodes
    fewer = replace(third.pci, nics=tuple(nic for nic in third.pci.nics if nic.name == "mlx5_0"))
    blind = replace(second, pci=Missing(reason="no sysfs"))
    mixed = replace(job, nodes=(first, blind, replace(third, pci=fewer), last))
    found = rows((mixed, judged))
    assert [gpu.nic for gpu in found[:8]] == [gpu.nic for gpu in found[24:]] == list(NICS)
    assert {gpu.nic for gpu in found[8:16]} == {None}
    assert {gpu.nic for gpu in found[16:24]} == {"mlx5_0"}


def test_nvml_is_preferred_to_sysfs(on):
    known = rows(on(machines.DGX_H100, health=GpuHealth(cpus="0-3", numa_node=7)))[0]
    assert (known.cpus, known.numa_node) == ("0-3", 7)
    silent = rows(on(machines.DGX_H100, health=GpuHealth()))[0]
    assert (silent.cpus, silent.numa_node) == ("0-55,112-167", 0)


def test_all_shared_adapters_are_named(on):
    lone = machines.only(machines.DGX_A100, ["mlx5_0", "mlx5_1", "mlx5_2"])
    found = rows(on(lone))
    assert [(gpu.nic, gpu.nic_distance) for gpu in found[:4]] == [
        ("mlx5_0", "PXB"), ("mlx5_1", "PXB"), ("mlx5_2", "PXB"), ("mlx5_2", "PXB"),
    ]  # fmt: skip


def test_unknown_values_are_none(on, healthy):
    found = rows(on(machines.AZURE_H100))
    assert {(gpu.nic, gpu.nic_distance) for gpu in found} == {(None, None)}
    assert [gpu.numa_node for gpu in found[:8]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {(gpu.nic, gpu.numa_node, gpu.cpus) for gpu in rows(healthy)} == {(None, None, None)}


def test_the_tables_have_columns_for_known_values_only(on, healthy):
    for name in ("text", "markdown", "html"):
        shown = render(name, *on(machines.DGX_H100))
        assert "NUMA" in shown
        assert "mlx5\\_0 PIX" in shown if name == "markdown" else "mlx5_0 PIX" in shown
        assert "NUMA" not in render(name, *healthy)
        assert "NIC" not in render(name, *healthy)


def test_the_text_of_an_h100_job_fits_in_120_columns(on):
    text = render("text", *on(machines.DGX_H100))
    assert re.search(r"0 0000:1b:00.0 GPU-node1-0 +0  mlx5_0 PIX +listening", text)
    assert max(map(len, text.splitlines())) <= 120


def test_many_adapters_at_the_same_distance_are_counted(on):
    away = machines.only(machines.PCIE_L40S, [])
    cards = tuple(machines.Card(("pci0000:70", "0000:70:01.0", f"0000:71:00.{n}"), 0, ib=f"mlx5_{n}") for n in range(3))
    judged = on(away._replace(cards=(*away.cards, *cards)))
    assert rows(judged)[0].nic == "mlx5_0,mlx5_1,mlx5_2"
    assert "mlx5_0,… (3) NODE" in render("text", *judged)


def test_an_unreadable_pci_tree_leaves_the_rest(on):
    job, diagnosis = on(machines.DGX_H100)
    job = replace(job, nodes=tuple(replace(node, pci=Missing(reason="sysfs did not answer")) for node in job.nodes))
    gpu = document(job, diagnosis).ranks[0].gpu
    assert gpu is not None
    assert (gpu.pci, gpu.nic) == ("0000:1b:00.0", None)


def test_a_hostile_name_is_escaped(on):
    machine = machines.only(machines.change(machines.DGX_H100, "mlx5_0", ib="<i>|`x`", net=""), ["<i>|`x`"])
    judged = on(machine)
    assert rows(judged)[0].nic == "<i>|`x`"
    assert "<i>" not in render("html", *judged)
    assert "\\<i\\>\\|\\`x\\`" in render("markdown", *judged)


def without_ranks(job, *nodes):
    """Return the job with processes on some nodes, by number, that know no rank."""
    keys = {job.nodes[n].key for n in nodes}
    return replace(
        job,
        ranks=tuple(
            replace(rank, placement=Placement(), gpu=None) if job.node_of(rank).key in keys else rank
            for rank in job.ranks
        ),
    )


@pytest.mark.parametrize(
    ("looks", "nodes", "expected"),
    [
        (("gpu",), (0, 1), ["node1"] * 8 + ["node2"] * 8),
        (("gpu",), (1,), ["node2"] * 8),
        (("gpu",), (), []),
        (("environment",), (0, 1), []),
        (("node", "gpu"), (0, 1), []),
    ],
)
def test_the_gpus_of_a_node_are_listed_if_no_rank_has_them(job_of, looks, nodes, expected):
    job = job_of(2, 8)
    job = without_ranks(replace(job, asked=replace(job.asked, looks=looks)), *nodes)
    assert [row.node for row in gpus_without_ranks(job)] == expected


def test_a_gpu_without_a_rank_has_its_memory_and_temperature_and_a_lost_one_its_number(job_of):
    job = without_ranks(job_of(1, 2), 0)
    good, bad = job.nodes[0].gpus.devices
    good = replace(good, memory_bytes=80 << 30, memory_used_bytes=1 << 30, health=GpuHealth(temperature_celsius=31))
    unknown = Missing("GPU is lost")
    bad = replace(bad, uuid=unknown, pci=unknown, name=unknown, memory_bytes=unknown, memory_used_bytes=unknown)
    bad = replace(bad, lost="GPU is lost", health=None)
    node = replace(job.nodes[0], gpus=replace(job.nodes[0].gpus, devices=(good, bad)))
    job = replace(job, nodes=(node,), asked=replace(job.asked, looks=("gpu",)))
    first, second = document(job, NOTHING).gpus
    assert (first.gpu.uuid, first.memory_used_bytes, first.temperature_celsius) == (good.uuid, 1 << 30, 31)
    assert (second.gpu.index, second.gpu.uuid, second.memory_bytes, second.lost) == (1, "?", None, True)
    for form in ("text", "markdown", "html"):
        page = render(form, job, NOTHING)
        assert all(words in page for words in ("80 GiB", "1 GiB", "1 ? ?", "lost", "node1: 2 GPUs"))


def test_of_many_gpus_without_ranks_the_first_are_shown(job_of):
    job = job_of(8, 8)
    job = without_ranks(replace(job, asked=replace(job.asked, looks=("gpu",))), *range(8))
    assert "32 more GPUs; -v shows them" in render("text", job, NOTHING)
    assert "more GPUs" not in render("text", job, NOTHING, options=Detail(verbose=True))
