"""The docs' recipes, installed on a cluster whose nodes have GPUs as far as NVML says."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from cluster.cluster import Cluster

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "schedulers" / "slurm"
GPUS = """\
driver 550.54.15
cuda 12040
count 2
name NVIDIA H100 80GB HBM3
memory.total 85520809984
memory.used 581828608
memory.reserved 580780032
mig 0
0.pci 00000000:1B:00.0
1.pci 00000000:43:00.0
"""
LOG = """\
import os, socket
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
log.settimeout(60)
print(log.recv(4096).decode())
os.unlink("/dev/log")
"""
"""A system's log for one line."""


class Recipes:
    """Install the scripts and change what NVML says on a node."""

    def __init__(self, cluster: Cluster, nvml: Path) -> None:
        self.cluster = cluster
        self._checking = False
        shutil.copy(nvml / "libnvidia-ml.so.1", cluster.shared)

    def everywhere(self) -> None:
        """Give every node its two GPUs, and the scripts with the site's settings."""
        for node in self.cluster.nodes:
            self.nvml(node)
            for name in ("prolog.sh", "task_prolog.sh", "health_check.sh"):
                self.cluster.write(node, f"/etc/slurm/{name}", (RECIPES / name).read_text())
            self.cluster.write(node, "/etc/default/distcheck", f"distcheck={sys.prefix}/bin/distcheck gpus=2\n")

    def nvml(self, node: str, fault: str = "") -> None:
        """Have NVML tell two GPUs of a node, and a fault."""
        name = f"uuid GPU-{node}-%i-aaaa-bbbb-cccc\n"
        self.cluster.write(node, "/etc/distcheck-fake-nvml", GPUS + name + fault)
        script = "cp /shared/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/ && touch /dev/nvidiactl"
        assert self.cluster.run(node, "sh", "-c", script).code == 0

    def state(self, node: str) -> tuple[str, str]:
        """Return Slurm's state and reason of a node; its reason is "none" where there is none."""
        ended = self.cluster.run("head", "sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T|%E")
        state, _, reason = ended.out.splitlines()[0].partition("|")
        return state, reason

    def drained(self, node: str) -> tuple[str, str] | None:
        """Return the same of a node that is drained, or will be when its job ends; None of others."""
        state = self.state(node)
        return state if state[0].startswith("drain") else None

    def start_checking(self, seconds: int) -> None:
        """Have Slurm run the health check every so many seconds."""
        self._checking = True
        self.cluster.slurm(
            HealthCheckProgram="/etc/slurm/health_check.sh",
            HealthCheckInterval=str(seconds),
            HealthCheckNodeState="ANY",
        )

    def stop_checking(self) -> None:
        """Have Slurm run no more of them, and wait for those that run."""
        if not self._checking:
            return
        self.cluster.slurm(HealthCheckInterval="0")
        end = time.monotonic() + 30
        while self.cluster.processes() and time.monotonic() < end:
            time.sleep(0.2)

    def check_health(self, node: str, code: int = 0) -> None:
        """Run the health check once as slurmd does: with the node's name and nothing else in its environment."""
        ended = self.cluster.run(
            node, "env", "-i", f"SLURMD_NODENAME={node}", "/etc/slurm/health_check.sh", cwd="/var/spool/slurmd"
        )
        assert ended.code == code, ended


def administer(cluster: Cluster, node: str, *changes: str) -> None:
    """Change a node's state as its administrator does."""
    assert cluster.run("head", "scontrol", "update", f"NodeName={node}", *changes).code == 0
