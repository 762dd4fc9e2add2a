"""Faults of one host among several: the job's shell on it has few CPUs, and a variable that the others lack."""

from __future__ import annotations

import os

import pytest
from cluster.inside import judged

SETUP = "if [ $(hostname) = node2 ]; then taskset -cp {cpu} $$ >/dev/null; export OMP_NUM_THREADS=16; fi"


def test_the_host_whose_ranks_share_a_cpu_is_named_and_the_other_is_not(cluster):
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs a second CPU")
    setup = SETUP.format(cpu=min(os.sched_getaffinity(0)))
    look = ("bandwidth", "--hosts", "node[1-2]", "--nproc", "2", "--setup", setup)
    ended, report = judged(cluster, *look, "--select", "perf-affinity-overlap,perf-omp-oversubscribed")
    found = {f["rule"]: (f["severity"], f["ranks"], f["nodes"]) for f in report["findings"]}
    assert found["perf-affinity-overlap"] == ("warning", [2, 3], ["node2"]), ended
    assert found["perf-omp-oversubscribed"] == ("warning", [2, 3], ["node2"]), ended
    assert len(found) == len(report["findings"]) == 2, ended
