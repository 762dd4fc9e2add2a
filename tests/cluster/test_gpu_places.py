"""`distcheck gpu` on nodes that NVML and sysfs describe as a DGX H100 each: where the GPUs are."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.inside import NODES, reports
from made import machines
from made.nvml_jobs import PROFILES

H100 = PROFILES["dgx_h100"]
NICS = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
_ON_THE_MACHINE = """#!/bin/sh
exec unshare --mount sh -c '
    for path in /sys /dev/infiniband /proc/cpuinfo; do mount --bind "/shared/$(hostname)$path" "$path" || exit; done
    exec "$@"
' sh "$@"
"""
"""What is mounted is seen by this one program and what it starts, and is gone with them."""


@pytest.fixture
def gpu(cluster, tell_nvml):
    """Run ``distcheck gpu`` for eight ranks on each node."""
    script = cluster.shared / "on-the-machine"
    script.write_text(_ON_THE_MACHINE)
    script.chmod(0o755)

    def gpu():
        for node in NODES:
            machines.write(cluster.shared / node, machines.DGX_H100, seen_at=Path("/shared", node))
            tell_nvml(node, H100.replace("GPU-0", f"GPU-{node.removeprefix('node')}"))
            assert cluster.run(node, "mkdir", "-p", "/dev/infiniband").code == 0
        look = ("distcheck", "gpu", "--nproc", "8", "--format", "json")
        srun = ("srun", "--nodes=4", "--ntasks-per-node=1", "/shared/on-the-machine")
        ended = cluster.run("node1", *srun, *look, env={"LD_LIBRARY_PATH": "/shared"}, timeout=150)
        assert ended.out, ended
        (report,) = reports(ended)
        return report

    yield gpu
    for node in NODES:
        cluster.run(node, "rmdir", "/dev/infiniband")


def test_each_rank_has_the_numa_node_and_the_adapter_next_to_its_gpu(gpu):
    report = gpu()
    assert (report["verdict"], report["findings"]) == ("pass", [])
    assert "gpu-far-from-nic" not in {unseen["rule"] for unseen in report["not_checked"]}
    rows = [row["gpu"] for row in report["ranks"]]
    assert [gpu["nic"] for gpu in rows] == NICS * 4
    assert {gpu["nic_distance"] for gpu in rows} == {"PIX"}
    assert [gpu["numa_node"] for gpu in rows] == [0, 0, 0, 0, 1, 1, 1, 1] * 4
