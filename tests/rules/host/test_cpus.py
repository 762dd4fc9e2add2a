"""CPUs that the ranks of a node share: too few by affinity, by quota, or for their threads."""

from __future__ import annotations

import pytest

from distcheck.facts.host import CpuQuota, Limits

OURS = ("host.cpus",)
RANKS = (4, 5, 6, 7)
EACH_ONE = ("0", "1", "2", "3")
NODES = "ranks 0-11 (node1, node2 and node3)"
ONE_CORE = "each rank is bound to 1 CPU of 64; NCCL's and the data loaders' threads need more"


@pytest.mark.parametrize(
    ("options", "mask", "message"),
    [
        ({}, "3", "ranks 4-7 (node2): 4 ranks of a node share CPU 3; the node has 64"),
        ({"masks": ("0-1",)}, None, f"{NODES}: 4 ranks of a node share CPUs 0-1; the node has 64"),
        ({"masks": EACH_ONE, "gpus": 4}, None, f"{NODES}: {ONE_CORE}"),
        ({"masks": EACH_ONE}, None, ""),
        ({"masks": EACH_ONE, "gpus": 4, "cpus": 16}, None, ""),
        ({"masks": ("0-1",), "cpus": 2}, None, ""),
        ({"masks": ("0-63",)}, None, ""),
        ({"masks": ("0-15", "16-31", "32-47", "48-63")}, None, ""),
        ({"masks": ("0-3",)}, None, ""),
        ({"masks": ("0",), "cpus": None}, None, ""),
        ({"masks": ("",), "cpus": 2}, None, ""),
    ],
    ids=["one node", "all nodes", "one core", "one core without GPUs", "one core of few", "4 ranks on 2 CPUs", "all",
         "each its own", "as many as ranks", "unknown node", "unknown rank"],
)  # fmt: skip
def test_perf_affinity_overlap_where_the_node_has_more_cpus(on_hosts, change, judge, options, mask, message):
    job = on_hosts(**options)
    found = judge(change.rank(job, RANKS, cpu_list=mask) if mask else job, *OURS).findings
    expected = [("perf-affinity-overlap", "warning", message)] if message else []
    assert [(f.rule, f.severity, f.message) for f in found] == expected


@pytest.mark.parametrize(
    ("limit", "cpus", "masks", "expected"),
    [
        (2, 2, ("0-1",), 0),
        (1.5, 2, ("0-1",), 2),
        (2, 64, ("3-4",), 0),
        (1, 64, ("3-4",), 2),
        (4, 64, EACH_ONE, 0),
        (2, 64, ("",), 4),
        (2, None, ("",), 4),
    ],
)
def test_a_quota_of_all_cpus_leaves_nothing_to_raise(on_hosts, change, judge, limit, cpus, masks, expected):
    quota = CpuQuota(cpus=limit, periods=1000, throttled_periods=900, cgroup="/sys/fs/cgroup/job")
    job = change.process(on_hosts(1, cpus=cpus, masks=masks), None, limits=Limits(cpu=quota))
    found = [f for f in judge(job, *OURS).findings if f.rule == "perf-cgroup-cpu-quota"]
    assert [f"expected at least {expected}; " in f.message for f in found] == ([True] if expected else [])
    for finding in found:  # the fix asks for no more than there is
        most = min(16, cpus or 16, 2 if masks == ("3-4",) else 16)
        assert (finding.severity, finding.fix.commands[0]) == ("warning", f"# add to docker run: --cpus={most}")


@pytest.mark.parametrize(
    ("value", "severity"), [("1", ""), ("16", ""), ("31", ""), ("32", "warning"), ("64,2", "warning"), (None, "")]
)
def test_perf_omp_oversubscribed_by_threads_of_a_node(on_hosts, change, said, value, severity):
    found = said(change.environment(on_hosts(masks=("0-63",)), RANKS, OMP_NUM_THREADS=value), *OURS)
    expected = [("perf-omp-oversubscribed", severity, RANKS, ("node2",))] if severity else []
    assert [one for one in found if one[0] == "perf-omp-oversubscribed"] == expected


def test_without_the_variable_each_rank_starts_a_thread_for_each_cpu(on_hosts, only, silent):
    found, _ = only(on_hosts(1, 8, masks=("0-63",)))
    assert (found.rule, found.severity) == ("perf-omp-oversubscribed", "info")
    assert "no OMP_NUM_THREADS, so 64 threads in each start 512 threads; they have 64 CPUs" in found.message
    assert found.fix.commands == ("export OMP_NUM_THREADS=8",)
    assert silent(on_hosts(1, 4, cpus=2, masks=("0-1",)))


def test_perf_omp_1_where_each_rank_has_several_cpus(on_hosts, change, said, silent):
    job = change.environment(on_hosts(2, 4), None, OMP_NUM_THREADS="1")
    assert said(job, *OURS) == [("perf-omp-1", "info", tuple(range(8)), ("node1", "node2"))]
    assert silent(change.environment(on_hosts(2, 4, cpus=16, masks=("0-15",)), None, OMP_NUM_THREADS="1"))
