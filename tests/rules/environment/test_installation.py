"""Drivers, modules and imports that differ over the nodes."""

from __future__ import annotations

import pytest

from distcheck.facts.rank import RankRun


@pytest.fixture
def job(job_of):
    return job_of(4, 2, "slurm", looks=("environment", "peers", "collectives"))


@pytest.fixture
def said(judge):
    def said(job):
        made = judge(job, "environment.installation")
        return [(f.rule, f.severity, f.ranks, f.nodes) for f in made.findings]

    return said


def imported(seconds):
    return RankRun(pid=1, step="", outcome="done", import_seconds=seconds)


@pytest.mark.parametrize(
    ("usual", "odd", "slow"), [(3.0, 25.0, True), (3.0, 15.0, False), (10.0, 39.0, False), (40.0, 45.0, False)]
)
def test_an_import_is_slow_only_beside_the_other_nodes(job, said, change, usual, odd, slow):
    made = change.rank(change.rank(job, None, run=imported(usual)), (4, 5), run=imported(odd))
    assert said(made) == ([("sw-import-slow", "info", (4, 5), ("node3",))] if slow else [])


def test_an_import_on_a_single_node_is_not_compared(job_of, said, change):
    one = job_of(1, 2, looks=("collectives",))
    assert said(change.rank(one, None, run=imported(90.0))) == []


def test_a_torchrun_with_etcd_needs_its_module(job, said, change):
    assert said(change.process(job, None, etcd=True)) == []
    assert said(change.process(job, 0, etcd=False)) == [("sw-etcd-missing", "error", (0,), ("node1",))]


def test_another_network_driver_on_one_node_is_a_warning_for_its_admin(job, said, change):
    same = change.node(job, None, modules={"mlx5_core": "24.10-3.2.5"})
    assert said(same) == []
    old = change.node(same, 3, modules={"mlx5_core": "5.8-2.0.3"})
    assert said(old) == [("sw-ofed-kernel", "warning", (6, 7), ("node4",))]
    kernels = change.node(same, 3, modules={"mlx5_core": ""})
    assert said(kernels) == [("sw-ofed-kernel", "warning", (6, 7), ("node4",))]
    assert said(change.node(same, 3, modules={})) == [], "a node without such an adapter"
