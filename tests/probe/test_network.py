from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from real.waiting import until

from distcheck.facts.base import Missing
from distcheck.facts.network import PortConnection, PortOwner, Resolution
from distcheck.probe import network


def test_binding_a_free_port_listens_for_both_families():
    with network.listen(0) as sock:
        port = sock.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=2).close()


def test_a_kernel_without_ipv6_listens_for_ipv4_alone(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)  # what create_server asks
    with network.listen(0) as sock:
        socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=2).close()


def test_a_port_in_use_has_its_owner():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sock, bound = network.bind(port)
    assert sock is None
    assert bound.outcome == "in-use"
    assert isinstance(bound.owner, PortOwner)
    assert bound.owner.pid == os.getpid()
    assert "pytest" in bound.owner.command or "python" in bound.owner.command


def test_a_port_in_use_under_torchrun_belongs_to_its_agent():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        _, bound = network.bind(taken.getsockname()[1], agent=True)
    assert bound.outcome == "agent"


def test_a_port_that_is_only_bound_shows_no_owner():
    with socket.socket(socket.AF_INET6) as bound:
        # Without SO_REUSEADDR the kernel chooses a port without connections in TIME_WAIT, which other tests leave.
        bound.bind(("::", 0))
        owner, connection = network.port_owner(bound.getsockname()[1])
    assert owner == Missing(reason="no socket found; its process may have ended, or only have bound the port")
    assert connection is None


def test_a_port_that_an_outgoing_connection_holds_has_the_connection_and_its_owner_until_it_ends():
    with socket.create_server(("127.0.0.1", 0)) as server:
        # No other connection gets a port that was bound by name, as the kernel's own choice for a connection may.
        with socket.create_connection(server.getsockname(), 2, ("127.0.0.1", 0)) as outgoing:
            accepted, _ = server.accept()
            port = outgoing.getsockname()[1]
            sock, bound = network.bind(port)
        accepted.close()
        peer = f"127.0.0.1:{server.getsockname()[1]}"
        assert (sock, bound.outcome) == (None, "in-use")
        assert bound.connection == PortConnection(peer, "ESTABLISHED")
        assert isinstance(bound.owner, PortOwner)
        assert bound.owner.pid == os.getpid()

        # The kernel takes a moment to exchange the last packets.
        until(lambda: network.bind(port)[1].connection.state == "TIME_WAIT")
        ended = network.bind(port)[1]
        assert (ended.outcome, ended.connection) == ("in-use", PortConnection(peer, "TIME_WAIT"))
        assert ended.owner == Missing(reason="the connection has ended")


@pytest.mark.process
def test_a_port_belongs_to_the_server_and_not_to_a_worker_that_inherited_it(monkeypatch):
    serve = (
        "import os, socket, subprocess, sys; s = socket.create_server(('127.0.0.1', 0)); s.set_inheritable(True);"
        "worker = subprocess.Popen(['cat'], close_fds=False);"
        "print(worker.pid, s.fileno(), flush=True); worker.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        worker, descriptor = map(int, server.stdout.readline().split())
        assert network.first_holder(worker, descriptor) == server.pid
        assert network.first_holder(server.pid, descriptor) == server.pid
        assert network.first_holder(1, 1_000_000) == 1

        # After the process numbers have wrapped, the worker is found first.
        (listening,) = [c for c in psutil.Process(worker).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        found_first = SimpleNamespace(**listening._asdict(), pid=worker)
        monkeypatch.setattr(psutil, "net_connections", lambda _kind: [found_first])
        assert network.port_owner(listening.laddr.port)[0].pid == server.pid
        server.stdin.close()


def test_a_free_port_lies_below_the_ephemeral_range():
    assert 1024 < network.free_port() < 32768


def test_a_name_resolves_to_its_addresses():
    found = network.resolve("localhost")
    assert isinstance(found, Resolution)
    assert {"127.0.0.1", "::1"} & set(found.addresses)


def test_a_name_that_does_not_resolve_has_the_resolvers_error():
    for name in ("no-such-host.invalid", "", "a" * 300, "bad\0name"):
        found = network.resolve(name)
        assert isinstance(found, (Missing, Resolution))
    assert isinstance(network.resolve("no-such-host.invalid"), Missing)


def test_the_names_of_etc_hosts_that_are_spelt_alike_are_found(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# 10.0.0.9 nodx1\n127.0.0.1 localhost\n10.0.0.1\tnode1.lan node1  # the first\n10.0.0.2 node2\n")
    assert network.names_like("lcoalhost", hosts) == ("localhost",)
    assert network.names_like("nod1", hosts) == ("node1",)
    assert network.names_like("nod1", tmp_path / "none") == ()


def test_connecting_to_our_own_port_reaches_only_ourselves():
    with network.listen(0) as sock, socket.create_server(("127.0.0.2", 0)) as other:
        assert network.knock_at_own(sock, "127.0.0.1", 2).outcome == "met"
        other_port = other.getsockname()[1]
        with socket.create_server(("127.0.0.3", other_port)) as ours:
            assert network.knock_at_own(ours, "127.0.0.3", 2).outcome == "met"
            assert network.knock_at_own(ours, "127.0.0.4", 2).outcome == "refused"
            assert network.knock_at_own(ours, "127.0.0.2", 0.3).outcome == "timeout"


def test_somebody_else_who_connects_to_our_port_is_not_taken_for_another_process_there():
    with network.listen(0) as sock, socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=2):
        assert network.knock_at_own(sock, "127.0.0.1", 2).outcome == "met"


def test_a_reverse_lookup_works_as_in_torch_and_an_address_without_a_name_has_an_empty_one(monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getnameinfo", lambda *words: asked.append(words) or ("node2.cluster", "0"))
    found = network.reverse("10.0.0.2")
    assert (found.address, found.name, found.seconds >= 0) == ("10.0.0.2", "node2.cluster", True)
    assert asked == [(("10.0.0.2", 0), socket.NI_NAMEREQD | socket.NI_NUMERICSERV)]
    for error in (socket.gaierror(-2, "Name or service not known"), OSError(5, "?"), UnicodeError("label too long")):
        monkeypatch.setattr(socket, "getnameinfo", Mock(side_effect=error))
        assert network.reverse("fd00::2").name == ""
    monkeypatch.undo()
    assert network.reverse("127.0.0.1").address == "127.0.0.1"
    assert network.reverse("no address").name == ""
