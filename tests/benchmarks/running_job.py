"""Time `distcheck hang`: ``python tests/benchmarks/running_job.py [hung | healthy]`` prints JSON.

hung: 64 ranks of Gloo on the 4 nodes of the test cluster, of which one skips a collective; each answer, asked from the
head node by ssh, in seconds from the start of the command to its end. Two samples, 2 s apart, decide such a hang.
healthy: pairs of a step's median seconds in a job of 4 ranks on this machine, while `distcheck hang` looks at it every
5 s, and while nothing does.

Ranks are forked by a process that has torch (tests/hang/starter.py), as the nodes of the cluster share one memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from benchmarks.programs import free_port  # noqa: E402 it is no installed package
from cluster.cluster import Cluster  # noqa: E402
from hang.expected import PROGRAM  # noqa: E402
from hang.started import Starter  # noqa: E402
from hang.starter import COMMAND, ROOM  # noqa: E402
from real.waiting import until  # noqa: E402

PER_NODE, RANKS, LOOKS, ROUNDS, ROUND_SECONDS, EVERY_SECONDS = 16, 64, 5, 6, 15.0, 5
SETTLING_SECONDS = 3


def order(fault: str, folder: str, ranks: range, size: int, host: str, port: int) -> dict[str, Any]:
    """Return what to tell a starter: the program, and the environment of each of its ranks."""
    shared = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    shared |= {"LOCAL_WORLD_SIZE": str(len(ranks)), "PATH": os.environ["PATH"]}
    environs = [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(rank - ranks[0]), "LOG": f"{folder}/log.{rank}"}
        for rank in ranks
    ]
    return {"argv": [str(PROGRAM), fault, folder], "environs": environs}


def hung() -> list[float]:
    """Return the seconds of each look at the large job that hangs."""
    cluster, ends = Cluster(slurm=False), []
    try:
        folder = cluster.shared / "job"
        folder.mkdir()
        for number, node in enumerate(cluster.nodes):
            ours, theirs = os.pipe()
            ends.append(theirs)  # a starter and its ranks end when their input does
            cluster.start(node, *COMMAND, env=ROOM | {"OMP_NUM_THREADS": "1"}, stdin=ours)
            os.close(ours)
            ranks = range(number * PER_NODE, (number + 1) * PER_NODE)
            words = order("skipped_collective", "/shared/job", ranks, RANKS, "node1", 29500)
            os.write(theirs, f"{json.dumps(words)}\n".encode())
        until(lambda: len(list(folder.glob("ready.*"))) == RANKS, 240)
        time.sleep(SETTLING_SECONDS)
        return [look(cluster) for _ in range(LOOKS)]
    finally:
        cluster.conclude()
        for end in ends:
            os.close(end)


def look(cluster: Cluster) -> float:
    """Return the seconds of one look, whose answer must be right."""
    start = time.perf_counter()
    ended = cluster.run("head", "distcheck", "hang", "--hosts", "node[1-4]", "--format", "json", timeout=120)
    seconds = time.perf_counter() - start
    hang = json.loads(ended.out)["hang"]
    if (ended.code, hang["answer"], [odd["rank"] for odd in hang["odd"]], len(hang["ranks"])) != (
        30,
        "hung",
        [1],
        RANKS,
    ):
        sys.exit(f"a wrong answer: {ended.out[:2000]} {ended.err[-2000:]}")
    return seconds


def healthy() -> list[tuple[float, float]]:
    """Return what a step takes while a job is looked at, and while it is not, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        starter = Starter([])
        try:
            words = order("quick_steps", folder, range(4), 4, "127.0.0.1", free_port())
            ranks = starter.fork(words["argv"], words["environs"])
            until(lambda: len(list(Path(folder).glob("ready.*"))) == len(ranks), 120)
            steps, pid = Path(folder, "steps.0"), next(rank.pid for rank in ranks if rank)
            pairs = []
            for number in range(ROUNDS):
                found = {looked: step(steps, pid if looked else None) for looked in (number % 2 == 0, number % 2 == 1)}
                pairs.append((found[True], found[False]))
            return pairs
        finally:
            starter.end()  # its ranks write into the folder


def step(steps: Path, pid: int | None) -> float:
    """Return the median seconds of the steps of a round, in which distcheck looks at the job of `pid`."""
    before = steps.stat().st_size
    looking = [sys.executable, "-m", "distcheck", "hang", "--pid", str(pid), "--watch", str(EVERY_SECONDS), "--quiet"]
    watch = subprocess.Popen(looking, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if pid else None
    try:
        time.sleep(ROUND_SECONDS)
        if watch is not None and watch.poll() is not None:
            sys.exit("distcheck looked only once: its answer changed")
    finally:
        if watch is not None:
            watch.kill()
            watch.wait()
    with steps.open() as lines:
        lines.seek(before)
        times = [float(line) for line in lines.read().splitlines()[1:-1]]
    return statistics.median(b - a for a, b in pairwise(times))


if __name__ == "__main__":
    print(json.dumps({"hung": hung, "healthy": healthy}[sys.argv[1]]()))
