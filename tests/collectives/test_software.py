"""What a rank's process reports about its torch and device."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from distcheck.collectives.software import device_type, lack_of, software  # isort: split

import torch

from distcheck.collectives.plan import Software
from distcheck.facts.placement import Placement
from distcheck.launch.local.rank import LocalRank

UUID = "ffc79498-8ff3-4a5b-9c0d-0123456789ab"


@pytest.fixture
def device(monkeypatch):
    """Have torch report the properties of a GPU that this machine need not have."""

    def device(hip=None, **properties):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))
        monkeypatch.setattr(torch.version, "hip", hip)
        return torch.device("cuda", 3)

    return device


def test_a_gpu_is_identified_by_its_uuid(device):
    told = software(device(uuid=UUID))
    assert (told.device, told.gpu) == ("NVIDIA H200", f"GPU-{UUID}")


def test_an_older_torch_has_no_uuid(device):
    assert software(device()).gpu is None


def test_an_amd_gpus_sixteen_characters_are_its_unique_id(device):
    shown = "61316232-3030-3030-3030-303030303130"  # a1b2000000000010, as torch shows bytes
    assert software(device(hip="6.4", uuid=shown)).gpu == "GPU-a1b2000000000010"
    assert software(device(hip="6.4", uuid="a1b2000000000010")).gpu == "GPU-a1b2000000000010"
    assert software(device(hip="6.4", uuid=UUID)).gpu is None
    assert software(device(hip="6.4")).gpu is None


def test_a_cpu_has_none():
    told = software(torch.device("cpu"))
    assert (told.device, told.gpu, told.torch) == ("cpu", None, str(torch.__version__))


def test_it_becomes_a_fact_of_the_rank():
    async def run():
        rank = LocalRank(Placement(rank=0))
        before = rank.run().gpu
        rank.hear(Software(torch="2.9", nccl="2.28.3", device="NVIDIA H200", gpu=f"GPU-{UUID}"))
        return before, rank.run().gpu

    assert asyncio.run(run()) == (None, f"GPU-{UUID}")


OWN = f"this torch {torch.__version__} has no"


@pytest.mark.parametrize(
    ("asked", "lack"),
    [
        (("gloo", "gloo"), ""),
        (("gloo", "cpu:gloo"), ""),
        (("gloo", "nccl-lazy-2"), f"{OWN} backend nccl-lazy-2; it has gloo"),
        (("mpi", ""), f"{OWN} MPI; it has gloo"),
        (("ucc", ""), f"{OWN} UCC; it has gloo"),
        (("xccl", "cpu:gloo,xpu:xccl"), f"{OWN} XCCL; it has gloo"),
        (("hccl", ""), f"{OWN} backend hccl; it has gloo"),
        (("cuda:gloo", ""), f"cuda:gloo moves the data of devices that torch {torch.__version__} does not find here"),
    ],
)
def test_a_backend_must_be_registered_with_torch_and_have_devices(asked, lack):
    assert lack_of(*asked)[: len(lack) or None] == lack


@pytest.mark.parametrize(
    ("backend", "there", "device"),
    [
        ("nccl", False, "cuda"),
        ("gloo", True, "cpu"),
        ("mpi", True, "cpu"),
        ("ucc", True, "cuda"),
        ("ucc", False, "cpu"),
        ("cpu:gloo,xpu:xccl", True, "xpu"),
        ("cpu:gloo,xpu:xccl", False, "cpu"),
        ("xccl", False, ""),
    ],
)
def test_a_backends_devices_are_gpus_where_there_are_some(monkeypatch, backend, there, device):
    for module in (torch.cuda, torch.xpu):
        monkeypatch.setattr(module, "is_available", lambda: there)
    assert device_type(backend) == device
