"""The groups of a mesh between real nodes: a slow node is found through its groups."""

from __future__ import annotations

import pytest
from cluster.inside import finding, judged, limit

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
