"""`distcheck gpu` on whole machines as NVML describes them: well, and with one thing wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forms.sampled import sampled

NVML = Path(__file__).parents[1] / "nvml"
H200 = (NVML / "h200.txt").read_text()


@pytest.mark.parametrize(
    ("profile", "nproc"),
    sampled(
        [
            ("dgx_a100", 8),
            ("dgx_h100", 8),
            ("h200", 8),
            ("pcie_l40s", 8),
            ("dgx_h100_mig", 1),
            ("gh200", 1),
            ("h200", 1),
            ("h200_vm", 1),
        ],
        ("dgx_h100", 8),
        ("dgx_h100_mig", 1),
    ),
)
def test_a_healthy_machine_passes_in_silence(gpu, profile, nproc):
    ended = gpu(nproc, (NVML / f"{profile}.txt").read_text())
    assert (ended.code, ended.report["findings"], ended.unchecked) == (0, [], [])
    assert all(row["gpu"] for row in ended.report["ranks"])


@pytest.mark.parametrize(
    ("line", "code", "rule", "severity"),
    sampled(
        [
            ("ecc.1.0 2", 40, "gpu-ecc-uncorrected", "error"),
            ("field.230 type 1 1", 40, "gpu-needs-reset", "error"),
            ("link.state.5 0", 20, "gpu-nvlink-down", "error"),
            ("pcie.width 8", 0, "gpu-pcie-downgraded", "warning"),
            ("processes 4711:2000000000", 0, "gpu-other-processes", "warning"),
            ("memory.total 70000000000", 0, "gpu-mixed-models", "warning"),
        ],
        ("ecc.1.0 2", 40, "gpu-ecc-uncorrected", "error"),
        ("link.state.5 0", 20, "gpu-nvlink-down", "error"),
        ("pcie.width 8", 0, "gpu-pcie-downgraded", "warning"),
    ),
)
def test_a_fault_is_reported_with_its_rank_and_decides_the_exit_code(gpu, line, code, rule, severity):
    ended = gpu(8, H200 + f"3.{line}\n")
    (finding,) = ended.report["findings"]
    assert (ended.code, finding["rule"], finding["severity"], finding["ranks"]) == (code, rule, severity, [3])
    assert "GPU 3 (0000:61:00.0)" in finding["message"]
    node = ended.report["ranks"][0]["node"]
    assert ended.report["exclude"]["nodes"] == ([node] if code == 40 else [])


def test_the_gpu_is_the_one_that_the_rank_takes(gpu):
    ended = gpu(2, H200 + "5.ecc.1.0 1\n", CUDA_VISIBLE_DEVICES="4,5")
    assert [(f["rule"], f["ranks"]) for f in ended.report["findings"]] == [("gpu-ecc-uncorrected", [1])]
    ended = gpu(2, H200 + "3.ecc.1.0 1\n", CUDA_VISIBLE_DEVICES="4,5")
    assert (ended.code, [f["severity"] for f in ended.report["findings"]]) == (0, ["info"])


def test_a_hanging_call_is_reported_with_everything_else(gpu):
    ended = gpu(2, H200 + "3.processes hang\n", "--timeout", "16")
    assert ended.code == 20
    assert [f["rule"] for f in ended.report["findings"]] == ["gpu-nvml-init-failed"]
    assert [row["gpu"]["index"] for row in ended.report["ranks"]] == [0, 1]
    assert "gpu-ecc-uncorrected" in {unseen["rule"] for unseen in ended.report["not_checked"]}


def test_no_torch_is_imported_for_it(gpu, tmp_path):
    trap = tmp_path / "trap" / "torch"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    assert gpu(8, H200, PYTHONPATH=str(trap.parent)).code == 0


def test_the_gpus_are_watched_while_the_collectives_run(distcheck, fake_nvml, tmp_path):
    told = fake_nvml.environ(H200)
    env = {name: told[name] for name in ("LD_LIBRARY_PATH", "DISTCHECK_FAKE_NVML")}
    saved = tmp_path / "job.json"
    distcheck("bandwidth", "--nproc", "2", "--save", str(saved), env=env)
    (node,) = json.loads(saved.read_text())["nodes"]
    assert "unwatched" not in node["gpus"] or node["gpus"]["unwatched"] == ""
    assert [device["load"]["replays"] for device in node["gpus"]["devices"]] == [0] * 8
