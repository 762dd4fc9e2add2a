"""Limits of processes, threads and stacks: too low for the ranks, at the right ranks."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.gpu import Fabric, GpuHealth
from distcheck.facts.host import CgroupLimit, Limits
from distcheck.facts.rank import Installed

FAMILY = "host_limits"


def tasks(limit, used):
    return CgroupLimit(limit=limit, used=used, cgroup="/sys/fs/cgroup/pids/job")


@pytest.mark.parametrize(
    ("limits", "severity", "words"),
    [
        (Limits(tasks=tasks(500, 300)), "warning", "pids.max of their cgroup leaves 200 of 500"),
        (Limits(tasks=tasks(500, 490)), "error", "leaves 10 of 500"),
        (Limits(tasks=tasks(500, 100)), "", ""),
        (Limits(user_tasks=(4096, 3900)), "warning", "their user's limit (ulimit -u) leaves 196 of 4096"),
        (Limits(user_tasks=(4096, 5000)), "error", "leaves 0 of 4096"),
        (Limits(user_tasks=(4096, 100)), "", ""),
        (None, "", ""),
    ],
)
def test_host_nproc_pids_of_the_ranks_of_one_node(on_hosts, change, judge, limits, severity, words):
    job = change.environment(on_hosts(), None, OMP_NUM_THREADS="20")  # 4 ranks of 32 + 20 threads need 208
    said = judge(change.process(job, (4, 5, 6, 7), limits=limits), FAMILY)
    found = [(f.rule, f.severity, f.ranks, f.nodes) for f in said.findings]
    assert found == ([("host-nproc-pids", severity, (4, 5, 6, 7), ("node2",))] if severity else [])
    assert words in "".join(f.message for f in said.findings)
    assert said.verdict.exit_code == (30 if severity == "error" else 0)


def test_without_omp_num_threads_each_cpu_is_a_thread(on_hosts, change, said):
    limited = Limits(tasks=tasks(500, 130))
    assert [f[1] for f in said(change.process(on_hosts(1), None, limits=limited), FAMILY)] == ["warning"]


def test_a_kernel_that_is_full_of_threads_is_the_nodes(on_hosts, judge):
    said = judge(on_hosts(states={2: {"tasks": 32760, "zombies": 900}}), FAMILY)
    (found,) = said.findings
    assert (found.severity, found.scope, found.nodes, found.evidence["zombies"]) == ("error", "node", ("node3",), 900)
    assert said.verdict.exit_code == 20


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
    assert said(job, FAMILY) == []
    job = change.process(job, (1, 3), limits=Limits(stack_bytes=-1))
    expected = [("host-stack-unlimited", severity, (1, 3), ("node1", "node2"))] if severity else []
    assert said(job, FAMILY) == expected


@pytest.mark.parametrize(("limit", "found"), [(30 << 30, True), (1 << 50, False), (-1, False)])
def test_host_address_space_below_the_memory_of_the_gpus(on_hosts, change, said, limit, found):
    job = change.process(on_hosts(2, 2, gpus=2), (2, 3), limits=Limits(address_space_bytes=limit))
    assert said(job, FAMILY) == ([("host-address-space", "warning", (2, 3), ("node2",))] if found else [])


def test_a_limit_of_the_address_space_does_not_matter_to_gloo(on_hosts, change, said):
    assert said(change.process(on_hosts(2, 2), None, limits=Limits(address_space_bytes=1 << 30)), FAMILY) == []


def test_an_unlimited_stack_does_not_matter_to_gloo(on_hosts, change, said):
    assert said(change.process(on_hosts(2, 2), None, limits=Limits(stack_bytes=-1)), FAMILY) == []
