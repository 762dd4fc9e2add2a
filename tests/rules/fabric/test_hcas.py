"""NCCL_IB_HCA, link layers and the number of adapters, from made-up trees of /sys."""

from __future__ import annotations

import pytest
from made.hcas import infiniband, roce

RAILS = [infiniband(f"mlx5_{n}") for n in (0, 1, 10, 11)]
NODE2 = ((2, 3), ("node2",))
ALL = ((0, 1, 2, 3), ("node1", "node2"))


@pytest.mark.parametrize(
    "value", ["mlx5", "=mlx5_0,mlx5_1", "^mlx5_10", "mlx5_0:1", "mlx5_1,mlx5_10,mlx5_11", "^=mlx5_0"]
)
def test_lists_that_select_adapters_are_silent(fabric, told, value):
    assert told(fabric(RAILS, RAILS, NCCL_IB_HCA=value)) == []


@pytest.mark.parametrize(
    ("value", "severity"),
    [*((value, "error") for value in ("mlx4", " mlx5_0", "=mlx5", "mlx5:2")), ("^", "warning"), ("^mlx5", "warning")],
)
def test_ib_hca_no_match_when_no_active_port_is_left(fabric, told, value, severity):
    assert told(fabric(RAILS, RAILS, NCCL_IB_HCA=value)) == [("ib-hca-no-match", severity, *ALL)]


def test_an_item_that_matches_nowhere_is_named_with_its_blank(fabric, told, message):
    job = fabric(RAILS, RAILS, NCCL_IB_HCA="=mlx5_0, mlx5_1")
    assert told(job) == [("ib-hca-no-match", "warning", *ALL)]
    assert "' mlx5_1' in NCCL_IB_HCA==mlx5_0, mlx5_1: the blank belongs to the name" in message(job)
    assert "'=mlx5_1'" in message(fabric(RAILS, RAILS, NCCL_IB_HCA="=mlx5_0,=mlx5_1"))


def test_a_list_for_several_kinds_of_nodes_is_silent(fabric, told):
    other = [infiniband(f"ibp{n}s0") for n in range(4)]
    assert told(fabric(RAILS, other, NCCL_IB_HCA="mlx5_,ibp")) == []


def test_a_node_whose_adapters_have_other_names_is_the_only_one_reported(fabric, told):
    other = [infiniband(f"ibp{n}s0") for n in range(4)]
    assert told(fabric(RAILS, other, NCCL_IB_HCA="mlx5_0,mlx5_10,mlx5_11")) == [("ib-hca-no-match", "error", *NODE2)]


def test_ib_hca_prefix_trap_names_the_surplus_adapters(fabric, told, message):
    job = fabric(RAILS, RAILS, NCCL_IB_HCA="mlx5_1")
    assert told(job) == [("ib-hca-prefix-trap", "warning", *ALL)]
    assert message(job).endswith("mlx5_1 in NCCL_IB_HCA=mlx5_1 also selects mlx5_10 and mlx5_11")
    assert message(fabric(RAILS, RAILS, NCCL_IB_HCA="^mlx5_1")).endswith("also excludes mlx5_10 and mlx5_11")


@pytest.mark.parametrize(
    ("value", "exact"),
    [("mlx5_1:1", "=mlx5_1:1"), ("^mlx5_1:1", "'^=mlx5_1:1'"), ("mlx5_1:1,mlx5_0:1", "=mlx5_1:1,mlx5_0:1")],
)
def test_whole_names_keep_their_ports(fabric, judge, value, exact):
    (finding,) = judge(fabric(RAILS, RAILS, NCCL_IB_HCA=value), "ib_hcas").findings
    assert finding.fix.commands == (f"export NCCL_IB_HCA={exact}",)


