"""Free ports are read from the kernel's tables."""

from __future__ import annotations

import os
import pwd
import socket

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import PortOwner
from distcheck.probe import network, ports

RANGE = (32768, 60999)


@pytest.fixture
def listening():
    """Listen as torch does."""
    with network.listen(0) as sock:
        yield sock.getsockname()[1]


def test_only_listening_sockets_are_listed_with_their_user(listening):
    assert dict(ports.listeners())[listening] == os.getuid()
    assert ports.listening_user(listening) == pwd.getpwuid(os.getuid()).pw_name
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert ports.listening_user(bound.getsockname()[1]) == ""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_in_use_on_one_address_is_not_free(family):
    with socket.socket(family) as sock:
        sock.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        sock.listen()
        taken = sock.getsockname()[1]
        assert taken not in ports.free_near(taken - 1, 1024, (65535, 65535))


def test_the_nearest_free_port_comes_first_and_can_be_listened_on(monkeypatch):
    monkeypatch.setattr(ports, "listeners", lambda: iter([(29501, 0), (29502, 0), (29504, 0)]))
    assert ports.free_near(29500, 1024, RANGE) == (29503, 29505)
    assert ports.free_near(32767, 1024, RANGE) == (32766, 32765), "above it connections go out"
    monkeypatch.undo()
    for port in ports.free_near(29500, 1024, RANGE):
        network.listen(port).close()


@pytest.mark.parametrize("port", [None, 0, 70000, 80, 40000, -5])
def test_for_an_invalid_port_the_search_starts_at_torchruns_default(monkeypatch, port):
    monkeypatch.setattr(ports, "listeners", lambda: iter([(29501, 0)]))
    assert ports.free_near(port, 1024, RANGE) == (29500, 29502)
    unknown = Missing(reason="not read")
    assert ports.free_near(port, unknown, unknown) == (29500, 29502)


def test_without_free_ports_or_kernel_tables_none_is_returned(monkeypatch, tmp_path):
    assert ports.free_near(29500, 1024, (1024, 65535)) == ()
    monkeypatch.setattr(ports, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert ports.free_near(29500, 1024, RANGE) == ()
    assert ports.listening_user(29500) == ""


def test_the_owner_of_a_port_has_its_slurm_job(monkeypatch, listening):
    monkeypatch.setattr(network, "slurm_job_of", lambda _: "7")
    owner, connection = network.port_owner(listening)
    assert isinstance(owner, PortOwner)
    assert connection is None
    assert (owner.pid, owner.own, owner.slurm_job, owner.container) == (os.getpid(), True, "7", "")
