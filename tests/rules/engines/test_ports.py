"""An engine's ports: valid, free, used once, outside the ephemeral range; and the variables that look like one."""

from __future__ import annotations

import pytest
from rules.engines.conftest import engine

from distcheck.facts.base import Missing
from distcheck.facts.engine import FixedPort
from distcheck.facts.network import PortOwner

OURS = ("engines.ports",)
OWNER = PortOwner(pid=77, command="python3 -m http.server 8000", user="ann", started="2026-01-01", own=True)
API = FixedPort(8000, "--port")
MEETS = FixedPort(29501, "--master-port", meets=True)


def test_ports_that_are_free_are_silent(in_front, silent):
    assert silent(in_front(engine(ports=(API, MEETS, FixedPort(29550, "--data-parallel-rpc-port")))))
    assert silent(in_front(engine(ports=(FixedPort(0, "--port"),), port_variable="9000")))


def test_a_port_in_use_names_the_process_on_its_node_only(in_front, only):
    taken = engine(ports=(FixedPort(8000, "--port", owner=OWNER, free=8001),))
    finding, code = only(in_front(engine(ports=(API,)), taken))
    assert (finding.rule, finding.ranks, finding.nodes, code) == ("engine-port-in-use", (2, 3), ("node2",), 30)
    assert "vLLM's port 8000 (--port) is taken by process 77 (python3 -m http.server 8000) of ann" in finding.message
    assert finding.fix.commands == ("ssh node2 kill 77", "# in COMMAND on node2: --port 8001")


@pytest.mark.parametrize(
    ("option", "distance", "number", "command"),
    [
        ("--dist-init-addr", 3, 20003, "# in COMMAND, on all nodes: --dist-init-addr node1:20020"),
        ("VLLM_NIXL_SIDE_CHANNEL_PORT", 2, 5602, "export VLLM_NIXL_SIDE_CHANNEL_PORT=5620"),
    ],
)
def test_a_port_beside_another_moves_the_whole_block(in_front, only, option, distance, number, command):
    hidden = Missing(reason="it is hidden")
    ports = (
        FixedPort(number, option, distance=distance, owner=hidden, free=number + 1),
        FixedPort(9, "--port", owner=OWNER),
    )
    finding, _ = only(in_front(engine(), engine(ports=ports)))
    assert finding.fix.commands[-1] == command
    assert finding.message.endswith("so are 1 more of its ports")


@pytest.mark.parametrize(
    ("name", "port", "words", "command"),
    [
        ("vLLM", FixedPort(70000, "--port"), "vLLM's --port is 70000", "# in COMMAND on node2: --port 8000"),
        (
            "SGLang",
            FixedPort(65543, "--dist-init-addr", distance=13),
            "SGLang's --dist-init-addr port 65530 needs port 65543 (--dist-init-addr +13)",
            "# in COMMAND, on all nodes: --dist-init-addr node1:20000",
        ),
    ],
)
def test_a_port_beyond_65535_is_named_by_its_option(in_front, only, name, port, words, command):
    finding, code = only(in_front(engine(name), engine(name, ports=(port,))))
    assert (finding.rule, finding.nodes, code) == ("engine-port-range", ("node2",), 30)
    assert f"{words}, expected at most 65535" in finding.message
    assert finding.fix.commands == (command,)


def test_one_engine_cannot_listen_twice_on_a_port(in_front, only):
    own = engine(ports=(FixedPort(29501, "--port"), MEETS))
    finding, code = only(in_front(own, engine()))
    assert (finding.rule, finding.nodes, code) == ("engine-ports-collide", ("node1",), 30)
    assert finding.message == "vLLM on node1 will listen twice on port 29501: --port and --master-port"
    assert finding.fix.commands == ("# in COMMAND on node1: --port 29521",)


def test_two_engines_of_one_node_share_no_port(on_one_node, only, silent):
    finding, _ = only(on_one_node(engine(ports=(API,)), engine(ports=(API,))))
    assert (finding.rule, finding.ranks) == ("engine-ports-collide", (0, 1, 2, 3))
    assert "two engines (processes 100 and 101) on node1 will listen twice on port 8000: --port" in finding.message
    assert silent(on_one_node(engine(ports=(API,)), engine(ports=(FixedPort(8001, "--port"),))))
    apart = [engine(ports=(FixedPort(8000, "--port", host=host),)) for host in ("10.0.0.1", "10.0.0.9")]
    assert silent(on_one_node(*apart))
    assert silent(on_one_node(engine(ports=(MEETS,)), engine(ports=(MEETS,))))


def test_ephemeral_ports_are_an_info_and_a_block_of_them_a_warning(in_front, only, silent, change):
    one = in_front(engine(ports=(FixedPort(40000, "--port"),)), engine())
    finding, code = only(one)
    assert (finding.rule, finding.severity, finding.nodes, code) == ("engine-port-ephemeral", "info", ("node1",), 0)
    assert finding.fix.commands == ("sudo sysctl -w net.ipv4.ip_local_reserved_ports=40000",)
    block = tuple(FixedPort(50000 + n, "--dist-init-addr", distance=n) for n in range(1, 7))
    assert only(in_front(engine("SGLang", ports=block)))[0].severity == "warning"
    assert silent(in_front(engine(ports=(FixedPort(50000, "--master-port", meets=True),))))
    assert silent(change.node(one, 0, reserved_ports=((39999, 40001),)))
    unknown = change.node(one, 0, ephemeral_ports=Missing(reason="not read"))
    assert not silent(unknown)


@pytest.mark.parametrize(
    ("name", "text", "severity"),
    [
        ("vLLM", "tcp://10.43.1.39:8000", "error"),
        ("vLLM", "", "error"),
        ("SGLang", "tcp://10.43.1.39:30000", "warning"),
    ],
)
def test_a_variable_that_is_no_number_is_named_on_its_node(in_front, only, name, text, severity):
    finding, code = only(in_front(engine(name), engine(name, port_variable=text)))
    assert (finding.rule, finding.severity, finding.nodes) == ("engine-port-variable", severity, ("node2",))
    assert code == (30 if severity == "error" else 0)
    assert finding.fix.commands == (f"unset {name.upper()}_PORT",)
    assert ("Kubernetes" in finding.message) == ("://" in text)
