"""Faults of a host, made for real: limits of cgroups, few CPUs, many threads, files of ended jobs, a wrong clock."""

from __future__ import annotations

import os
import sys

import pytest
from real.spoiling import planted

from distcheck.facts.saved import load
from distcheck.rules.host.clock import host_clock_skew

LIMITS = {
    "cpu": {"cpu.cfs_quota_us": "90000"},
    "memory": {"memory.limit_in_bytes": f"{600 << 20}"},
    "pids": {"pids.max": "75"},
}
"""By controller of version 1."""
UNIFIED = {"cpu.max": "90000 100000", "memory.max": f"{600 << 20}", "pids.max": "75"}
START = """
for group in $JOINED; do echo 0 > "$group/cgroup.procs" || exit 1; done
mount -t tmpfs -o size=300m tmpfs /dev/shm
head -c 100M /dev/zero > /dev/shm/nccl-Ab3dEf && touch -d '3 hours ago' /dev/shm/nccl-Ab3dEf
exec taskset -c "$1" "$2" -m distcheck "${@:3}"
"""


@pytest.fixture
def groups(cgroups):
    """Make cgroups with small limits of CPUs, memory and processes; needs root and the controllers."""
    return cgroups(LIMITS, UNIFIED)


@pytest.mark.process
def test_faults_of_a_host_are_named_with_their_numbers(start, groups):
    cpu = min(os.sched_getaffinity(0))
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs a second CPU")
    expected = {
        "host-memory-low": "the memory limit of their cgroup, 600 MiB, leaves",
        "perf-affinity-overlap": f"2 ranks of a node share CPU {cpu}; ",
        "perf-cgroup-cpu-quota": "the limit of their cgroup is 0.9 CPUs; expected at least 1",
        "perf-omp-oversubscribed": "with OMP_NUM_THREADS=8 start 16 threads; they have 0.9 CPUs",
        "host-nproc-pids": " of 75 processes and threads; expected 80 or more",
        "host-shm-stale-files": "1 file of ended jobs in /dev/shm occupies 100 MiB of 300 MiB; the oldest is 3.0 h old",
    }
    # These rules need no figures, so that nothing is measured.
    ended = start(
        "bandwidth", "--nproc", "2", "--sizes", "1M:1M", "--op", "all_reduce", "--format", "json",
        "--select", ",".join(expected),
        env={"JOINED": " ".join(map(str, groups)), "OMP_NUM_THREADS": "8"},
        program=["unshare", "--mount", "bash", "-c", START, "bash", str(cpu), sys.executable],
    ).wait()  # fmt: skip
    assert ended.code == 0, ended
    found = {f["rule"]: f for f in ended.report["findings"]}
    assert {name: found[name]["severity"] for name in found} == dict.fromkeys(expected, "warning")
    assert all(words in found[name]["message"] for name, words in expected.items()), found
    assert [found[name]["ranks"] for name in expected] == [[0, 1]] * 5 + [[]]


CLOCK = """
import os, time
if os.environ.get("RANK") == "1":
    right = time.time
    time.time = lambda: right() - 30.0
"""


@pytest.mark.process
def test_a_follower_whose_clock_is_wrong_is_named_with_its_offset(start, port, tmp_path):
    master = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **planted(tmp_path, CLOCK)}
    saved = tmp_path / "job.json"
    both = [
        start(
            "env", *(("--save", str(saved)) if rank == "0" else ()),
            env=master | {"RANK": rank, "LOCAL_RANK": "0", "SLURMD_NODENAME": f"node{rank}"},
        )
        for rank in "01"
    ]  # fmt: skip
    assert [one.wait().code for one in both] == [30, 30], "two nodes cannot meet at 127.0.0.1, but here they are one"
    (found,) = host_clock_skew(load(saved))
    assert found.nodes == ("node0", "node1")
    assert "node1: the clock is 30." in found.message or "node1: the clock is 29." in found.message
    assert "behind that of node0" in found.message
