"""The groups of a mesh between real nodes: a slow node is found through its groups."""

from __future__ import annotations

import pytest
from cluster.inside import finding, findings, judged, limit
from real.spoiling import SITE, WRONG, site

pytestmark = pytest.mark.without_slurm


def gate(cluster, nproc, mesh, *words):
    look = ("gate", "--hosts", "node[1-4]", "--nproc", nproc, "--mesh", mesh, "--op", "all_reduce")
    return judged(cluster, *look, "--sizes", "256K:256K", "--timeout", "120", *words, timeout=200)


@pytest.mark.slow
def test_a_slow_node_is_found_through_its_groups(cluster):
    limit(cluster, "node3", 100)
    # Only the groups lead to the search: the slow transfers between nodes are not judged.
    ended, report = gate(cluster, "2", "pp=2,dp=2,tp=2", "--ignore", "net-nic-down-or-slow")
    slow = finding(report, "perf-group-slow")
    assert slow["nodes"] == ["node3"], slow
    assert "each of them has ranks on node3" in slow["message"]
    assert {row["dimension"] for row in report["groups"] if {4, 5} & set(row["slowest"])} >= {"pp", "dp"}
    # The search that it starts tells the node from the paths to it.
    assert finding(report, "isolation-slow-node")["nodes"] == ["node3"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node3"])


@pytest.mark.slow
def test_sixteen_ranks_on_healthy_nodes_are_measured_in_time(cluster):
    ended, report = gate(cluster, "4", "pp=2,dp=2,tp=4")
    assert (ended.code, findings(report)) == (0, []), report["findings"]
    assert [(row["dimension"], row["op"], row["groups"], row["ranks"], row["wrong"]) for row in report["groups"]] == [
        ("pp", "send_recv", 8, 2, 0),
        ("dp", "all_reduce", 8, 2, 0),
        ("tp", "reduce_scatter", 4, 4, 0),
        ("tp", "all_gather", 4, 4, 0),
    ]
    assert ended.seconds < 40


@pytest.mark.slow
def test_a_fault_in_one_operation_of_the_groups_is_searched_with_that_operation(cluster):
    cluster.write("node3", SITE, site(None, WRONG, call="all_to_all_single"))
    ended, report = gate(cluster, "2", "dp=2,ep=4")
    assert "all_to_all in ep" in finding(report, "collective-wrong-result")["message"]
    assert finding(report, "isolation-bad-node")["nodes"] == ["node3"], report["findings"]
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node3"])
