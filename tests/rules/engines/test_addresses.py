"""The address that an engine gives to its processes on other nodes."""

from __future__ import annotations

import pytest
from rules.engines.conftest import engine

from distcheck.facts.base import Missing
from distcheck.facts.engine import FixedPort
from distcheck.facts.network import Interface

OURS = ("engines.addresses",)


def at(address, by="VLLM_HOST_IP", name="vLLM"):
    return engine(name, announces=True, address=address, address_by=by)


def test_own_addresses_are_silent(in_front, silent):
    assert silent(in_front(at("10.0.0.1"), at("10.0.0.2", "the route to 8.8.8.8")))
    assert silent(in_front(engine(address="10.9.9.9", address_by="VLLM_HOST_IP")))
    assert silent(in_front(at("127.0.0.1"), nodes=1))
    assert silent(in_front(at("", ""), nodes=1))


@pytest.mark.parametrize(
    ("second", "words", "variable"),
    [
        (at("10.0.0.1"), "listens for the other nodes at 10.0.0.1 (VLLM_HOST_IP), which is no address of this node",
         "VLLM_HOST_IP"),
        (at("127.0.0.1", "HOST_IP", "SGLang"), "at 127.0.0.1 (HOST_IP), which on every node is the node itself",
         "SGLANG_HOST_IP"),
        (at("node2"), "at node2 (VLLM_HOST_IP), which is no IP address", "VLLM_HOST_IP"),
        (at("172.17.0.5", "the route to 8.8.8.8"), "which is no address of this node", "VLLM_HOST_IP"),
    ],
)  # fmt: skip
def test_an_address_that_leads_elsewhere_is_named_on_its_node(in_front, only, second, words, variable):
    finding, code = only(in_front(at("10.0.0.1", name=second.name), second))
    assert (finding.rule, finding.ranks, finding.nodes, code) == ("engine-address-unusable", (2, 3), ("node2",), 30)
    assert words in finding.message
    assert finding.fix.commands == (f"export {variable}=10.0.0.2  # on node2",)


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        (at("", "the route to 8.8.8.8"), "VLLM_HOST_IP"),
        (at("0.0.0.0", "SGLANG_LOCAL_IP_NIC=eth7", "SGLang"), "SGLANG_HOST_IP"),
    ],
)
def test_nodes_without_an_address_have_one_finding_and_one_fix(in_front, only, given, variable):
    finding, code = only(in_front(given))
    assert (finding.rule, finding.nodes, code) == ("engine-address-unusable", ("node1", "node2"), 30)
    assert f"finds no address of its own by {given.address_by}, and gives 0.0.0.0 to the other" in finding.message
    address = "$(ip -o -4 address show eth0 | awk '{print $4}' | cut -d/ -f1)"
    assert finding.fix.commands == (f"export {variable}={address}  # on every node",)


def test_a_node_whose_addresses_are_unknown_is_not_judged(in_front, change, judge):
    job = change.node(in_front(at("10.0.0.1"), at("10.9.9.9")), 1, interfaces=Missing(reason="not read"))
    said = judge(job, *OURS)
    assert said.findings == ()
    assert [gap.nodes for gap in said.not_checked] == [("node2",)]


def test_one_address_on_two_nodes_is_named_by_both(in_front, change, only):
    job = in_front(at("172.17.0.1", "the route to 8.8.8.8"))
    for node in range(2):
        known = (Interface("docker0", "172.17.0.1", up=True, mtu_bytes=1500), *job.nodes[node].interfaces)
        job = change.node(job, node, interfaces=known)
    finding, code = only(job)
    assert (finding.rule, finding.nodes, code) == ("engine-address-duplicate", ("node1", "node2"), 30)
    assert finding.message.startswith("node1 and node2 give the other nodes of vLLM the same address, 172.17.0.1")
    assert finding.fix.commands == ("export VLLM_HOST_IP=10.0.0.2  # on node2",)


@pytest.mark.parametrize(
    ("host", "nodes", "severity"),
    [("localhost", 2, "warning"), ("127.0.0.1", 1, "info"), ("10.0.0.9", 1, "error"), ("10.0.0.9", 2, "error")],
)
def test_the_side_channel_must_be_reached_from_other_nodes(in_front, only, host, nodes, severity):
    port = FixedPort(5600, "VLLM_NIXL_SIDE_CHANNEL_PORT", host)
    finding, _ = only(in_front(engine(side_channel=host, ports=(port,)), engine(), nodes=nodes))
    assert (finding.rule, finding.severity, finding.nodes) == ("engine-side-channel", severity, ("node1",))
    assert finding.fix.commands == ("export VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1  # on node1",)


def test_a_side_channel_at_the_nodes_own_address_or_of_a_node_without_one_is_silent(in_front, silent):
    port = FixedPort(5600, "VLLM_NIXL_SIDE_CHANNEL_PORT", "10.0.0.1")
    assert silent(in_front(engine(side_channel="10.0.0.1", ports=(port,)), engine(side_channel="localhost")))
    assert silent(in_front(engine(side_channel="node1.cluster", ports=(port,)), engine()))
