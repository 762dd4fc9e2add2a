"""GIDs, subnets and partition keys, from made-up trees of /sys."""

from __future__ import annotations

import msgspec
import pytest
from made.hcas import V1, V2, infiniband, ipv4, roce

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Gid, HcaPort
from distcheck.facts.network import Interface, Link, NetworkFacts
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
