"""Slurm's short forms."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from distcheck.nodelist import first_host, tasks_per_node


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("node[1-4,7]", "node1"),
        ("node[01-04]", "node01"),
        ("node[007,009]", "node007"),
        ("a,b", "a"),
        ("rack[2-3]n[08-09],login", "rack2n08"),
        ("gpu-[1-2].cluster.example", "gpu-1.cluster.example"),
        (" node1", "node1"),
        ("", ""),
        ("node[", ""),
        ("$SLURM_NODELIST", ""),
        ("a b", ""),
    ],
)
def test_the_first_host_of_a_list_is_found(nodes, host):
    assert first_host(nodes) == host


_numbers = st.lists(st.integers(0, 120), min_size=1, max_size=6)


@given(st.sampled_from(["node", "gpu-a", "n"]), _numbers, st.integers(1, 4))
def test_it_is_the_host_that_clustershell_names_first(prefix, numbers, width):
    folded = str(NodeSet(",".join(f"{prefix}{n:0{width}}" for n in sorted(numbers))))
    assert first_host(folded) in set(NodeSet(folded))
    if "," not in folded.partition("]")[2] and len({len(f"{n:0{width}}") for n in numbers}) == 1:
        assert first_host(folded) == NodeSet(folded)[0]


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
