"""Time things on 4 nodes of the test cluster: reads one of the words below from stdin, prints seconds.

gate is the whole `distcheck gate` from outside, through srun, from its start to its end. torchrun is a bare all_reduce
script under one torchrun per node (static rendezvous), started by the same srun on the same nodes, from start to end.
import is only the import of torch on every node. net is the whole `distcheck net`, start only the start of distcheck's
program on every node.

The nodes run the package installed in the folder that PYTHONPATH names; without one, the checkout.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from cluster.cluster import Cluster  # noqa: E402 it is no installed package

GATE = ("salloc", "-N4", "distcheck", "gate", "--nproc", "2")
TORCHRUN = (
    "srun", "-N4", "--ntasks-per-node=1", "bash", "-c",
    (
        "exec torchrun --nnodes 4 --nproc-per-node 2 --node-rank $SLURM_NODEID --master-addr node1 "
        f"--master-port 29511 {TESTS}/benchmarks/bare_all_reduce.py"
    ),
)  # fmt: skip
NET = ("salloc", "-N4", "distcheck", "net", "--nproc", "2")
IMPORT = ("srun", "-N4", "--ntasks-per-node=1", "python3", "-c", "import torch, torch.distributed")
START = ("srun", "-N4", "--ntasks-per-node=1", "distcheck", "--version")
WHERE = ("srun", "-N4", "--ntasks-per-node=1", "python3", "-c", "import distcheck; print(distcheck.__file__)")
INSTALLED = "/shared/installed"


def main() -> None:
    cluster = Cluster()
    try:
        environ = install(cluster)
        for line in sys.stdin:
            print(whole(cluster, line.strip(), environ), flush=True)
    finally:
        cluster.conclude()


def install(cluster: Cluster) -> dict[str, str]:
    """Return the variables with which every node runs the installed package."""
    installed = os.environ.get("PYTHONPATH")
    if not installed:
        return {}
    shutil.copytree(installed, cluster.shared / "installed")
    environ = {"PYTHONPATH": INSTALLED}
    where = cluster.run("head", *WHERE, env=environ).out.split()
    if len(where) != 4 or not all(path.startswith(INSTALLED) for path in where):
        sys.exit(f"not the installed package but {where} would be measured")
    return environ


def whole(cluster: Cluster, what: str, environ: dict[str, str]) -> float:
    """Return the seconds from the start to the end of one of the commands."""
    command = {"gate": GATE, "torchrun": TORCHRUN, "import": IMPORT, "net": NET, "start": START}[what]
    start = time.perf_counter()
    ended = cluster.run("head", *command, env=environ, timeout=300)
    seconds = time.perf_counter() - start
    if ended.code != 0:
        sys.exit(f"{what} ended with {ended.code}: {ended.out[-2000:]} {ended.err[-2000:]}")
    return seconds


main()
