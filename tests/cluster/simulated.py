"""Commands of a docs page on nodes whose GPUs are simulated: their NVML and CUDA are the libraries of tests/nvml."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.cluster import Cluster
    from real.ended import Ended

_FAKES = Path(__file__).resolve().parents[1] / "nvml"
_ON = "  # on "
FOUR_GPUS = (_FAKES / "dgx_h100.txt").read_text() + "count 4\n"
"""What NVML answers where a DGX H100 has four GPUs."""


def give_gpus(cluster: Cluster) -> None:
    """Give every node four GPUs with UUIDs of their own."""
    for source, library in (("fake_nvml.c", "libnvidia-ml.so.1"), ("fake_cuda.c", "libcuda.so.1")):
        command = ["cc", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", cluster.shared / library]
        subprocess.run([*command, _FAKES / source], check=True)
    for node in cluster.nodes:
        text = FOUR_GPUS.replace("GPU-0", f"GPU-{node.removeprefix('node')}")
        cluster.write(node, "/etc/distcheck-fake-nvml", text)


def run(cluster: Cluster, command: str, **variables: str) -> list[Ended]:
    """Run each line of a command on the node that it names ("... # on node2", else node1), with these variables."""
    env = {"LD_LIBRARY_PATH": "/shared", "OMP_NUM_THREADS": "1", **variables}
    running = []
    for line in command.splitlines():
        words, _, node = line.partition(_ON)
        running.append(cluster.start(node or "node1", "bash", "-c", words, env=env))
    return [each.wait(120) for each in running]
