"""The AMD GPUs of ranks, from trees of amdgpu's files."""

from __future__ import annotations

import time

import pytest
from made import amd
from made.running import busy
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.hang import GpuUse
from distcheck.probe.hang import amd_gpus, gpus

WORKS = amd.MI300X._replace(gpus=tuple(gpu._replace(busy=100, draws=150 + n) for n, gpu in enumerate(amd.MI300X.gpus)))
LINE = "3,1,{},-;amdgpu {}: amdgpu: GPU Recovery Failed: -110\n"


@pytest.fixture
def sample(tmp_path):
    """Return the GPUs of a machine, whose kernel log has errors of GPUs by how many seconds ago they were."""

    def sample(machine, **ago):
        root, log = amd.write(tmp_path / "root", machine), tmp_path / "kmsg"
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        places = {f"gpu{n}": gpu.path[-1] for n, gpu in enumerate(machine.gpus)}
        log.write_text("".join(LINE.format(int((now - s) * 1e6), places[name]) for name, s in ago.items()))
        return amd_gpus.sample(root, log)

    return sample


def test_each_gpu_has_its_readings_and_its_processes(sample):
    found = sample(amd.change(WORKS, 3, users={4711: 5 << 30}))
    expected = GpuUse(3, (100,), (297795584,), (153.0,), 750.0)
    assert (found[3].use, found[3].pids, found[2].pids) == (expected, (4711,), ())


def test_a_partition_has_no_readings_of_its_card(sample):
    assert replace(sample(amd.CPX)[1].use, memory_used_bytes=()) == GpuUse(1, power_limit_watts=750.0)


def test_readings_that_the_driver_refuses_are_empty(sample, tmp_path):
    sample(WORKS)
    for name in ("gpu_busy_percent", "hwmon/hwmon6/power1_input", "mem_info_vram_used"):
        (tmp_path / "root/sys/bus/pci/devices/0000:69:00.0" / name).write_text("")
    assert amd_gpus.sample(tmp_path / "root")[3].use == GpuUse(3, power_limit_watts=750.0)


def test_without_the_driver_there_is_a_reason(tmp_path):
    assert amd_gpus.sample(tmp_path) == Missing(reason="amdgpu: the kernel module is not loaded")


LOST = amd.change(WORKS, 2, in_kfd=False, driver="")


@pytest.mark.parametrize(
    ("machine", "rank", "variables", "address"),
    [
        (WORKS, 3, {}, "0000:69:00.0"),
        (WORKS, 1, {"HIP_VISIBLE_DEVICES": "3,4"}, "0000:9f:00.0"),
        (WORKS, 0, {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1"}, "0000:af:00.0"),
        (WORKS, 0, {"HIP_VISIBLE_DEVICES": "GPU-a1b2000000000013"}, "0000:69:00.0"),
        (LOST, 2, {}, "0000:1e:00.0"),  # it had its place in the list when the rank started
        (LOST, 3, {}, "0000:69:00.0"),
    ],
)
def test_the_gpu_of_a_rank_is_the_one_that_rocm_s_variables_name(sample, machine, rank, variables, address):
    found = sample(machine)
    (use,) = gpus.uses(found, busy(rank), variables, "amd")
    assert use.index == next(each.gpu.index for each in found if each.gpu.pci == address)
    assert bool(use.lost) == (address == "0000:1e:00.0")


def test_errors_of_the_gpu_since_the_rank_started_count(sample):
    found = sample(WORKS, gpu3=50, gpu4=40)
    assert [e.text for e in gpus.uses(found, busy(3), {}, "amd")[0].driver_errors] == ["GPU Recovery Failed: -110"]
    found = sample(WORKS, gpu3=5000)
    assert gpus.uses(found, busy(3), {}, "amd")[0].driver_errors == ()
