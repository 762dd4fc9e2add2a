"""distcheck on a machine whose /sys and /dev are those of a node with AMD GPUs, in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from made import amd

_ROOT = "/"


def _spaces() -> bool:
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


def _immutable(change, files):
    if files:
        subprocess.run(["chattr", change, *files], check=True)


def _ranks(said):
    return json.loads(said[said.index("{") : said.rindex("}") + 1])["ranks"]


@pytest.fixture
def on(tmp_path):
    """Run distcheck on a machine; return its exit code and what it wrote."""
    if not _spaces():
        pytest.skip("no mount namespaces here")

    def on(machine, *words, denied=(), change=lambda _: None):
        root = amd.write(tmp_path / "root", machine, seen_at=amd.Path(_ROOT))
        change(root)
        command = [*amd.inside(root), sys.executable, "-m", "distcheck", *words]
        files = [root / f"dev/dri/renderD{128 + 8 * number}" for number in denied]
        _immutable("+i", files)  # open(2) for writing then says EPERM, as with a device cgroup
        try:
            ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        finally:
            _immutable("-i", files)
        return ended.returncode, ended.stdout + ended.stderr

    return on


def test_a_healthy_node_passes_and_names_its_gpus(on):
    code, said = on(amd.MI300X, "node", "--gpus", "8")
    assert code == 0, said
    assert "8 GPUs, driver 6.12.12" in said
    assert "GPUs: 8 x AMD Instinct MI300X" in said


def test_a_node_that_lost_a_gpu_is_drained(on):
    code, said = on(amd.change(amd.MI300X, 3, in_kfd=False, driver=""), "node", "--gpus", "8")
    assert code == 40, said
    assert "(0000:69:00.0): amdgpu: no driver is bound to it. [gpu-fell-off-bus]" in said


def test_a_node_with_fewer_gpus_than_it_should_have_fails(on):
    code, said = on(amd.MI300X._replace(gpus=amd.MI300X.gpus[:7]), "node", "--gpus", "8")
    assert code == 40, said
    assert "amdgpu lists 7 GPUs; expected 8 (--gpus)" in said


def test_a_driver_without_kfd_drains_the_node(on):
    def without_kfd(root):
        shutil.rmtree(root / "sys/devices/virtual/kfd")
        for file in (root / "sys/class/kfd/kfd", root / "dev/kfd"):
            file.unlink()

    code, said = on(amd.MI300X, "node", change=without_kfd)
    assert code == 40, said
    assert "the driver runs without KFD, which HIP needs. [gpu-fell-off-bus" in said


def test_a_read_that_hangs_is_unknown_and_never_a_pass(on):
    def wedged(root):
        file = root / "sys/devices" / "/".join(amd.MI300X.gpus[2].path) / "mem_info_vram_used"
        file.unlink()
        os.mkfifo(file)

    code, said = on(amd.MI300X, "node", change=wedged)
    assert code == 20, said
    assert "amdgpu did not answer within" in said


def test_auto_is_a_rank_for_each_gpu_with_its_place_and_adapter(on):
    code, said = on(amd.MI300X, "gpu", "--nproc", "auto", "--format", "json")
    assert code == 0, said
    rows = _ranks(said)
    assert [row["gpu"]["pci"] for row in rows] == [gpu.path[-1] for gpu in amd.MI300X.gpus]
    assert {row["gpu"]["name"] for row in rows} == {"AMD Instinct MI300X"}
    assert [row["gpu"]["nic"] for row in rows] == [f"mlx5_{n}" for n in range(8)]


def test_the_partitions_of_a_card_are_counted(on):
    code, said = on(amd.CPX, "gpu", "--nproc", "auto", "--format", "json")
    assert code == 0, said
    assert len(_ranks(said)) == 8


def test_a_gate_has_a_rank_for_each_gpu_of_the_node(on):
    code, said = on(amd.MI300X, "gate", "--nproc", "auto", "--timeout", "120", "--format", "json")
    assert code == 0, said
    assert [(row["rank"], row["gpu"]["pci"]) for row in _ranks(said)] == [
        (number, gpu.path[-1]) for number, gpu in enumerate(amd.MI300X.gpus)
    ]


WITHOUT = amd.MI300X._replace(gpus=tuple(gpu._replace(render=n > 4) for n, gpu in enumerate(amd.MI300X.gpus)))


@pytest.mark.parametrize(("machine", "denied"), [(WITHOUT, ()), (amd.MI300X, range(5))], ids=["no file", "cgroup"])
def test_a_container_with_some_of_the_gpus_has_a_rank_for_each_of_those(on, machine, denied):
    code, said = on(machine, "gate", "--nproc", "auto", "--timeout", "120", "--format", "json", denied=denied)
    assert code == 0, said
    assert [row["gpu"]["pci"] for row in _ranks(said)] == ["0000:af:00.0", "0000:bf:00.0", "0000:df:00.0"]
