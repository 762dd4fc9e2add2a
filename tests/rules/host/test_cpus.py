"""CPUs that the ranks of a node share: too few by affinity, by quota, or for their threads."""

from __future__ import annotations

import pytest

from distcheck.facts.host import CpuQuota, Limits

OURS = ("host_cpus",)
ALL = tuple(range(12))


def test_one_cpu_for_the_ranks_of_one_node_names_them(on_hosts, change, said, judge):
    job = change.rank(on_hosts(), (4, 5, 6, 7), cpu_list="3")
    assert said(job, *OURS) == [("perf-affinity-overlap", "warning", (4, 5, 6, 7), ("node2",))]
    assert judge(job, *OURS).findings[0].message.endswith("4 ranks of a node share CPU 3; the node has 64")


def test_nodes_with_the_same_binding_are_one_finding(on_hosts, change, said):
    job = change.rank(on_hosts(), ALL, cpu_list="0-1")
    assert said(job, *OURS) == [("perf-affinity-overlap", "warning", ALL, ("node1", "node2", "node3"))]


@pytest.mark.parametrize(
    ("cpus", "masks"),
    [
        (2, ("0-1",)), (64, ("0-63",)), (64, ("0-15", "16-31", "32-47", "48-63")), (64, ("0-3",)), (None, ("0",)),
        (2, ("",)),
    ],
    ids=["4 ranks on 2 CPUs", "all", "each its own", "as many as ranks", "unknown node", "unknown rank"],
)  # fmt: skip
def test_ranks_that_have_what_the_node_has_are_silent(on_hosts, said, cpus, masks):
    assert said(on_hosts(cpus=cpus, masks=masks), *OURS) == []


@pytest.mark.parametrize(("gpus", "cpus", "reported"), [(4, 64, True), (0, 64, False), (4, 16, False)])
def test_one_core_for_each_rank_is_too_little_beside_gpus_and_idle_cpus(on_hosts, said, gpus, cpus, reported):
    found = said(on_hosts(gpus=gpus, cpus=cpus, masks=("0", "1", "2", "3")), *OURS)
    assert found == ([("perf-affinity-overlap", "warning", ALL, ("node1", "node2", "node3"))] if reported else [])


@pytest.mark.parametrize(
    ("limit", "cpus", "masks", "expected"),
    [
        (2, 2, ("0-1",), 0),
        (1.5, 2, ("0-1",), 2),
        (2, 64, ("3-4",), 0),
        (1, 64, ("3-4",), 2),
        (4, 64, ("0", "1", "2", "3"), 0),
        (2, 64, ("",), 4),
        (2, None, ("",), 4),
    ],
)
def test_a_quota_of_all_cpus_leaves_nothing_to_raise(on_hosts, change, judge, limit, cpus, masks, expected):
    quota = CpuQuota(cpus=limit, periods=1000, throttled_periods=900, cgroup="/sys/fs/cgroup/job")
    job = change.process(on_hosts(1, cpus=cpus, masks=masks), None, limits=Limits(cpu=quota))
    found = [f for f in judge(job, *OURS).findings if f.rule == "perf-cgroup-cpu-quota"]
    assert [(f.severity, f"expected at least {expected}; " in f.message) for f in found] == (
        [("warning", True)] if expected else []
    )
    for finding in found:  # the fix asks for no more than there is
        most = min(16, cpus or 16, 2 if masks == ("3-4",) else 16)
        assert finding.fix.commands[0] == f"# add to docker run: --cpus={most}"


@pytest.mark.parametrize(
    ("value", "severity"), [("1", ""), ("16", ""), ("31", ""), ("32", "warning"), ("64,2", "warning"), (None, "")]
)
def test_perf_omp_oversubscribed_by_threads_of_a_node(on_hosts, change, said, value, severity):
    job = change.environment(on_hosts(masks=("0-63",)), (0, 1, 2, 3), OMP_NUM_THREADS=value)
    found = [f for f in said(job, *OURS) if f[0] == "perf-omp-oversubscribed"]
    expected = [("perf-omp-oversubscribed", severity, (0, 1, 2, 3), ("node1",))] if severity else []
    assert found == expected


def test_without_the_variable_each_rank_starts_a_thread_for_each_cpu(on_hosts, change, judge):
    job = on_hosts(1, 8, masks=("0-63",))
    (found,) = judge(job, *OURS).findings
    assert (found.rule, found.severity) == ("perf-omp-oversubscribed", "info")
    assert "no OMP_NUM_THREADS, so 64 threads in each start 512 threads; they have 64 CPUs" in found.message
    assert found.fix.commands == ("export OMP_NUM_THREADS=8",)
    assert judge(on_hosts(1, 4, cpus=2, masks=("0-1",)), *OURS).findings == ()


def test_perf_omp_1_where_each_rank_has_several_cpus(on_hosts, change, said):
    job = change.environment(on_hosts(2, 4), None, OMP_NUM_THREADS="1")
    assert said(job, *OURS) == [("perf-omp-1", "info", tuple(range(8)), ("node1", "node2"))]
    few = change.environment(on_hosts(2, 4, cpus=16, masks=("0-15",)), None, OMP_NUM_THREADS="1")
    assert said(few, *OURS) == []
