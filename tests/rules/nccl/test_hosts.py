"""NCCL in containers with separate networks, and where the container forbids memory policies."""

from __future__ import annotations

import pytest
from made.jobs import replace

from distcheck.facts.libraries import Libraries

OURS = ("nccl.hosts",)


@pytest.fixture
def said(judge):
    """Return (rule, severity, ranks, nodes) of each finding."""
    return lambda job: [(f.rule, f.severity, f.ranks, f.nodes) for f in judge(job, *OURS).findings]


@pytest.fixture
def job(job_of):
    """Return three nodes of two ranks with GPUs."""
    return job_of(3, 2, "slurm", looks=("environment", "gpu"), gpus=2)


@pytest.fixture
def loading(job, change):
    """Return the job with this version of NCCL on all ranks."""

    def loading(version):
        return change.process(job, None, libraries=Libraries(version=version))

    return loading


@pytest.fixture
def containers(job_of, change):
    """Return one host with two containers, each with two ranks and a network of its own."""

    def containers(version="2.29.2", shm=(70, 70), spaces=("net:[1]", "net:[2]"), **variables):
        job = job_of(2, 2, "slurm", looks=("environment", "gpu"), gpus=2)
        job = change.process(job, None, libraries=Libraries(version=version))
        for number in (0, 1):
            job = change.node(job, number, hostname="host1", boot_id="boot-1", network_namespace=spaces[number])
            job = change.process(job, (2 * number, 2 * number + 1), shm_device=shm[number])
        return change.environment(job, None, **variables) if variables else job

    return containers


def test_nccl_ipc_abstract_socket_where_containers_share_all_but_the_network(containers, only):
    found, _ = only(containers())
    assert (found.rule, found.severity) == ("nccl-ipc-abstract-socket", "warning")
    assert (found.ranks, found.nodes) == ((0, 1, 2, 3), ("node1", "node2"))
    assert "share the host host1 and its /dev/shm, but have 2 network namespaces" in found.message
    assert "export NCCL_IPC_USE_ABSTRACT_SOCKET=0" in found.fix.commands
    older, _ = only(containers("2.27.3", NCCL_IPC_USE_ABSTRACT_SOCKET="0"))
    assert "export NCCL_CUMEM_ENABLE=0" in older.fix.commands, "2.27 does not read the other variable"


@pytest.mark.parametrize(
    "healthy",
    [
        {"spaces": ("net:[1]", "net:[1]")},
        {"shm": (70, 71)},
        {"shm": (None, None)},
        {"version": "2.18.1"},
        {"NCCL_CUMEM_ENABLE": "0"},
        {"NCCL_IPC_USE_ABSTRACT_SOCKET": "0"},
    ],
)
def test_containers_that_nccl_connects_otherwise_are_silent(containers, silent, healthy):
    assert silent(containers(**healthy))


def test_machines_with_separate_names_or_boots_are_silent(containers, silent, rules, change):
    assert silent(change.node(containers(), 1, boot_id="boot-2"))
    renamed = change.node(containers(), 1, hostname="host2")
    assert silent(renamed)
    assert rules(change.environment(renamed, None, NCCL_HOSTID="host1")) == ["nccl-ipc-abstract-socket"]
    assert rules(change.nccl_file(renamed, None, "NCCL_HOSTID=host1")) == ["nccl-ipc-abstract-socket"]


DENIED = {"memory_policy_error": "Operation not permitted"}


@pytest.mark.parametrize(
    ("version", "wanted", "severity"),
    [
        ("2.25.1", None, "warning"), ("2.26.2", None, "warning"), ("2.27.3", None, "info"), ("2.23.4", "1", "warning"),
        ("2.23.4", None, ""), ("2.25.1", "0", ""), ("2.22.3", "1", ""),
    ],
)  # fmt: skip
def test_nccl_cumem_host_docker_by_the_release(loading, said, change, version, wanted, severity):
    denied = change.process(change.environment(loading(version), None, NCCL_CUMEM_HOST_ENABLE=wanted), (2, 3), **DENIED)
    assert said(denied) == ([("nccl-cumem-host-docker", severity, (2, 3), ("node2",))] if severity else [])


def test_memory_policies_do_not_matter_to_older_drivers_or_builds(loading, rules, change):
    denied = change.process(loading("2.25.1"), None, **DENIED)
    node = denied.nodes[0]
    assert rules(denied) == ["nccl-cumem-host-docker"]
    assert rules(change.node(denied, None, gpus=replace(node.gpus, cuda_driver="12.4"))) == []
    installed = denied.processes[0].installed
    cu118 = replace(installed, torch=replace(installed.torch, cuda="11.8"))
    assert rules(change.process(denied, None, installed=cu118)) == []
    assert rules(change.process(denied, None, memory_policy_error="")) == []
