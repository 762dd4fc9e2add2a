"""What is known of each node, by names that other nodes have too."""

import msgspec
import pytest
from made import reported

from distcheck.facts.network import Interface
from distcheck.report.attributes import of_node


def networks(*links):
    node = msgspec.structs.replace(reported.build(1, 1).nodes[0], interfaces=links)
    return {name: value for name, value in of_node(node).items() if name.startswith("network: ")}


def link(name, *, up=True, mtu_bytes=1500):
    return Interface(name, "fe80::1", up=up, mtu_bytes=mtu_bytes)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("veth1a2b3c4", "veth*"),
        ("vethWQ3XYZ", "veth*"),
        ("br-5f1c2d7e8a90", "br-*"),
        ("cali0123456789a", "cali*"),
        ("lxc12ab34cd56ef", "lxc*"),
        ("enx00e04c680001", "enx*"),
        ("tap3f2504e0-4f", "tap*"),
        ("a1b2c3d4e5f6a7b", "*"),
    ],
)
def test_a_name_that_a_node_makes_up_is_shown_by_its_beginning(name, shown):
    assert networks(link(name)) == {f"network: {shown}": "up, MTU 1500"}


@pytest.mark.parametrize(
    "name", ["eth0", "eno3", "enp1s0f0np0", "ibp24s0", "bond0", "docker0", "br-ex", "br-int", "lxcbr0", "veth0", "tap0"]
)
def test_any_other_name_is_shown_whole(name):
    assert networks(link(name)) == {f"network: {name}": "up, MTU 1500"}


def test_interfaces_that_share_a_beginning_are_one_attribute_with_each_state_once():
    links = (link("veth1a2b3c4"), link("veth5d6e7f8"), link("veth9a9a9a9", up=False, mtu_bytes=1450), link("lo"))
    assert networks(*links) == {"network: veth*": "down, MTU 1450; up, MTU 1500"}
