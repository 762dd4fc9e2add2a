"""The settings with which a failed case is repeated."""

from __future__ import annotations

import pytest
from made.jobs import change_node, healthy_job

from distcheck.facts.base import Missing
from distcheck.facts.network import Interface
from distcheck.selection.alternatives import alternatives


def interface(name, address, *, up=True):
    return Interface(name, address, up, 1500, 24)


@pytest.fixture
def nodes():
    """Return nodes with these interfaces: an address for each node, by name."""

    def nodes(number, **addresses):
        job = healthy_job(number)
        for n in range(number):
            here = tuple(interface(name, of_nodes[n]) for name, of_nodes in addresses.items() if of_nodes[n])
            job = change_node(job, n, interfaces=here, network=None)
        return job.nodes

    return nodes


TWO = {"eth0": ("10.0.0.1", "10.0.0.2"), "eth1": ("10.1.0.1", "10.1.0.2")}


def names(found):
    return [name for setting in found for name in setting]


def test_gloo_is_tried_over_each_interface_that_connects_the_nodes(nodes):
    found = alternatives("gloo", nodes(2, **TWO), [{}] * 4)
    assert found == ({"GLOO_SOCKET_IFNAME": "eth0"}, {"GLOO_SOCKET_IFNAME": "eth1"})


def test_the_interface_that_gloo_uses_already_is_not_tried(nodes):
    found = alternatives("gloo", nodes(2, **TWO), [{"GLOO_SOCKET_IFNAME": "eth0"}] * 4)
    assert found == ({"GLOO_SOCKET_IFNAME": "eth1"},)


@pytest.mark.parametrize(
    "addresses",
    [("172.17.0.1", "172.17.0.1"), ("10.1.0.1", "10.2.0.1"), ("10.1.0.1", ""), ("fd00::1", "fd00::2")],
    ids=["the same bridge on both", "other subnets", "on one node only", "no IPv4"],
)
def test_an_interface_that_does_not_connect_the_nodes_is_not_tried(nodes, addresses):
    assert alternatives("gloo", nodes(2, eth1=addresses), [{}] * 4) == ()


def test_on_one_node_gloo_has_no_other_way(nodes):
    assert alternatives("gloo", nodes(1, lo=("127.0.0.1",), eth0=("10.0.0.1",)), [{}] * 2) == ()


def test_unknown_interfaces_are_not_tried():
    job = change_node(healthy_job(2), None, interfaces=Missing(reason="not read"), network=None)
    assert alternatives("gloo", job.nodes, [{}] * 4) == ()


def test_on_one_node_nccl_is_tried_without_each_way_between_its_gpus(nodes):
    found = alternatives("nccl", nodes(1, **TWO), [{}] * 2)
    assert names(found) == [
        "NCCL_CUMEM_ENABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_SHM_DISABLE",
        "NCCL_ALGO",
    ]


def test_with_one_rank_on_each_node_nccl_is_tried_without_each_way_between_nodes(nodes):
    assert names(alternatives("nccl", nodes(2, **TWO), [{}] * 2)) == ["NCCL_ALGO", "NCCL_IB_DISABLE", "NCCL_NET"]


def test_a_setting_that_all_ranks_have_is_not_tried_and_one_of_some_ranks_is(nodes):
    here = nodes(2, **TWO)
    assert "NCCL_ALGO" not in names(alternatives("nccl", here, [{"NCCL_ALGO": "Ring"}] * 2))
    assert "NCCL_ALGO" in names(alternatives("nccl", here, [{"NCCL_ALGO": "Ring"}, {}]))


def test_mpi_has_none(nodes):
    assert alternatives("mpi", nodes(2, **TWO), [{}] * 4) == ()
