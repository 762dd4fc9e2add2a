from __future__ import annotations

import socket
import sys

from distcheck.facts import Missing, TorchBuild
from distcheck.probe import host


def test_a_node_is_the_schedulers_name_or_the_hosts_with_boot_and_network():
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


def test_a_missing_torch_is_a_fact(monkeypatch):
    monkeypatch.setattr(host, "find_spec", lambda _: None)
    assert host.torch_build() == Missing(reason="torch is not installed in this Python")


def test_the_loopback_interface_is_seen():
    interfaces = host.interfaces()
    assert not isinstance(interfaces, Missing)
    assert any(i.address == "127.0.0.1" and i.mtu_bytes > 1000 for i in interfaces)


def test_the_ports_of_a_meshs_sidecar_are_looked_at_in_pods_only(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as sidecar:
        port = sidecar.getsockname()[1]
        monkeypatch.setattr(host, "_PROXY_PORTS", (port, 1))
        assert host.collect({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}).proxy_ports == (port,)
        assert host.collect({}).proxy_ports == ()
