"""What the processes of some ranks may use: too little for them, or far away, at the right ranks."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.gpu import Fabric, GpuHealth
from distcheck.facts.host import CgroupLimit, CpuQuota, Limits
from distcheck.facts.rank import Installed

OURS = ("host.limits", "host.cpus", "host.containers", "host.memory")
MIB, GIB = 1 << 20, 1 << 30
RANKS = (4, 5, 6, 7)


@pytest.fixture
def job(on_hosts, change):
    """Return three nodes with four ranks each of 16 OpenMP threads, so that a node needs 4 * (32 + 16) = 192 tasks."""
    return change.environment(on_hosts(gpus=4), None, OMP_NUM_THREADS="16")


def group(limit, left):
    return CgroupLimit(limit=limit, used=limit - left, cgroup="/sys/fs/cgroup/job")


def quota(cpus, periods=0, throttled=0):
    return Limits(cpu=CpuQuota(cpus, periods, throttled, "/sys/fs/cgroup/job"))


@pytest.mark.parametrize(
    ("limits", "cpus", "expected", "words"),
    [
        (None, "0-63", "", ""),
        (Limits(tasks=group(500, 180)), "0-63", "host-nproc-pids warning", "cgroup leaves 180 of 500 processes"),
        (Limits(tasks=group(500, 10)), "0-63", "host-nproc-pids error", "leaves 10 of 500"),
        (Limits(tasks=group(500, 200)), "0-63", "", ""),
        (Limits(user_tasks=(4096, 3910)), "0-63", "host-nproc-pids warning", "(ulimit -u) leaves 186 of 4096"),
        (Limits(user_tasks=(4096, 5000)), "0-63", "host-nproc-pids error", "leaves 0 of 4096"),
        (Limits(user_tasks=(4096, 100)), "0-63", "", ""),
        (Limits(address_space_bytes=30 * GIB), "0-63", "host-address-space warning", "limited to 32 GB"),
        (Limits(address_space_bytes=1 << 50), "0-63", "", ""),
        (Limits(memory=group(8 * GIB, 0)), "0-63", "host-memory-low error", "cgroup, 8 GiB, leaves 0 B"),
        (Limits(memory=group(8 * GIB, 3 * GIB)), "0-63", "host-memory-low warning", "expected 4 GiB or more"),
        (Limits(memory=group(8 * GIB, 5 * GIB)), "0-63", "", ""),
        (quota(2.5), "0-63", "perf-cgroup-cpu-quota warning", "cgroup is 2.5 CPUs; expected at least 4"),
        (quota(4), "0-63", "", ""),
        (quota(8, 1000, 600), "0-63", "perf-cgroup-cpu-quota info", "expected more than 4; it stopped them in 60%"),
        (quota(8, 100, 100), "0-63", "", ""),
        (quota(8, 1000, 100), "0-63", "", ""),
    ],
)
def test_a_limit_of_the_ranks_of_a_node_is_reported_at_them(job, change, judge, limits, cpus, expected, words):
    said = judge(change.rank(change.process(job, RANKS, limits=limits), RANKS, cpu_list=cpus), *OURS)
    found = [f for f in said.findings if not f.rule.startswith("perf-omp")]  # whose threads have fewer CPUs
    assert [(f.rule, f.severity, f.ranks, f.nodes) for f in found] == (
        [(*expected.split(), RANKS, ("node2",))] if expected else []
    )
    assert words in "".join(f.message for f in found)
    assert said.verdict.exit_code == (30 if "error" in expected else 0)


def test_limits_that_only_nccl_meets_do_not_matter_to_gloo(on_hosts, change, silent):
    for limits in (Limits(address_space_bytes=1 << 30), Limits(stack_bytes=-1)):
        assert silent(change.process(on_hosts(2, 2), None, limits=limits))


def test_more_memory_is_requested_and_without_omp_num_threads_each_cpu_is_a_thread(job, change, only):
    found, _ = only(change.process(job, RANKS, limits=Limits(memory=group(8 * GIB, 3 * GIB))))
    assert "# add to docker run: --memory=16384m" in found.fix.commands
    job = change.process(job, RANKS, limits=Limits(tasks=group(500, 370)))
    found, _ = only(change.environment(job, RANKS, OMP_NUM_THREADS=None))
    assert "leaves 370 of 500 processes and threads; expected 384 or more" in found.message


def test_a_kernel_that_is_full_of_threads_is_the_nodes(on_hosts, only):
    found, code = only(on_hosts(states={2: {"tasks": 32760, "zombies": 900}}))
    assert (found.severity, found.scope, found.nodes, found.evidence["zombies"]) == ("error", "node", ("node3",), 900)
    assert code == 20


@pytest.mark.parametrize(
    ("nccl", "cluster", "severity"),
    [("2.27.5", "5a", "warning"), ("2.27.5", "", "info"), ("2.28.3", "5a", ""), ("", "5a", "")],
)
def test_host_stack_unlimited_by_the_version_of_nccl(on_hosts, change, said, nccl, cluster, severity):
    job = on_hosts(2, 2, gpus=2)
    health = GpuHealth(fabric=Fabric(3, 0, cluster, 1, 0, 1))
    for n, node in enumerate(job.nodes):
        devices = tuple(msgspec.structs.replace(gpu, health=health) for gpu in node.gpus.devices)
        job = change.node(job, n, gpus=msgspec.structs.replace(node.gpus, devices=devices))
    installed = Installed(python="3.11.7", prefix="/opt", torch=job.nodes[0].torch, nccl=nccl)
    job = change.process(job, None, installed=installed)
    assert said(job, *OURS) == []
    job = change.process(job, (1, 3), limits=Limits(stack_bytes=-1))
    expected = [("host-stack-unlimited", severity, (1, 3), ("node1", "node2"))] if severity else []
    assert said(job, *OURS) == expected
