"""`distcheck gpu` where CUDA differs from NVML: the libraries are ours, the rest is real."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms.sampled import sampled
from real.ended import BEYOND_SECONDS, STARTING_SECONDS

NVML = Path(__file__).parents[1] / "nvml"
H200 = (NVML / "h200.txt").read_text()
MODELS = "".join(f"{i}.name NVIDIA {name}\n" for i, name in enumerate(["T4", "A100", "A100", "T4"]))
MIXED = H200 + "count 4\n" + MODELS + "cuda.order 1 2 0 3\n"


def findings(ended, rule):
    """Return the findings of a rule; no other one may be worse than a remark."""
    named = [f for f in ended.report["findings"] if f["rule"] == rule]
    assert [f for f in ended.report["findings"] if f["severity"] != "info" and f["rule"] != rule] == []
    return named


def indices(ended):
    return [row["gpu"] and row["gpu"]["index"] for row in ended.report["ranks"]]


def test_the_report_lists_gpus_in_cudas_order(gpu):
    ended = gpu(4, MIXED)
    assert indices(ended) == [1, 2, 0, 3]
    finding = ended.finding("gpu-order-mismatch")
    assert (ended.code, finding["severity"], finding["ranks"]) == (0, "warning", [0, 1, 2])
    assert "cuda:0 is GPU 1 (0000:43:00.0), not GPU 0 (0000:1b:00.0)" in finding["message"]
    assert finding["fix"]["commands"] == ["export CUDA_DEVICE_ORDER=PCI_BUS_ID"]


def test_along_the_bus_the_order_is_nvmls(gpu):
    ended = gpu(4, MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert indices(ended) == [0, 1, 2, 3]
    assert not [f for f in ended.report["findings"] if f["rule"] == "gpu-order-mismatch"]


@pytest.mark.parametrize(
    ("number", "code", "rule"),
    sampled(
        [
            (999, 20, "gpu-cuda-init-failed"),
            (100, 20, "gpu-cuda-init-failed"),
            (46, 20, "gpu-cuda-init-failed"),
            (802, 40, "gpu-fabric-manager-down"),
            (803, 40, "sw-compat-libcuda"),
            (804, 30, "sw-compat-libcuda"),
            (34, 30, "sw-compat-libcuda"),
        ],
        (999, 20, "gpu-cuda-init-failed"),
        (804, 30, "sw-compat-libcuda"),
    ),
)
def test_cuda_that_does_not_start_is_one_finding(gpu, number, code, rule):
    ended = gpu(2, H200 + f"cuda.init !{number}\n")
    (finding,) = findings(ended, rule)
    assert (ended.code, finding["severity"], finding["ranks"]) == (code, "error", [0, 1])
    assert f"error {number} (" in finding["message"]
    assert indices(ended) == [0, 1], "predicted by NVML and the variables"


def test_a_hanging_cuda_is_reported_with_everything_else(gpu):
    ended = gpu(2, H200 + "cuda.init hang\n", "--timeout", "16")
    (finding,) = findings(ended, "gpu-cuda-init-failed")
    assert (ended.code, finding["ranks"]) == (20, [0, 1])
    assert "CUDA did not answer within" in finding["message"]
    assert indices(ended) == [0, 1]
    assert ended.seconds < 16 + BEYOND_SECONDS


def test_a_gpu_hidden_by_cuda_is_reported_with_its_rank(gpu):
    ended = gpu(8, H200 + "cuda.hidden 7\n")
    (finding,) = findings(ended, "gpu-hidden-from-cuda")
    assert (ended.code, finding["severity"], finding["ranks"]) == (20, "error", [7])
    assert "GPU 7 (0000:df:00.0) is hidden" in finding["message"]
    assert indices(ended) == [*range(7), None]


def test_a_container_without_cudas_library_fails_an_nccl_job(gpu, fake_nvml, fake_torch, tmp_path):
    told = fake_nvml.environ(H200)
    (tmp_path / "utility").mkdir()
    (tmp_path / "utility" / "libnvidia-ml.so.1").symlink_to(fake_nvml.folder / "libnvidia-ml.so.1")
    (tmp_path / "utility" / "libcuda.so.1").write_text("")  # whatever this machine may have of its own
    folders = told["LD_LIBRARY_PATH"].replace(str(fake_nvml.folder), str(tmp_path / "utility"))
    ended = gpu(2, H200, "--backend", "nccl", LD_LIBRARY_PATH=folders, **fake_torch.environ())
    (finding,) = findings(ended, "gpu-cuda-init-failed")
    assert (ended.code, finding["ranks"]) == (30, [0, 1])
    assert "libcuda.so.1 cannot be loaded" in finding["message"]


def test_a_cpu_job_asks_cuda_nothing(gpu):
    ended = gpu(2, H200 + "cuda.init hang\n", "--backend", "gloo", "--timeout", "20")
    assert (ended.code, ended.report["findings"]) == (0, [])
    assert ended.seconds < 10 + STARTING_SECONDS


def test_each_rank_under_a_launcher_is_asked_with_its_own_variables(start, fake_nvml, port):
    told = fake_nvml.environ(H200)
    common = {name: told[name] for name in ("LD_LIBRARY_PATH", "DISTCHECK_FAKE_NVML")}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    running = [
        start("gpu", "--format", "json", env=common | {"RANK": str(i), "LOCAL_RANK": str(i), "CUDA_VISIBLE_DEVICES": v})
        for i, v in enumerate(("5", "3"))
    ]
    first, second = [each.wait() for each in running]
    assert (first.code, second.code) == (0, 0)
    assert (first.report["findings"], indices(first)) == ([], [5, 3])
