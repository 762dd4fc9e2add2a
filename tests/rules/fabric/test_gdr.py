"""GPUDirect RDMA: on all nodes, some or none, and what hinders it."""

from __future__ import annotations

import pytest
from made import machines
from made.hcas import infiniband

from distcheck.facts.gpu import Gpus
from distcheck.facts.nccl import NcclLog
from distcheck.facts.rank import RankRun
from distcheck.probe import pci

RAIL = [infiniband()]
NODE2 = ((2, 3), ("node2",))
ALL = ((0, 1, 2, 3), ("node1", "node2"))
NONE = {"peer_memory": (), "open_driver": False}


@pytest.mark.parametrize(
    ("facts", "kernel"),
    [
        ({"peer_memory": ("nv_mem",), "open_driver": False}, "5.4.0"),
        ({"peer_memory": (), "open_driver": True}, "5.15.0-91-generic"),
        ({"peer_memory": (), "open_driver": None}, "5.4.0"),
    ],
    ids=["legacy module", "dma-buf", "unknown driver"],
)
def test_gpudirect_rdma_that_works_or_is_unknown_is_silent(fabric, read, told, change, facts, kernel):
    assert told(change.node(fabric(*[read(RAIL, **facts)] * 2), None, kernel=kernel)) == []


def test_the_open_driver_needs_a_kernel_with_dma_buf(fabric, read, told, change):
    job = change.node(fabric(*[read(RAIL, peer_memory=(), open_driver=True)] * 2), None, kernel="5.4.0-150-generic")
    assert [rule for rule, *_ in told(job)] == ["gdr-module-missing"]


def test_desktop_gpus_and_ranks_whose_log_tells_are_left_out(fabric, read, told, change):
    job = fabric(*[read(RAIL, **NONE)] * 2)
    gpus = job.nodes[0].gpus
    assert isinstance(gpus, Gpus)
    desktop = tuple(change.job(gpu, name="NVIDIA GeForce RTX 4090") for gpu in gpus.devices)
    assert told(change.node(job, None, gpus=change.job(gpus, devices=desktop))) == []
    run = RankRun(pid=1, step="", outcome="done", nccl=NcclLog(gdr=False))
    assert told(change.rank(job, None, run=run)) == [], "gdr-not-used reports it"


def test_gdr_acs_slow_is_a_hint_for_pairs_on_one_switch(fabric, read, told, change, tmp_path):
    seen = pci.collect(machines.write(tmp_path / "dgx", machines.DGX_H100))
    gpu, nic = "0000:1b:00.0", "0000:18:00.0"

    def job(**groups):
        made = fabric(*[read(RAIL, iommu_groups=groups)] * 2)
        return change.node(made, None, pci=seen)

    assert told(job(**{gpu: "17", nic: "18"})) == [("gdr-acs-slow", "info", *ALL)]
    assert told(job(**{gpu: "17", nic: "17"})) == []
    assert told(job()) == []
    assert told(change.node(job(**{gpu: "17", nic: "18"}), None, pci=change.job(seen, virtual=True))) == []
