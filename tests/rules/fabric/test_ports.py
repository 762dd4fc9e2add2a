"""Ports that are down, without a subnet manager, slow or without a GUID, from made-up trees of /sys."""

from __future__ import annotations

import msgspec
import pytest
from made import hcas
from made.hcas import efa, hfi1, infiniband, roce, rxe

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Infiniband

RAILS = [infiniband(f"mlx5_{n}") for n in range(4)]
DOWN = {"state": "DOWN", "physical": "Polling"}
NODE3 = ((4, 5), ("node3",))


def but(name, **fields):
    """Return the four rails with one changed."""
    return [rail._replace(**fields) if rail.name == name else rail for rail in RAILS]


@pytest.mark.parametrize(
    "adapters",
    [
        RAILS,
        [roce(f"mlx5_{n}", f"10.{n}.0.1") for n in range(4)],
        [],
        [*RAILS, infiniband("mlx5_9", **DOWN)],
        [*RAILS, infiniband("mlx5_9", rate="100 Gb/sec (4X EDR)", board="MT_storage")],
        [*RAILS, roce("mlx5_bond_0", rate="25 Gb/sec (1X EDR)")],
        [hfi1()],
        [rxe()],
    ],
    ids=["infiniband", "roce", "no adapters", "unused port", "slow storage", "management", "omni-path", "soft-roce"],
)
def test_healthy_nodes_have_no_finding_above_info(fabric, judge, adapters):
    job = fabric(*[adapters] * 4)
    assert [f for f in judge(job).findings if f.severity != "info"] == []


def test_a_node_with_gloo_or_alone_is_not_judged(fabric, told, change):
    bad = but("mlx5_2", **DOWN)
    assert told(fabric(bad)) == []
    assert told(change.asked(fabric(RAILS, bad), backend="gloo")) == []
    assert told(fabric(RAILS, bad, NCCL_IB_DISABLE="1")) == []


def test_ib_port_down_names_the_node_and_the_port(fabric, told, message):
    job = fabric(RAILS, RAILS, but("mlx5_2", **DOWN), RAILS)
    assert told(job) == [("ib-port-down", "warning", *NODE3)]
    assert message(job) == "mlx5_2:1 of node3: down (Polling); up on the other nodes"


def test_a_node_without_an_active_port_left_is_an_error(fabric, told, message):
    job = fabric(RAILS, RAILS, [rail._replace(**DOWN) for rail in RAILS], RAILS)
    assert told(job) == [("ib-port-down", "error", *NODE3)]
    assert message(job).endswith("; the node has no active port left")


def test_of_two_nodes_the_one_with_the_port_down_is_named(fabric, told):
    assert told(fabric(but("mlx5_0", **DOWN), RAILS)) == [("ib-port-down", "warning", (0, 1), ("node1",))]


def test_a_port_that_nccl_ib_hca_excludes_may_be_down(fabric, told):
    assert told(fabric(RAILS, but("mlx5_2", **DOWN), NCCL_IB_HCA="=mlx5_0,mlx5_1")) == []


def test_distcheck_node_compares_the_ports_of_one_board(fabric, told, change):
    rails = [*RAILS, infiniband("mlx5_4")]
    one = [*rails[:4], rails[4]._replace(**DOWN)]
    for adapters, expected in ((rails, []), (one, ["ib-port-down"]), ([*RAILS[:3], infiniband("x", **DOWN)], [])):
        job = change.rank(fabric(adapters, looks=("node",)), None, environment={})
        assert [rule for rule, *_ in told(job)] == expected


def test_ib_no_subnet_manager_is_told_from_a_cable(fabric, told, message):
    initial = [rail._replace(state="INIT") for rail in RAILS]
    job = fabric(RAILS, RAILS, initial, RAILS)
    assert told(job) == [("ib-no-subnet-manager", "error", *NODE3)]
    assert "mlx5_0:1, mlx5_1:1, mlx5_2:1 and mlx5_3:1 of node3: in state INIT" in message(job)
    assert told(fabric(RAILS, but("mlx5_0", state="INIT"))) == [("ib-no-subnet-manager", "warning", (2, 3), ("node2",))]


@pytest.mark.parametrize("rate", ["200 Gb/sec (2X NDR)", "200 Gb/sec (4X HDR)", "100 Gb/sec (1X NDR)"])
def test_ib_rate_degraded_compares_the_port_of_the_same_name(fabric, told, message, rate):
    job = fabric(RAILS, RAILS, but("mlx5_2", rate=rate), RAILS)
    assert told(job) == [("ib-rate-degraded", "warning", *NODE3)]
    assert message(job).startswith(
        f"mlx5_2:1 of node3: {rate.split()[0]} Gb/s ({rate[-7:-1]}); ports of that name on other nodes have 4"
    )


def test_a_slow_port_is_found_among_its_siblings_and_other_boards_are_not_compared(fabric, told):
    slow = [*RAILS, infiniband("mlx5_4", rate="200 Gb/sec (4X HDR)")]
    assert told(fabric(slow, slow)) == [("ib-rate-degraded", "warning", (0, 1, 2, 3), ("node1", "node2"))]
    other = [rail._replace(rate="200 Gb/sec (4X HDR)", board="MT_0000000223") for rail in RAILS]
    assert told(fabric(RAILS, other)) == []
    one_lane = [infiniband(rate="50 Gb/sec (1X HDR)")]
    assert told(fabric(one_lane, one_lane)) == [("ib-rate-degraded", "warning", (0, 1, 2, 3), ("node1", "node2"))]


def test_ib_sriov_vf_guid_is_one_finding_and_not_for_efa(fabric, told):
    zero = "0000:0000:0000:0000"
    job = fabric(RAILS, but("mlx5_2", guid=zero, **DOWN))
    assert told(job) == [("ib-sriov-vf-guid", "warning", (2, 3), ("node2",))]
    assert efa().guid == zero


def test_adapters_that_could_not_be_read_are_not_checked(fabric, judge, change):
    hanging = Missing(reason="the RDMA adapters did not answer within 5 s: an adapter or its driver hangs")
    job = change.node(fabric(RAILS, RAILS), 1, infiniband=hanging)
    said = judge(job, "ib_ports")
    assert {(n.nodes, n.reason, n.required) for n in said.not_checked} == {(("node2",), hanging.reason, False)}
    assert said.findings == ()


def test_partly_read_adapters_count_and_the_gap_is_listed(fabric, read, judge):
    partly = msgspec.structs.replace(read(but("mlx5_0", **DOWN)), unread="hangs")
    said = judge(fabric(RAILS, partly), "ib_ports", "ib_hcas")
    assert [f.rule for f in said.findings] == ["ib-port-down"]
    assert {n.reason for n in said.not_checked} == {"hangs"}


def test_jobs_without_the_facts_are_silent(fabric, told, change):
    assert told(change.node(fabric(RAILS, RAILS), None, infiniband=None)) == []
    assert told(fabric(Infiniband(), Infiniband())) == []
    assert hcas.ipv4("10.1.0.7").endswith(":0a01:0007")
