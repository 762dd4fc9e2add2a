"""`distcheck gpu` in tasks that Slurm keeps to one GPU each: NVML calls every one of them 0."""

from __future__ import annotations

import pytest
from cluster.inside import findings, reports
from made.nvml_jobs import PROFILES

H100 = PROFILES["dgx_h100"]
BUSES = ("1b", "43", "52", "61")


@pytest.fixture
def gpu(cluster, tell_nvml):
    """Run ``distcheck gpu`` in four tasks on node1; each has a GPU of its own, task 2's with a further line."""

    def gpu(task2="", **env):
        for task, bus in enumerate(BUSES):
            own = f"count 1\n0.pci 00000000:{bus}:00.0\n0.uuid GPU-0000000{task}-aaaa-bbbb-cccc-dddddddddddd\n"
            tell_nvml("node1", H100 + own + (task2 if task == 2 else ""), f"/tmp/nvml-{task}")
        script = "export DISTCHECK_FAKE_NVML=/tmp/nvml-$SLURM_LOCALID; exec distcheck gpu --format json"
        told = {"LD_LIBRARY_PATH": "/shared", "MASTER_ADDR": "node1", "MASTER_PORT": "29500", **env}
        ended = cluster.run("node1", "srun", "--nodes=1", "--ntasks=4", "bash", "-c", script, env=told, timeout=150)
        (report,) = reports(ended)
        return report

    return gpu


def test_each_task_has_its_gpu_and_the_node_has_all_of_them(gpu):
    report = gpu(CUDA_VISIBLE_DEVICES="0")
    assert [row["gpu"]["pci"] for row in report["ranks"]] == [f"0000:{bus}:00.0" for bus in BUSES]
    assert [row["gpu"]["index"] for row in report["ranks"]] == [0, 1, 2, 3]
    assert findings(report, "error") == [], report["findings"]
    assert findings(report, "warning") == ["env-rank-unset", "slurm-gpu-bind-no-p2p"]


def test_what_is_wrong_with_one_is_read_though_another_process_has_local_rank_0(gpu):
    report = gpu(task2="0.ecc.1.0 2\n")
    (found,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert (found["rule"], found["ranks"], found["nodes"]) == ("gpu-ecc-uncorrected", [2], ["node1"])
    assert "(0000:52:00.0)" in found["message"]
