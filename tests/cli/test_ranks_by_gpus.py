"""The ranks of a launcher that counts the GPUs it sees."""

from __future__ import annotations

import pytest
from made.jobs import node_of
from made.nvml_jobs import PROFILES
from msgspec.structs import replace

from distcheck.cli.launch_command import filled
from distcheck.cli.options import GateOptions
from distcheck.cli.request import gpu_count
from distcheck.facts.node import TorchBuild
from distcheck.probe import gpu, host

COMMAND = ["litgpt", "pretrain", "m"]


@pytest.fixture
def eight_gpus(monkeypatch):
    async def gpus(timeout, vendor, *, health):
        return node_of(0, 8).gpus

    monkeypatch.setattr(gpu, "gpus", gpus)
    monkeypatch.setattr(gpu, "accelerator", lambda: "nvidia")


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize(("shown", "ranks"), [({}, "8"), ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2")])
def test_a_rank_for_each_gpu_that_it_sees(shown, ranks):
    options, told, *_ = filled(GateOptions(), COMMAND, shown)
    assert (options.nproc, options.launcher) == (ranks, "local")
    assert told == f"placement from litgpt pretrain's arguments: {ranks} ranks on this node (one per GPU)"


def test_one_rank_without_gpus(monkeypatch):
    monkeypatch.setattr(gpu, "accelerator", lambda: "none")
    assert filled(GateOptions(), COMMAND, {}).options.nproc == "1"


@pytest.mark.usefixtures("eight_gpus")
def test_a_number_that_the_user_gave_stays():
    assert filled(GateOptions(nproc="3"), COMMAND, {}).options.nproc == "3"


def test_gpus_that_a_device_cgroup_hides_are_not_counted(fake_nvml, monkeypatch):
    facts = f"{PROFILES['dgx_h100']}3.handle !4\n5.handle !4\n6.handle !15\n"  # one is lost
    for variable, value in fake_nvml.environ(facts).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(gpu, "accelerator", lambda: "nvidia")
    assert gpu_count() == 6


@pytest.mark.parametrize(
    ("name", "hip", "counted"),
    [("AMD GPU 0x164e", None, 0), ("AMD GPU 0x164e", "6.4", 8), ("AMD Instinct MI300X", None, 8)],
)
def test_the_graphics_of_a_cpu_count_only_for_a_torch_with_rocm(monkeypatch, name, hip, counted):
    async def gpus(timeout, vendor, *, health):
        found = node_of(0, 8).gpus
        return replace(found, devices=tuple(replace(device, name=name) for device in found.devices))

    monkeypatch.setattr(gpu, "gpus", gpus)
    monkeypatch.setattr(gpu, "accelerator", lambda: "amd")
    monkeypatch.setattr(host, "torch_build", lambda: TorchBuild("2.9.0", None, hip))
    assert gpu_count() == counted
