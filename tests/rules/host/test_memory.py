"""Memory that is short for the ranks is reported where it is short, and nowhere else."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.host import CgroupLimit, Limits

MIB, GIB = 1 << 20, 1 << 30
FAMILY = "host_memory"


def test_host_memory_low_on_one_node_by_what_the_ranks_need(on_hosts, said):
    job = on_hosts(states={1: {"available_bytes": 900 * MIB}})
    assert said(job, FAMILY) == [("host-memory-low", "warning", (4, 5, 6, 7), ("node2",))]
    assert said(on_hosts(states={1: {"available_bytes": 60 * MIB}}), FAMILY)[0][1] == "error"


def test_ranks_with_gpus_need_more(on_hosts, said):
    states = {1: {"available_bytes": 3 * GIB, "memory_bytes": 4 * GIB}}
    assert said(on_hosts(2, states=states), FAMILY) == []
    assert [f[:2] for f in said(on_hosts(2, states=states, gpus=4), FAMILY)] == [("host-memory-low", "warning")]
    assert said(on_hosts(2, states=states, gpus=4, backend="gloo"), FAMILY) == []


def test_a_node_with_a_tenth_of_the_others_memory_is_short_if_its_own_is_used(on_hosts, said, judge):
    job = on_hosts(states={2: {"available_bytes": 5 * GIB}})
    assert said(job, FAMILY) == [("host-memory-low", "warning", (8, 9, 10, 11), ("node3",))]
    assert "half of the nodes have 60 GiB or more" in judge(job, FAMILY).findings[0].message
    small = on_hosts(states={2: {"available_bytes": 5 * GIB, "memory_bytes": 6 * GIB}})
    assert said(small, FAMILY) == []


def test_memory_reserved_for_huge_pages_has_its_own_fix(on_hosts, judge):
    job = on_hosts(states={0: {"available_bytes": 2 * GIB, "huge_page_bytes": 56 * GIB}})
    assert "echo 0 | sudo tee /proc/sys/vm/nr_hugepages" in judge(job, FAMILY).findings[0].fix.commands


@pytest.mark.parametrize(("left", "severity"), [(0, "error"), (800 * MIB, "warning"), (1100 * MIB, "")])
def test_the_cgroup_of_some_ranks_leaves_too_little(on_hosts, change, judge, left, severity):
    limit = CgroupLimit(limit=2 * GIB, used=2 * GIB - left, cgroup="/sys/fs/cgroup/job")
    job = change.process(on_hosts(), (4, 5, 6, 7), limits=Limits(memory=limit))
    said = judge(job, FAMILY)
    assert [(f.severity, f.ranks) for f in said.findings] == ([(severity, (4, 5, 6, 7))] if severity else [])
    assert said.verdict.exit_code == (30 if severity == "error" else 0)
    if severity:
        assert "cgroup, 2 GiB, leaves" in said.findings[0].message
        assert "# add to docker run: --memory=4096m" in said.findings[0].fix.commands


def test_host_oom_kills_stand_out_beside_other_nodes_only(on_hosts, said):
    assert said(on_hosts(1, states={0: {"oom_kills": 500}}), FAMILY) == []
    assert said(on_hosts(states={n: {"oom_kills": 500} for n in range(3)}), FAMILY) == []
    two = on_hosts(2, states={0: {"oom_kills": 500}})
    assert said(two, FAMILY) == [("host-oom-kills", "info", (), ("node1",))]
    job = on_hosts(states={1: {"oom_kills": 500}, 2: {"oom_kills": None}})
    assert said(job, FAMILY) == [("host-oom-kills", "info", (), ("node2",))]


def test_a_host_that_cannot_be_read_is_listed_and_fails_no_run(on_hosts, judge):
    said = judge(on_hosts(states={1: Missing(reason="hidden")}), FAMILY)
    assert (said.findings, said.verdict.exit_code) == ((), 0)
    assert {(n.rule, n.nodes, n.required) for n in said.not_checked} == {
        ("host-memory-low", ("node2",), False),
        ("host-oom-kills", ("node2",), False),
    }
