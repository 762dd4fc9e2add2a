"""Time a job of 4 nodes x 2 ranks on the test cluster: ``python four_nodes.py gate|torchrun`` prints seconds.

gate is the whole `distcheck gate` from outside, through srun, from its start to its end. torchrun is a bare all_reduce
script under one torchrun per node (static rendezvous), started by the same srun on the same nodes, from start to end.
"""

from __future__ import annotations

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


def main() -> None:
    cluster = Cluster()
    try:
        start = time.perf_counter()
        ended = cluster.run("head", *(GATE if sys.argv[1] == "gate" else TORCHRUN), timeout=300)
        seconds = time.perf_counter() - start
    finally:
        cluster.conclude()
    if ended.code != 0:
        sys.exit(f"{sys.argv[1]} ended with {ended.code}: {ended.out[-2000:]} {ended.err[-2000:]}")
    print(seconds)


main()
