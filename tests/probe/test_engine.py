"""What an inference engine needs, as the probe finds it on this machine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from distcheck.facts.engine import Engine, FixedPort
from distcheck.facts.network import PortOwner
from distcheck.probe import engine


def seen(stated: Engine) -> Engine:
    """Return the last answer about an engine."""
    *_, last = engine.answers(msgspec.json.encode(stated).decode())
    return last


@pytest.fixture
def listening():
    """Listen at one address of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


@pytest.mark.parametrize(("host", "taken"), [("", True), ("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_port_is_taken_only_at_the_address_of_the_server(listening, host, taken):
    (port,) = seen(Engine("vLLM", ports=(FixedPort(listening, "--port", host),))).ports
    assert (port.owner is not None) == taken
    if taken:
        assert isinstance(port.owner, PortOwner)
        assert port.owner.pid == os.getpid()
        assert port.free not in {None, listening}


def test_the_port_where_the_nodes_meet_is_left_to_the_roll_call(listening):
    (port,) = seen(Engine("vLLM", ports=(FixedPort(listening, "--master-port", meets=True),))).ports
    assert port.owner is None


def test_a_server_at_all_addresses_holds_a_port_at_each():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as sock:
        (port,) = seen(Engine("vLLM", ports=(FixedPort(sock.getsockname()[1], "--port", "10.0.0.1"),))).ports
    assert port.owner is not None


def test_an_address_by_a_variable_stays_and_another_is_found_on_this_machine():
    assert seen(Engine("vLLM", announces=True, address="10.9.9.9", address_by="VLLM_HOST_IP")).address == "10.9.9.9"
    assert seen(Engine("vLLM")).address == ""
    by_nic = seen(Engine("SGLang", announces=True, address_by="SGLANG_LOCAL_IP_NIC=lo"))
    assert by_nic.address_by != "SGLANG_LOCAL_IP_NIC=lo"  # 127.0.0.1 is passed over
    assert seen(Engine("vLLM", announces=True)).address_by.startswith("the route to ")


def test_a_model_is_there_or_is_not(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(b"x")

    def of(name: str) -> str:
        return seen(Engine("vLLM", model=str(tmp_path / name))).model_state

    assert (of("."), of("a.safetensors"), of("nosuch"), of("a.safetensors/x")) == ("folder", "file", "absent", "absent")


@pytest.mark.process
def test_versions_are_those_of_the_engines_own_python(tmp_path: Path):
    import subprocess

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for name in ("vllm-0.33.0", "flashinfer_python-0.6.1", "numpy-2.0"):
        (site / f"{name}.dist-info").mkdir()
    program = tmp_path / "venv" / "bin" / "vllm"
    program.write_text(f"#!{tmp_path}/venv/bin/python\nraise SystemExit(1)\n")
    program.chmod(0o755)
    expected = {"vllm": "0.33.0", "flashinfer-python": "0.6.1"}
    assert seen(Engine("vLLM", program=str(program))).versions == expected
    assert seen(Engine("SGLang", program=f"{tmp_path}/venv/bin/python")).versions == expected
    assert seen(Engine("vLLM", program="/bin/true")).versions == {}
    assert seen(Engine("vLLM", program="nosuch-program")).versions == {}
