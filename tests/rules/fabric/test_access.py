"""Device files, libibverbs, locked memory and EFA's plugin, from made-up trees of /sys and /dev."""

from __future__ import annotations

import msgspec
import pytest
from made.hcas import efa, infiniband

from distcheck.facts.job import Collectives

RAILS = [infiniband(f"mlx5_{n}") for n in range(2)]
ABSENT = [rail._replace(file="absent") for rail in RAILS]
NODE2 = ((2, 3), ("node2",))
ALL = ((0, 1, 2, 3), ("node1", "node2"))


def denied(adapters, *names):
    """Return the facts as a device cgroup that refuses these adapters leaves them."""
    refused = {"device_file": "denied", "denied": "Operation not permitted"}
    hcas = tuple(msgspec.structs.replace(h, **refused) if h.name in names else h for h in adapters.hcas)
    return msgspec.structs.replace(adapters, hcas=hcas)


def test_ib_no_device_in_container_without_device_files(fabric, told, message):
    job = fabric(RAILS, ABSENT)
    assert told(job) == [("ib-no-device-in-container", "error", *NODE2)]
    assert message(job) == "node2: mlx5_0 and mlx5_1 are active, but /dev/infiniband has no file for them"


def test_ib_no_device_in_container_without_libibverbs(fabric, read, told, message):
    error = "libibverbs.so.1: cannot open shared object file: No such file or directory"
    job = fabric(*[read(RAILS, libibverbs=error)] * 2)
    assert told(job) == [("ib-no-device-in-container", "error", *ALL)]
    assert f"libibverbs cannot be loaded ({error})" in message(job)


def test_ib_device_not_openable_by_how_many_are_left(fabric, read, told, message):
    whole, half, none = read(RAILS), denied(read(RAILS), "mlx5_1"), denied(read(RAILS), "mlx5_0", "mlx5_1")
    job = fabric(whole, half)
    assert told(job) == [("ib-device-not-openable", "warning", *NODE2)]
    assert "1 of 2 active adapters cannot be opened: mlx5_1 (/dev/infiniband/uverbs1: Operation not perm" in message(
        job
    )
    assert told(fabric(whole, none)) == [("ib-device-not-openable", "error", *NODE2)]
    assert {severity for _, severity, *_ in told(fabric(half, half))} == {"info"}


@pytest.mark.parametrize(
    ("limit", "severity"),
    [(64 << 10, "error"), (8 << 20, "error"), (512 << 20, "warning"), (1 << 30, ""), (-1, ""), (None, "")],
)
def test_ib_fork_or_memlock_by_the_limit(fabric, told, change, limit, severity):
    job = change.process(fabric(RAILS, RAILS), [2, 3], locked_memory_bytes=limit)
    assert told(job) == ([("ib-fork-or-memlock", severity, *NODE2)] if severity else [])


def test_a_low_limit_without_adapters_is_no_fault(fabric, told, change):
    assert told(change.process(fabric([], []), None, locked_memory_bytes=64 << 10)) == []


def test_nccl_efa_plugin_missing_until_nccls_log_decides(fabric, read, told, change):
    job = fabric([efa()], [efa()])
    assert told(job) == [("nccl-efa-plugin-missing", "warning", *ALL)]
    assert told(change.job(job, collectives=Collectives(backend="nccl"))) == []
    assert told(fabric(*[read([efa()], net_plugin="libnccl-net.so")] * 2)) == []


EFAS = [efa(f"rdmap{n}s27") for n in (16, 17)]
NO_FILES = [adapter._replace(file="absent") for adapter in EFAS]


@pytest.fixture
def clouds(fabric, read):
    """Build a job whose nodes have these adapters and NCCL's plugin for them."""

    def clouds(*nodes, **variables):
        return fabric(*[read(node, net_plugin="libnccl-net.so") for node in nodes], **variables)

    return clouds


def test_nccl_efa_provider_missing_without_device_files(clouds, told, message):
    job = clouds(EFAS, NO_FILES)
    assert told(job) == [("nccl-efa-provider-missing", "error", *NODE2)]
    assert message(job).endswith("rdmap16s27 and rdmap17s27 (EFA): /dev/infiniband has no file for them")
    assert told(clouds(NO_FILES, NO_FILES)) == [("nccl-efa-provider-missing", "warning", *ALL)]
    assert told(clouds(NO_FILES, NO_FILES, NCCL_NET="Socket")) == [], "sockets are wanted"
    assert told(clouds([EFAS[0], NO_FILES[1]], EFAS)) == [], "libfabric uses the other one"


def test_nccl_efa_provider_missing_names_what_the_device_cgroup_refuses(fabric, read, told, message):
    plugged = read(EFAS, net_plugin="libnccl-net.so")
    job = fabric(plugged, denied(plugged, *[adapter.name for adapter in EFAS]))
    assert told(job) == [("nccl-efa-provider-missing", "error", *NODE2)]
    assert message(job).endswith("/dev/infiniband/uverbs0: Operation not permitted")


@pytest.mark.parametrize(("value", "excludes"), [("tcp", True), ("^efa", True), ("shm;tcp", True), ("efa", False),
    ("EFA,shm", False), ("^psm3,udp", False), ("", False), ("efa-direct", False)])  # fmt: skip
def test_nccl_efa_provider_missing_by_fi_provider(clouds, told, value, excludes):
    expected = [("nccl-efa-provider-missing", "warning", *ALL)] if excludes else []
    assert told(clouds(EFAS, EFAS, FI_PROVIDER=value)) == expected


def test_nccl_efa_provider_missing_by_a_file_of_nccl(clouds, told, change, judge):
    job = change.nccl_file(clouds(EFAS, EFAS), None, "FI_PROVIDER=tcp")
    assert told(job) == [("nccl-efa-provider-missing", "warning", *ALL)]
    assert judge(job, "ib_access").findings[0].fix.commands[0] == "sudo sed -i '/^FI_PROVIDER=/d' /etc/nccl.conf"


def test_fi_provider_does_not_matter_without_efa(fabric, told):
    assert told(fabric(RAILS, RAILS, FI_PROVIDER="tcp")) == []


def asked(adapters, *offered, abi=6):
    """Return the facts where the kernel tells its interface's version and libibverbs offers these adapters."""
    hcas = tuple(msgspec.structs.replace(h, abi=abi) for h in adapters.hcas)
    return msgspec.structs.replace(adapters, hcas=hcas, offered=offered)


def test_ib_no_device_in_container_when_libibverbs_has_no_provider_that_fits(fabric, read, told, message):
    job = fabric(asked(read(RAILS), "mlx5_0", "mlx5_1"), asked(read(RAILS)))
    assert told(job) == [("ib-no-device-in-container", "error", *NODE2)]
    assert message(job) == (
        "node2: mlx5_0 and mlx5_1 are active, but libibverbs has no provider that fits their driver"
        " (mlx5_core, kernel ABI 6)"
    )


def test_an_adapter_without_provider_beside_another_or_not_asked_for_is_silent(fabric, read, told):
    assert told(fabric(*[asked(read(RAILS), "mlx5_1")] * 2)) == [], "NCCL uses the other one"
    assert told(fabric(*[asked(read(RAILS), abi=None)] * 2)) == [], "the kernel tells no version"
    unasked = msgspec.structs.replace(asked(read(RAILS)), offered=None)
    assert told(fabric(unasked, unasked)) == []