def test_ib_mixed_link_layer_by_consequence(fabric, told):
    both = [*RAILS, roce("mlx5_bond_0")]
    ethernet = [roce(f"rocep{n}s0", f"10.{n}.0.1") for n in range(4)]
    assert told(fabric(both, both)) == [("ib-mixed-link-layer", "info", *ALL)]
    assert told(fabric(both, both, NCCL_IB_HCA="^mlx5_bond_0")) == []
    assert told(fabric(RAILS, ethernet)) == [("ib-mixed-link-layer", "error", *ALL)]
    swapped = [roce("mlx5_0"), *RAILS[1:]]
    assert ("ib-mixed-link-layer", "error", *ALL) in told(fabric(RAILS, swapped))


def test_ib_hcas_differ_names_the_node_with_fewer(fabric, told, message):
    job = fabric(RAILS, RAILS[:3], RAILS)
    assert told(job) == [("ib-hcas-differ", "warning", *NODE2)]
    assert message(job) == "node2: 3 InfiniBand or RoCE ports; other nodes have 4"
    assert told(fabric(RAILS, [], RAILS)) == [("ib-hcas-differ", "error", *NODE2)]
    assert told(fabric(RAILS, RAILS[:2], RAILS[:2])) == [], "nodes of several kinds"
    strict = fabric(RAILS, RAILS[:3], RAILS, NCCL_IGNORE_NET_MISMATCH="0")
    assert told(strict) == [("ib-hcas-differ", "error", *NODE2)], "NCCL 2.30 fails then"


@pytest.mark.parametrize("value", ["=mlx5_0,mlx5_1,mlx5_10,mlx5_11", "^mlx5_storage"])
def test_an_adapter_that_nccl_ib_hca_excludes_is_not_counted(fabric, told, judge, value):
    storage = [*RAILS, infiniband("mlx5_storage")]
    variables = {"NCCL_IB_HCA": value, "NCCL_IGNORE_NET_MISMATCH": "0"}
    assert told(fabric(storage, RAILS, storage, **variables)) == []
    (fewer,) = judge(fabric(storage, storage[1:], RAILS, **variables), "ib_hcas").findings
    assert (fewer.rule, fewer.severity, fewer.nodes) == ("ib-hcas-differ", "error", ("node2",))
    assert fewer.message == "node2: 3 InfiniBand or RoCE ports; other nodes have 4"
    assert fewer.evidence["node2"] == ["mlx5_1:1", "mlx5_10:1", "mlx5_11:1"]
    assert fewer.evidence["node1 and node3"] == ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1", "mlx5_11:1"]


@pytest.mark.parametrize("value", ["^mlx5_0", "=mlx5_1,mlx5_10"])
def test_a_node_that_lost_the_adapters_that_the_list_allows_is_reported_and_not_the_list(fabric, told, message, value):
    job = fabric(RAILS[:3], RAILS[:1], RAILS[:3], NCCL_IB_HCA=value)
    assert told(job) == [("ib-hcas-differ", "error", *NODE2)]
    assert message(job) == "node2: no InfiniBand or RoCE ports that NCCL_IB_HCA allows; other nodes have 2"
    other = [infiniband("ibp0s0")]
    assert told(fabric(RAILS, other, RAILS, NCCL_IB_HCA="mlx5")) == [("ib-hca-no-match", "error", *NODE2)]


def test_ranks_with_one_adapter_each_are_compared_by_rank(fabric, told, change):
    job = fabric(RAILS, RAILS)
    for place, rail in ((0, "=mlx5_0"), (1, "=mlx5_1"), (2, "=mlx5_0"), (3, "=mlx5_0")):
        job = change.environment(job, place, NCCL_IB_HCA=rail)
    assert told(job) == []


def test_a_list_in_a_configuration_file_is_read_below_the_variable(fabric, told, change, judge):
    job = change.nccl_file(fabric(RAILS, RAILS), None, "NCCL_IB_HCA=mlx4")
    assert told(job) == [("ib-hca-no-match", "error", *ALL)]
    assert judge(job, "ib_hcas").findings[0].fix.commands[0] == "sudo sed -i '/^NCCL_IB_HCA=/d' /etc/nccl.conf"
    assert told(change.environment(job, None, NCCL_IB_HCA="mlx5")) == []
