"""`distcheck gpu` on machines as NVML and CUDA describe them: the libraries are ours, the rest is real."""

from __future__ import annotations

import json

import pytest
from made.nvml_jobs import PROFILES
from real.ended import BEYOND_SECONDS, STARTING_SECONDS

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100, H200 = (PROFILES[name] for name in ("dgx_h100", "h200"))
MODELS = "".join(f"{i}.name NVIDIA {name}\n" for i, name in enumerate(["T4", "A100", "A100", "T4"]))
MIXED = H200 + "count 4\n" + MODELS + "cuda.order 1 2 0 3\n"


def h100(index):
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd"


def indices(ended):
    return [row["gpu"] and row["gpu"]["index"] for row in ended.report["ranks"]]


@pytest.mark.parametrize(("profile", "nproc"), [("dgx_h100", 8), ("dgx_h100_mig", 1)])
def test_a_healthy_machine_passes_in_silence(gpu, profile, nproc):
    ended = gpu(nproc, PROFILES[profile])
    assert (ended.code, ended.report["findings"], ended.unchecked) == (0, [], [])
    assert all(row["gpu"] for row in ended.report["ranks"])


@pytest.mark.parametrize(
    ("nproc", "variables", "expected"),
    [(8, {}, range(8)), (2, {"CUDA_VISIBLE_DEVICES": f"{h100(6)},{h100(2)}"}, (6, 2))],
    ids=["all", "by UUID"],
)
def test_each_rank_has_the_gpu_that_cuda_would_give_it(gpu, nproc, variables, expected):
    ended = gpu(nproc, H100, **variables)
    assert (ended.code, ended.report["findings"], ended.unchecked) == (0, [], [])
    assert [row["gpu"]["uuid"] for row in ended.report["ranks"]] == [h100(i) for i in expected]
    first = next(iter(expected))
    assert ended.report["ranks"][0]["gpu"] == {
        "index": first, "uuid": h100(first), "pci": f"0000:{BUSES[first]}:00.0", "name": "NVIDIA H100 80GB HBM3",
        "numa_node": first // 4, "cpus": ("0-55,112-167", "56-111,168-223")[first // 4],
        "nic": None, "nic_distance": None,  # this machine's own PCI bus has no such GPU
    }  # fmt: skip


