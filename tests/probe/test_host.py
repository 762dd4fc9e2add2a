from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Interface
from distcheck.facts.node import TorchBuild
from distcheck.probe import host, limits
from distcheck.probe.own import process_facts


def test_a_nodes_key_is_its_name_with_boot_and_network():
    mine, slurms = host.collect({}), host.collect({"SLURMD_NODENAME": "node7"})
    assert mine.name == mine.hostname
    assert slurms.name == "node7"
    assert mine.key != slurms.key
    assert mine.key == host.collect({}).key


def test_torchs_version_is_read_without_importing_it():
    before = "torch" in sys.modules
    build = host.torch_build()
    assert isinstance(build, TorchBuild)
    assert build.version.startswith("2.")
    assert ("torch" in sys.modules) == before


def test_a_process_on_a_node_with_gpus_looks_at_its_container():
    node = host.collect({})
    plain, gpus = (
        process_facts("1", msgspec.structs.replace(node, accelerator=kind), {}) for kind in ("none", "nvidia")
    )
    assert (plain.shm_device, plain.memory_policy_error) == (None, None)
    assert isinstance(gpus.shm_device, int)
    assert gpus.memory_policy_error == limits.memory_policy_error()


def test_a_missing_torch_is_a_fact(monkeypatch):
    monkeypatch.setattr(host, "find_spec", lambda _: None)
    assert host.torch_build() == Missing(reason="torch is not installed in this Python")


def test_the_nccl_version_is_read_from_the_wheels_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py")))
    for name in ("nvidia_nccl_cu12-2.27.3", "nvidia_nccl_cu13-2.29.7", "nvidia_cuda_runtime_cu13-13.0.96"):
        (tmp_path / f"{name}.dist-info").mkdir()
    assert host.nccl_beside(TorchBuild("2.13.0+cu130", "13.0", None)) == "2.29.7"
    assert host.nccl_beside(TorchBuild("2.7.1+cu126", "12.6", None)) == "2.27.3"
    assert host.nccl_beside(TorchBuild("2.1.2+cu118", "11.8", None)) == "", "it is linked into torch"
    assert host.nccl_beside(TorchBuild("2.13.0+cpu", None, None)) == ""
    assert host.nccl_beside(Missing(reason="torch is not installed in this Python")) == ""


def test_the_ports_of_a_meshs_sidecar_are_read_in_pods_only(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as sidecar:
        port = sidecar.getsockname()[1]
        monkeypatch.setattr(host, "_PROXY_PORTS", (port, 1))
        assert host.collect({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}).proxy_ports == (port,)
        assert host.collect({}).proxy_ports == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\n", ()), ("29500\n", ((29500, 29500),)), ("8080,9000-9100\n", ((8080, 8080), (9000, 9100)))],
)
def test_reserved_ports_are_read_as_ranges(tmp_path, text, expected):
    path = tmp_path / "ip_local_reserved_ports"
    path.write_text(text)
    assert host.reserved_ports(str(path)) == expected


def test_reserved_ports_that_cannot_be_read_are_missing(tmp_path):
    path = tmp_path / "ip_local_reserved_ports"
    assert host.reserved_ports(str(path)).reason.endswith("No such file or directory")
    path.write_text("none")
    assert host.reserved_ports(str(path)).reason.endswith("holds 'none'")
    assert not isinstance(host.collect({}).reserved_ports, Missing), "of this machine"


def _listed(monkeypatch, *addresses, down=()):
    """Have psutil list these (name, family, address, mask); the kernel: lo, eth0, eth1, wg0."""
    import psutil

    found: dict[str, list[SimpleNamespace]] = {}
    for name, family, address, mask in addresses:
        found.setdefault(name, []).append(SimpleNamespace(family=family, address=address, netmask=mask))
    devices = [name for name in found if ":" not in name]
    stats = {name: SimpleNamespace(isup=name not in down, mtu=65536 if name == "lo" else 1500) for name in devices}
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(("lo", "eth0", "eth1", "wg0"), start=1)))
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)


def test_addresses_are_in_the_order_of_getifaddrs_ipv4_first_each_as_up_as_its_interface(monkeypatch):
    _listed(
        monkeypatch,
        ("lo", socket.AF_INET, "127.0.0.1", "255.0.0.0"),
        ("lo", socket.AF_INET6, "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("eth1", socket.AF_INET, "10.0.0.1", "255.255.254.0"),
        ("eth1", socket.AF_INET, "10.9.0.1", "255.255.255.255"),
        ("eth1", socket.AF_INET6, "fd00:1::1", "ffff:ffff:ffff:ffff::"),
        ("wg0", socket.AF_INET, "10.8.0.1", None),
        ("wg0:1", socket.AF_INET, "10.8.0.2", "255.255.255.0"),
        ("eth0", socket.AF_PACKET, "02:00:00:00:00:01", None),
        ("eth0", socket.AF_INET6, "fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
        down=("wg0",),
    )
    assert host.interfaces() == (
        Interface("lo", "127.0.0.1", up=True, mtu_bytes=65536, prefix_bits=8),
        Interface("eth1", "10.0.0.1", up=True, mtu_bytes=1500, prefix_bits=23),
        Interface("eth1", "10.9.0.1", up=True, mtu_bytes=1500, prefix_bits=32),
        Interface("wg0", "10.8.0.1", up=False, mtu_bytes=1500, prefix_bits=None),
        Interface("wg0:1", "10.8.0.2", up=False, mtu_bytes=1500, prefix_bits=24),
        Interface("lo", "::1", up=True, mtu_bytes=65536, prefix_bits=128),
        Interface("eth0", "fe80::1", up=True, mtu_bytes=1500, prefix_bits=64),
        Interface("eth1", "fd00:1::1", up=True, mtu_bytes=1500, prefix_bits=64),
    )


def test_interfaces_that_cannot_be_listed_are_missing(monkeypatch):
    import psutil

    def denied():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(psutil, "net_if_addrs", denied)
    assert host.interfaces() == Missing(reason="cannot list the interfaces: [Errno 13] Permission denied")


def test_the_loopbacks_subnet_is_known():
    (loopback,) = [i for i in host.interfaces() if i.address == "127.0.0.1"]
    assert (loopback.name, loopback.prefix_bits, loopback.up) == ("lo", 8, True)


def test_the_versions_of_loaded_network_drivers_are_read_from_sys_module(tmp_path):
    assert host.modules(tmp_path) == {}
    for name, version in (("mlx5_core", "24.10-3.2.5\n"), ("efa", None), ("ext4", "1")):
        folder = tmp_path / "sys" / "module" / name
        folder.mkdir(parents=True)
        if version is not None:
            (folder / "version").write_text(version)
    assert host.modules(tmp_path) == {"efa": "", "mlx5_core": "24.10-3.2.5"}
