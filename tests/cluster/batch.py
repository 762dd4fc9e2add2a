"""A batch job of Slurm: submitted, and watched to its end."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from real.ended import Ended

if TYPE_CHECKING:
    from cluster.cluster import Cluster

OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
"""The states of a job that has ended."""


def shown(cluster: Cluster, job: str, name: str) -> str:
    """Return what Slurm shows of a job under this name, such as JobState."""
    text = cluster.run("head", "scontrol", "show", "job", "--oneliner", job).out
    found = re.search(rf"(?:^| ){name}=(\S*)", text)
    assert found, text
    return found[1]


def run(cluster: Cluster, script: str, *argv: str, timeout: float) -> Ended:
    """Run a script as a job with two tasks on each of two nodes; return its exit code and what it printed.

    sbatch --wait would look only after 2, 6, 12, 20, 30 and 42 s whether the job is over.
    """
    cluster.write("node1", "/shared/job.sh", f"#!/bin/bash\n{script}")
    size = ("--nodes=2", "--ntasks-per-node=2", "--output=/shared/out")
    began = time.monotonic()
    submitted = cluster.run("node1", "sbatch", "--parsable", *size, "/shared/job.sh", *argv, cwd="/shared")
    assert submitted.code == 0, submitted
    job = submitted.out.strip()
    while (state := shown(cluster, job, "JobState")) not in OVER:
        assert time.monotonic() < began + timeout, f"{state}: {cluster.read('node1', '/shared/out')}"
        time.sleep(0.3)
    code = int(shown(cluster, job, "ExitCode").partition(":")[0])
    return Ended(code, cluster.read("node1", "/shared/out"), "", time.monotonic() - began)
