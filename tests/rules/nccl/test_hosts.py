"""NCCL on mixed CPUs, in containers with separate networks, and where the container forbids memory policies."""

from __future__ import annotations

import pytest
from rules.conftest import replace

from distcheck.facts.libraries import Libraries
from distcheck.probe import host

FAMILY = "nccl_hosts"
INTEL, AMD = "GenuineIntel", "AuthenticAMD"


def told(said):
    return [(f.rule, f.severity, f.ranks, f.nodes) for f in said.findings]


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
def cpus(change, tmp_path):
    """Give a job's nodes the CPUs that the collector reads in made-up /proc/cpuinfo."""

    def cpus(job, *vendors):
        for number, vendor in enumerate(vendors):
            folder = tmp_path / str(number) / "proc"
            folder.mkdir(parents=True, exist_ok=True)
            named = f"vendor_id\t: {vendor}\n" if vendor else ""
            (folder / "cpuinfo").write_text(f"processor\t: 0\n{named}cpu family\t: 25\n\nprocessor\t: 1\n{named}")
            job = change.node(job, number, cpu_vendor=host.cpu_vendor(folder.parent))
        return job

    return cpus


def test_nccl_mixed_cpu_vendor_names_the_fewer_nodes(loading, cpus, judge):
    said = judge(cpus(loading("2.21.5"), INTEL, AMD, INTEL), FAMILY)
    assert told(said) == [("nccl-mixed-cpu-vendor", "warning", (2, 3), ("node2",))]
    assert said.findings[0].message == (
        "node2 has AMD CPUs, node1 and node3 have GenuineIntel: NCCL 2.21.5 chooses algorithms by each node's own CPU"
    )
    assert said.findings[0].evidence["GenuineIntel"] == "node1 and node3"


@pytest.mark.parametrize("version", ["2.17.1", "2.22.3", "2.27.3"])
def test_a_release_that_uses_one_estimate_for_all_ranks_is_silent(loading, cpus, judge, version):
    assert judge(cpus(loading(version), INTEL, AMD, INTEL), FAMILY)[:2] == ((), ())


def test_equal_or_unknown_cpus_and_a_common_overhead_are_silent(loading, cpus, judge, change):
    old = loading("2.19.3")
    for vendors in ((INTEL,) * 3, (AMD,) * 3, (AMD, "", ""), (INTEL, "HygonGenuine", INTEL)):
        assert judge(cpus(old, *vendors), FAMILY)[:2] == ((), ())
    assert judge(change.environment(cpus(old, INTEL, AMD, INTEL), None, NCCL_NET_OVERHEAD="1000"), FAMILY)[:2] == (
        (),
        (),
    )


def test_amd_gpus_and_other_backends_are_left_out(loading, cpus, judge, change):
    mixed = cpus(loading("2.21.5"), INTEL, AMD, INTEL)
    assert judge(change.node(mixed, None, accelerator="amd"), FAMILY)[:2] == ((), ())
    assert judge(change.asked(mixed, backend="gloo"), FAMILY)[:2] == ((), ())


def test_mixed_cpus_with_an_unknown_nccl_are_listed_as_not_checked(job, cpus, judge):
    said = judge(cpus(job, INTEL, AMD, INTEL), FAMILY)
    assert (said.findings, [(n.rule, n.required) for n in said.not_checked]) == ((), [("nccl-mixed-cpu-vendor", False)])


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


def test_nccl_ipc_abstract_socket_where_containers_share_all_but_the_network(containers, judge):
    said = judge(containers(), FAMILY)
    assert told(said) == [("nccl-ipc-abstract-socket", "warning", (0, 1, 2, 3), ("node1", "node2"))]
    assert "share the host host1 and its /dev/shm, but have 2 network namespaces" in said.findings[0].message
    assert "export NCCL_IPC_USE_ABSTRACT_SOCKET=0" in said.findings[0].fix.commands
    (older,) = judge(containers("2.27.3", NCCL_IPC_USE_ABSTRACT_SOCKET="0"), FAMILY).findings
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
def test_containers_that_nccl_connects_otherwise_are_silent(containers, judge, healthy):
    assert judge(containers(**healthy), FAMILY)[:2] == ((), ())


def test_machines_with_separate_names_or_boots_are_silent(containers, judge, change):
    assert judge(change.node(containers(), 1, boot_id="boot-2"), FAMILY)[:2] == ((), ())
    renamed = change.node(containers(), 1, hostname="host2")
    assert judge(renamed, FAMILY)[:2] == ((), ())
    one = change.environment(renamed, None, NCCL_HOSTID="host1")
    assert [f.rule for f in judge(one, FAMILY).findings] == ["nccl-ipc-abstract-socket"]
    one = change.nccl_file(renamed, None, "NCCL_HOSTID=host1")
    assert [f.rule for f in judge(one, FAMILY).findings] == ["nccl-ipc-abstract-socket"]


DENIED = {"memory_policy_error": "Operation not permitted"}


@pytest.mark.parametrize(
    ("version", "wanted", "severity"),
    [
        ("2.25.1", None, "warning"), ("2.26.2", None, "warning"), ("2.27.3", None, "info"), ("2.23.4", "1", "warning"),
        ("2.23.4", None, ""), ("2.25.1", "0", ""), ("2.22.3", "1", ""),
    ],
)  # fmt: skip
def test_nccl_cumem_host_docker_by_the_release(loading, judge, change, version, wanted, severity):
    denied = change.process(change.environment(loading(version), None, NCCL_CUMEM_HOST_ENABLE=wanted), (2, 3), **DENIED)
    expected = [("nccl-cumem-host-docker", severity, (2, 3), ("node2",))] if severity else []
    assert told(judge(denied, FAMILY)) == expected


def test_memory_policies_do_not_matter_to_older_drivers_or_builds(loading, judge, change):
    denied = change.process(loading("2.25.1"), None, **DENIED)
    assert len(judge(denied, FAMILY).findings) == 1
    older = change.node(denied, None, gpus=replace(denied.nodes[0].gpus, cuda_driver="12.4"))
    assert judge(older, FAMILY).findings == ()
    installed = denied.processes[0].installed
    cu118 = change.process(denied, None, installed=replace(installed, torch=replace(installed.torch, cuda="11.8")))
    assert judge(cu118, FAMILY).findings == ()
    assert judge(change.process(denied, None, memory_policy_error=""), FAMILY).findings == ()
