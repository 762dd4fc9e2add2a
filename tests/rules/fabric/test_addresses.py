"""GIDs, subnets and partition keys, from made-up trees of /sys."""

from __future__ import annotations

import msgspec
import pytest
from made.hcas import V1, V2, infiniband, ipv4, roce

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Gid, HcaPort
from distcheck.facts.network import Interface, Link, NetworkFacts
from distcheck.rules.fabric import gid_choices
from distcheck.selection import gids

NODE2 = ((2, 3), ("node2",))
ALL = ((0, 1, 2, 3), ("node1", "node2"))
LOCAL = "fe80:0000:0000:0000:a288:c2ff:fef0:0001"
UNKNOWN = Missing(reason="not asked")
GLOBAL6 = "2001:0db8:0000:0000:0000:0000:0000:0001"


def nodes(*more):
    return [[roce(address=f"10.1.0.{n + 1}", **fields)] for n, fields in enumerate(more)]


@pytest.mark.parametrize(
    ("table", "settings", "index"),
    [
        ([(LOCAL, V1), (LOCAL, V2), (ipv4("10.1.0.1"), V1), (ipv4("10.1.0.1"), V2)], {}, 3),
        ([(LOCAL, V1), (LOCAL, V2), (ipv4("10.1.0.1"), V1), (ipv4("10.1.0.1"), V2)], {"NCCL_IB_GID_INDEX": "1"}, 1),
        ([(LOCAL, V1), (ipv4("10.1.0.1"), V2), (ipv4("10.2.0.1"), V2)], {"NCCL_IB_ADDR_RANGE": "10.2.0.0/16"}, 2),
        ([(LOCAL, V1), (LOCAL, V2)], {}, 0),
        ([(LOCAL, V1), (GLOBAL6, V1), (GLOBAL6, V2)], {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 2),
        ([(LOCAL, V1), (ipv4("10.1.0.1"), V2), (ipv4("10.1.0.1"), V1)], {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2),
    ],
)
def test_the_gid_is_chosen_as_nccl_does(table, settings, index):
    port = HcaPort(number=1, gids={n: Gid(*entry) for n, entry in enumerate(table)}, gid_slots=8)
    assert gids.chosen(port, settings) == index


@pytest.mark.parametrize("index", [None, "3", "-1"])
def test_a_valid_index_on_all_nodes_is_silent(fabric, told, index):
    variables = {"NCCL_IB_GID_INDEX": index} if index else {}
    assert told(fabric(*nodes({}, {}), **variables)) == []


def test_roce_gid_index_wrong_when_the_entry_is_empty(fabric, told, message):
    job = fabric(*nodes({}, {}), NCCL_IB_GID_INDEX="5")
    assert told(job) == [("roce-gid-index-wrong", "error", *ALL)]
    assert "NCCL_IB_GID_INDEX=5 has no GID on mlx5_0:1 of node1" in message(job)
    assert told(fabric([infiniband()], [infiniband()], NCCL_IB_GID_INDEX="5")) == [], "InfiniBand ignores it"


def test_an_index_of_another_kind_on_one_node_names_that_node(fabric, told, message):
    own = ipv4("10.1.0.3")
    moved = {"gids": ((LOCAL, V1), (LOCAL, V2), (GLOBAL6, V1), (GLOBAL6, V2), (own, V1), (own, V2))}
    job = fabric(*nodes({}, {}, moved), NCCL_IB_GID_INDEX="3")
    assert told(job) == [("roce-gid-index-wrong", "error", (4, 5), ("node3",))]
    assert message(job).endswith("is RoCE v2 IPv6 on mlx5_0:1 of node3, and RoCE v2 IPv4 elsewhere")


@pytest.mark.parametrize("rail", [roce("mlx5_1", "10.2.0.1"), infiniband("mlx5_1")])
def test_an_empty_entry_beside_a_port_that_works_is_at_most_a_warning(fabric, told, rail):
    one = fabric([roce(), rail], [roce(address=""), rail], NCCL_IB_GID_INDEX="3")
    kinds = [f for f in told(one) if f[0] == "roce-gid-index-wrong"]
    assert kinds == [("roce-gid-index-wrong", "warning", *NODE2)]
    unused = [roce("mlx5_storage", ""), rail]
    kinds = [f for f in told(fabric(unused, unused, NCCL_IB_GID_INDEX="3")) if f[0] == "roce-gid-index-wrong"]
    assert kinds == [("roce-gid-index-wrong", "info", *ALL)]


def test_a_rank_whose_own_entries_are_empty_is_an_error_beside_ranks_that_work(fabric, told, change):
    job = fabric(*nodes({}, {}), NCCL_IB_GID_INDEX="3")
    assert told(change.environment(job, 3, NCCL_IB_GID_INDEX="5")) == [
        ("roce-gid-index-wrong", "error", (3,), ("node2",))
    ]


def test_the_kinds_of_ports_with_different_names_are_not_compared(fabric, told):
    six = roce("mlx5_1", gids=((LOCAL, V1), (LOCAL, V2), (GLOBAL6, V1), (GLOBAL6, V2)))
    local = roce("mlx5_1", gids=((LOCAL, V1), (LOCAL, V2), (LOCAL, V1), (LOCAL, V2)))
    assert told(fabric([roce(), six], [roce(), six], NCCL_IB_GID_INDEX="3")) == []
    assert told(fabric([roce(), local], [roce(), local], NCCL_IB_GID_INDEX="3")) == [
        ("roce-gid-index-wrong", "info", *ALL)
    ]
    mixed = fabric([roce(), six], [roce(), six], [six._replace(name="mlx5_0"), six], NCCL_IB_GID_INDEX="3")
    assert told(mixed) == [("roce-gid-index-wrong", "error", (4, 5), ("node3",))]


@pytest.mark.parametrize("variables", [{}, {"NCCL_IB_GID_INDEX": "3"}])
def test_the_entry_of_a_port_is_looked_up_once_for_all_ranks_of_a_node(fabric, told, monkeypatch, variables):
    looked = []
    monkeypatch.setattr(gid_choices, "chosen", lambda port, values: looked.append(port) or gids.chosen(port, values))
    assert told(fabric(*nodes({}, {}, {}), **variables)) == []
    assert len(looked) == 3


@pytest.mark.parametrize("index", ["0", "1", "2"])
def test_a_link_local_or_v1_entry_on_all_nodes_is_a_warning(fabric, told, index):
    assert told(fabric(*nodes({}, {}), NCCL_IB_GID_INDEX=index)) == [("roce-gid-index-wrong", "warning", *ALL)]


def test_roce_no_ipv4_gid_on_one_node(fabric, told, message):
    job = fabric([roce()], [roce(address="")], [roce(address="10.1.0.3")])
    assert told(job) == [("roce-no-ipv4-gid", "error", *NODE2)]
    assert message(job).startswith("mlx5_0:1 of node2 has no IPv4 GID of type RoCE v2")
    two = [[roce(address="10.1.0.1"), roce("mlx5_1", f"10.2.0.{n}" if n else "")] for n in (1, 0, 2)]
    assert told(fabric(*two)) == [("roce-no-ipv4-gid", "warning", *NODE2)]


def test_ports_without_addresses_on_all_nodes_are_silent(fabric, told):
    bare = [roce(), roce("mlx5_1", "")]
    assert told(fabric(bare, bare)) == []


UNSEEN = ((LOCAL, ""), (LOCAL, ""), (ipv4("10.1.0.2"), ""), (ipv4("10.1.0.2"), ""))
"""GIDs whose types and interfaces sysfs does not show."""


def test_roce_port_in_other_namespace_when_no_gid_shows_its_interface(fabric, told, message):
    job = fabric([roce()], [roce(gids=UNSEEN)])
    assert told(job) == [("roce-port-in-other-namespace", "error", *NODE2)]
    assert message(job).startswith("mlx5_0:1 of node2: the network interface is in another network namespace")
    set_by_hand = fabric([roce()], [roce(gids=UNSEEN)], NCCL_IB_GID_INDEX="3")
    assert told(set_by_hand) == [("roce-port-in-other-namespace", "error", *NODE2)]
    beside = fabric([roce(), roce("mlx5_1")], [roce(gids=UNSEEN), roce("mlx5_1", "10.2.0.2")])
    assert told(beside) == [("roce-port-in-other-namespace", "warning", *NODE2)]


def test_roce_port_in_other_namespace_when_the_interface_of_the_gid_is_not_here(fabric, told, change):
    here = Link(
        "ens0np0",
        "",
        "physical",
    )
    job = fabric([roce()], [roce(address="10.1.0.2")])
    for place, name in enumerate(("ens0np0", "eth0")):
        links = (msgspec.structs.replace(here, name=name),)
        network = NetworkFacts(links=links, own_name=UNKNOWN, own_name_binds=UNKNOWN)
        job = change.node(job, place, network=network)
    assert told(job) == [("roce-port-in-other-namespace", "error", *NODE2)]


def test_a_port_with_one_gid_in_this_namespace_is_silent(fabric, told):
    own = ((LOCAL, ""), (ipv4("10.1.0.9"), ""), (LOCAL, V2), (ipv4("10.1.0.2"), V2))
    assert told(fabric([roce()], [roce(gids=own)])) == [], "NCCL uses the entry of the pod's macvlan interface"


def test_ipv6_only_is_told_once_for_all(fabric, told):
    six = [roce(gids=((LOCAL, V1), (LOCAL, V2), (GLOBAL6, V1), (GLOBAL6, V2)))]
    assert told(fabric(six, six)) == [("roce-no-ipv4-gid", "warning", *ALL)]
    assert told(fabric(six, six, NCCL_IB_ADDR_FAMILY="AF_INET6")) == []


def test_roce_gid_subnet_needs_an_address_in_the_others_subnet(fabric, told, message, change):
    def job(*first):
        """Return three nodes; NCCL takes the first address of type RoCE v2."""
        made = fabric(*[[roce(gids=((LOCAL, V1), *((ipv4(a), V2) for a in own)))] for own in first])
        for n, own in enumerate(first):
            faces = tuple(Interface("ens0", a, up=True, mtu_bytes=9000, prefix_bits=24) for a in own)
            made = change.node(made, n, interfaces=faces)
        return made

    odd = job(("10.1.0.1",), ("10.9.0.2", "10.1.0.2"), ("10.1.0.3",))
    assert told(odd) == [("roce-gid-subnet", "warning", *NODE2)]
    assert (
        "takes the address in 10.9.0.0/24 on mlx5_0:1 of node2; on the other nodes it takes one in 10.1.0"
        in message(odd)
    )
    assert told(job(("10.1.0.1",), ("10.2.0.1",), ("10.3.0.1",))) == [], "a routed network"


def test_ib_subnet_differs_when_no_prefix_is_common(fabric, told):
    other = (("fe80:0000:0000:0001:a088:c203:00f0:0001", V1),)
    job = fabric([infiniband()], [infiniband(gids=other)], [infiniband()])
    assert told(job) == [("ib-subnet-differs", "warning", *NODE2)]
    both = [infiniband(), infiniband("mlx5_1", gids=other)]
    assert told(fabric(both, both)) == []


def test_ib_pkey_compares_the_key_at_the_index(fabric, told, message):
    def keys(*values):
        return [infiniband(keys=values)]

    full = keys(0xFFFF, 0x8001)
    assert told(fabric(full, full)) == []
    assert told(fabric(full, keys(0x7FFF, 0x0001))) == [], "one full member suffices"
    assert told(fabric(full, full, NCCL_IB_PKEY="1")) == []
    job = fabric(full, keys(0xFFFF, 0x8002), full, NCCL_IB_PKEY="1")
    assert told(job) == [("ib-pkey", "error", *NODE2)]
    assert "mlx5_0:1 of node2: not in the partition of the other ports (key 0x0001)" in message(job)
    assert told(fabric(full, full, NCCL_IB_PKEY="5")) == [("ib-pkey", "error", *ALL)]
    limited = keys(0x7FFF)
    assert told(fabric(limited, limited)) == [("ib-pkey", "error", *ALL)]
