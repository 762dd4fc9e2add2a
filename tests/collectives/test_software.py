"""What a rank's process reports about its torch and device."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from distcheck.collectives.software import lack_of, software  # isort: split

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


def test_a_backend_of_another_name_must_be_registered_with_torch():
    assert lack_of("gloo", "gloo") == ""
    assert lack_of("gloo", "nccl-lazy-2") == f"this torch {torch.__version__} has no backend nccl-lazy-2"