ALL, BOTH = list(range(8)), [0, 1]
FAULTS = {
    "env-local-rank-out-of-range": (9, H100, {}, 30, [8], "LOCAL_RANK 8 and sees 8 GPUs"),
    "gpu-duplicate": (2, H100, {"CUDA_VISIBLE_DEVICES": "5"}, 30, BOTH, h100(5)),
    "gpu-nvml-init-failed": (8, H100 + "init !18\n", {}, 40, ALL, ""),
    "gpu-fell-off-bus": (8, H100 + "7.lost yes\n", {}, 40, [7], ""),
    "gpu-ecc-uncorrected": (
        2, H200 + "5.ecc.1.0 1\n", {"CUDA_VISIBLE_DEVICES": "4,5"}, 40, [1], "GPU 5 (0000:c3:00.0)"
    ),
    "gpu-nvlink-down": (8, H200 + "3.link.state.5 0\n", {}, 20, [3], "GPU 3 (0000:61:00.0)"),
    "gpu-mixed-models": (8, H200 + "3.memory.total 70000000000\n", {}, 0, [3], "GPU 3 (0000:61:00.0)"),
    "gpu-hidden-from-cuda": (8, H200 + "cuda.hidden 7\n", {}, 20, [7], "GPU 7 (0000:df:00.0) is hidden"),
    "gpu-cuda-init-failed": (2, H200 + "cuda.init !999\n", {}, 20, BOTH, "error 999 ("),
    "gpu-fabric-manager-down": (2, H200 + "cuda.init !802\n", {}, 40, BOTH, "error 802 ("),
    "sw-compat-libcuda": (2, H200 + "cuda.init !804\n", {}, 30, BOTH, "error 804 ("),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_finding_at_its_ranks_and_decides_the_exit_code(gpu, name):
    nproc, text, variables, code, ranks, words = FAULTS[name]
    ended = gpu(nproc, text, **variables)
    (found,) = [f for f in ended.report["findings"] if f["severity"] != "info"]
    severity = "error" if code else "warning"
    assert (ended.code, found["rule"], found["severity"], found["ranks"]) == (code, name, severity, ranks)
    assert words in found["message"]
    node = ended.report["ranks"][0]["node"]
    assert ended.report["exclude"] == {"hostlist": node if code == 40 else "", "nodes": [node] if code == 40 else []}
    if "cuda.init" in text:
        assert indices(ended) == [0, 1], "predicted by NVML and the variables"


def test_gpus_are_listed_in_cudas_order_and_a_gpu_that_cuda_hides_is_none(gpu):
    by_speed = gpu(4, MIXED)
    assert (by_speed.code, indices(by_speed)) == (0, [1, 2, 0, 3])
    found = by_speed.finding("gpu-order-mismatch")
    assert (found["severity"], found["ranks"]) == ("warning", [0, 1, 2])
    assert "cuda:0 is GPU 1 (0000:43:00.0), not GPU 0 (0000:1b:00.0)" in found["message"]
    assert found["fix"]["commands"] == ["export CUDA_DEVICE_ORDER=PCI_BUS_ID"]
    along_the_bus = gpu(4, MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert (indices(along_the_bus), along_the_bus.rules) == ([0, 1, 2, 3], ["gpu-mixed-models"])
    assert indices(gpu(8, H200 + "cuda.hidden 7\n")) == [*range(7), None]
    assert indices(gpu(9, H100))[7:] == [7, None]


def test_a_bare_shell_sees_the_gpus_and_their_faults_before_it_is_told_to_set_rank(distcheck, fake_nvml):
    env = fake_nvml.variables(H100 + "3.lost yes\n")
    ended = distcheck("gpu", "--format", "json", env=env)
    errors = [f["rule"] for f in ended.report["findings"] if f["severity"] == "error"]
    assert (ended.code, errors) == (30, ["env-rank-unset", "gpu-fell-off-bus"])
    assert [row["lost"] for row in ended.report["gpus"]] == [i == 3 for i in range(8)]
    assert ended.report["gpus"][0]["gpu"]["uuid"] == h100(0)
    text = distcheck("gpu", env=env).out
    assert ": 8 GPUs, driver 550.54.15\n" in text
    assert text.index("7 0000:df:00.0 GPU-00000007") < text.index("error: env-rank-unset")


@pytest.mark.parametrize(
    ("line", "seconds", "rule", "words"),
    [
        ("3.name hang", 8, "gpu-nvml-init-failed", "did not answer"),
        ("3.processes hang", 16, "gpu-nvml-init-failed", "did not answer"),
        ("cuda.init hang", 16, "gpu-cuda-init-failed", "CUDA did not answer within"),
    ],
)
def test_a_hang_ends_within_the_deadline_and_is_reported_with_everything_else(gpu, line, seconds, rule, words):
    ended = gpu(2, H200 + f"{line}\n", "--timeout", str(seconds))
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (20, rule, [0, 1])
    assert words in found["message"]
    assert ended.report["exclude"]["nodes"] == []
    assert ended.seconds < seconds + BEYOND_SECONDS
    if "processes" in line:
        assert "gpu-ecc-uncorrected" in {unseen["rule"] for unseen in ended.report["not_checked"]}
    if "name" not in line:
        assert indices(ended) == [0, 1]


def test_cpu_ranks_need_no_gpu_and_ask_cuda_nothing(gpu):
    ended = gpu(9, H200 + "cuda.init hang\n", "--backend", "gloo", "--timeout", "20")
    assert (ended.code, ended.report["findings"]) == (0, [])
    assert ended.seconds < 10 + STARTING_SECONDS


@pytest.mark.without_gpus
def test_nccl_without_a_gpu_is_not_a_pass(gpu):
    ended = gpu(2, H100 + "init !9\n", "--backend", "nccl")
    assert (ended.code, ended.error["rule"]) == (30, "gpu-none-visible")


def test_a_container_without_cudas_library_fails_an_nccl_job(gpu, fake_nvml, fake_torch, tmp_path):
    told = fake_nvml.environ(H200)
    (tmp_path / "utility").mkdir()
    (tmp_path / "utility" / "libnvidia-ml.so.1").symlink_to(fake_nvml.folder / "libnvidia-ml.so.1")
    (tmp_path / "utility" / "libcuda.so.1").write_text("")  # whatever this machine may have of its own
    folders = told["LD_LIBRARY_PATH"].replace(str(fake_nvml.folder), str(tmp_path / "utility"))
    ended = gpu(2, H200, "--backend", "nccl", LD_LIBRARY_PATH=folders, **fake_torch.environ())
    found = ended.error
    assert (ended.code, found["rule"], found["ranks"]) == (30, "gpu-cuda-init-failed", [0, 1])
    assert "libcuda.so.1 cannot be loaded" in found["message"]


def test_each_rank_under_a_launcher_is_asked_with_its_own_variables(start, fake_nvml, port):
    common = fake_nvml.variables(H200)
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    running = [
        start("gpu", "--format", "json", env=common | {"RANK": str(i), "LOCAL_RANK": str(i), "CUDA_VISIBLE_DEVICES": v})
        for i, v in enumerate(("5", "3"))
    ]
    first, second = [each.wait() for each in running]
    assert (first.code, second.code) == (0, 0)
    assert (first.report["findings"], indices(first)) == ([], [5, 3])


def test_the_gpus_are_watched_while_the_collectives_run(distcheck, fake_nvml, tmp_path):
    saved = tmp_path / "job.json"
    distcheck("bandwidth", "--nproc", "2", "--save", str(saved), env=fake_nvml.variables(H200))
    (node,) = json.loads(saved.read_text())["nodes"]
    assert "unwatched" not in node["gpus"] or node["gpus"]["unwatched"] == ""
    assert [device["load"]["replays"] for device in node["gpus"]["devices"]] == [0] * 8
