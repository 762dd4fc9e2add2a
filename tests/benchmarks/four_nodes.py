"""Time something on 4 nodes of the test cluster: ``four_nodes.py gate|torchrun|net|start|dropped`` prints seconds.

gate is the whole `distcheck gate` from outside, through srun, from its start to its end. torchrun is a bare all_reduce
script under one torchrun per node (static rendezvous), started by the same srun on the same nodes, from start to end.
net is the whole `distcheck net`, start only the start of distcheck's program on every node. dropped prints two numbers:
when a rank says that it cannot reach a MASTER_ADDR whose packets are dropped, and when it ends.

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
        f"--master-port 29511 {TESTS}/cluster/all_reduce.py"
    ),
)  # fmt: skip


NET = ("salloc", "-N4", "distcheck", "net", "--nproc", "2")
START = ("srun", "-N4", "--ntasks-per-node=1", "distcheck", "--version")
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
DROP = "table inet f { chain in { type filter hook input priority 0; tcp dport != 22 drop; }; }"


def main() -> None:
    what = sys.argv[1]
    cluster = Cluster()
    try:
        if installed := os.environ.get("PYTHONPATH"):
            shutil.copytree(installed, cluster.shared / "installed")
        print(*(dropped(cluster) if what == "dropped" else [whole(cluster, what)]))
    finally:
        cluster.conclude()


def _environ(cluster: Cluster) -> dict[str, str]:
    return {"PYTHONPATH": "/shared/installed"} if (cluster.shared / "installed").exists() else {}


def whole(cluster: Cluster, what: str) -> float:
    """Return the seconds from the start to the end of one of the commands."""
    command = {"gate": GATE, "torchrun": TORCHRUN, "net": NET, "start": START}[what]
    start = time.perf_counter()
    ended = cluster.run("head", *command, env=_environ(cluster), timeout=300)
    seconds = time.perf_counter() - start
    if ended.code != 0:
        sys.exit(f"{what} ended with {ended.code}: {ended.out[-2000:]} {ended.err[-2000:]}")
    return seconds


def dropped(cluster: Cluster) -> tuple[float, float]:
    """Return the seconds until a rank that cannot reach MASTER_ADDR says so, and until it ends."""
    cluster.netns("node1", "nft", "-f", "-", text=DROP)
    start = time.perf_counter()
    running = cluster.start("node2", "distcheck", "env", env={**RANK_1, **_environ(cluster)})
    said = ""
    while "still trying to reach rank 0" not in said:
        said = running.process.stderr.readline()
        if not said:
            sys.exit("the rank ended without a word of MASTER_ADDR")
    told = time.perf_counter() - start
    running.wait(120)
    return told, time.perf_counter() - start


main()
