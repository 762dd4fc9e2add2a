"""Slurm's short forms."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from distcheck.selection.nodelist import deal, expand, first_host, folded, tasks_per_node


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("node1", ("node1",)),
        (" node1", ("node1",)),
        ("a,b", ("a", "b")),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("node[007,009]", ("node007", "node009")),
        ("gpu-[1-2].cluster.example", ("gpu-1.cluster.example", "gpu-2.cluster.example")),
        ("n[3,1]", ("n3", "n1")),
        ("node[09-10],login", ("node09", "node10", "login")),
        ("rack[2-3]n[08-09]", ("rack2n08", "rack2n09", "rack3n08", "rack3n09")),
        ("", ()),
        ("node[", ()),
        ("node[1-", ()),
        ("$SLURM_NODELIST", ()),
        ("a b", ()),
    ],
)
def test_a_list_is_expanded_in_its_own_order_from_its_first_host_on(nodes, hosts):
    assert expand(nodes) == hosts
    assert first_host(nodes) == (hosts[0] if hosts else "")


@pytest.mark.parametrize("nodes", ["node[3-1]", "node1,,node2", "n[1-99999999]", "a[1-2000]b[1-2000]"])
def test_of_a_list_that_is_invalid_or_too_long_no_host_is_taken(nodes):
    assert expand(nodes) == ()


_numbers = st.lists(st.integers(0, 120), min_size=1, max_size=6)


@given(st.sampled_from(["node", "gpu-a", "n"]), _numbers, st.integers(1, 4))
def test_the_first_host_matches_clustershells(prefix, numbers, width):
    folded = str(NodeSet(",".join(f"{prefix}{n:0{width}}" for n in sorted(numbers))))
    assert first_host(folded) in set(NodeSet(folded))
    if "," not in folded.partition("]")[2] and len({len(f"{n:0{width}}") for n in numbers}) == 1:
        assert first_host(folded) == NodeSet(folded)[0]


@given(st.sampled_from(["node", "gpu-a", "n"]), _numbers, st.integers(1, 4))
def test_the_expanded_hosts_match_clustershells(prefix, numbers, width):
    folded = str(NodeSet(",".join(f"{prefix}{n:0{width}}" for n in numbers)))
    assert sorted(expand(folded)) == sorted(NodeSet(folded))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 9))
def test_every_distribution_gives_each_node_its_tasks(tasks, plane):
    for distribution in ("", "block", "cyclic", "plane", f"plane={plane}"):
        order = deal(tasks, distribution, plane)
        assert [order.count(node) for node in range(len(tasks))] == tasks
    assert deal(tasks, "plane=1") == deal(tasks, "cyclic:block")
    assert list(deal(tasks, "block:cyclic")) == sorted(deal(tasks, ""))
    assert deal(tasks, "arbitrary") == deal(tasks, "plane") == ()


@pytest.mark.parametrize(
    ("tasks", "counts"),
    [
        ("4", (4,)),
        ("2(x4)", (2, 2, 2, 2)),
        ("5,1(x3)", (5, 1, 1, 1)),
        ("1(x2),3", (1, 1, 3)),
        ("", ()),
        ("4(x", ()),
        ("1(x99999999999)", ()),
    ],
)
def test_the_tasks_of_each_node_are_counted(tasks, counts):
    assert tasks_per_node(tasks) == counts


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (("node1", "node2", "node5"), "node[1-2,5]"),
        (("node1", "node3", "node2"), "node[1,3],node2"),
        (("a09", "a10", "b1", "login"), "a[09-10],b1,login"),
        (("n099", "n0100", "n9", "n10"), "n099,n0100,n[9-10]"),
        (("a", "a1", "a2"), "a,a[1-2]"),
        (("gpu-a", "gpu-b"), "gpu-a,gpu-b"),
        (("rack1-node2",), "rack1-node2"),
        ((), ""),
    ],
)
def test_hosts_are_folded_in_their_own_order(hosts, text):
    assert folded(hosts) == text
    assert expand(text) == hosts
