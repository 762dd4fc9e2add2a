"""The figures of a job as its nodes' history keeps them, and when one is lower than it was."""

from __future__ import annotations

import pytest
from made.jobs import healthy_job, replace

from distcheck.expectation.past import fell, figures
from distcheck.facts.device import DeviceTest
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.rank import RankRun

MIB = 1 << 20
STEADY = (10.0, 10.1, 9.9, 10.05, 9.95, 10.0, 10.0)


def measured(nodes=2, per_node=2, backend="gloo", **asked):
    job = healthy_job(nodes, per_node, gpus=2, **asked)
    ran = (
        Measurement("all_reduce", MIB, "float32", 5, (0.001, 0.003) * nodes),
        Measurement("broadcast", 4 * MIB, "bfloat16", 5, (0.001, 0.001) * nodes),
        Measurement("all_reduce", MIB, "float32", 5, (0.001, 0.001), group="node1"),
    )
    return replace(job, collectives=Collectives(backend, measurements=ran))


def names(job):
    return {figure.name for figure in figures(job)}


def test_a_figure_is_the_bus_bandwidth_over_the_whole_world_in_the_history_of_rank_0s_node():
    broadcast, all_reduce = figures(measured())
    assert (broadcast.label, broadcast.unit) == ("broadcast bfloat16 of 4 MiB", "GB/s busbw")
    assert broadcast.node == all_reduce.node == "node1"
    assert broadcast.nodes == all_reduce.nodes == ("node1", "node2")
    assert broadcast.value == pytest.approx(4 * MIB / 1e6, rel=1e-4)
    assert all_reduce.value == pytest.approx(MIB / 2e6 * 1.5, rel=1e-4)
    assert figures(healthy_job()) == []


def test_figures_under_the_same_conditions_have_the_same_names_and_others_do_not():
    usual, job = names(measured()), measured()
    assert names(measured()) == usual
    renamed = replace(job, nodes=tuple(replace(node, name=f"new-{node.name}") for node in job.nodes))
    for other in (
        renamed,
        measured(3),
        measured(per_node=(1, 3)),
        measured(backend="nccl"),
    ):
        assert names(other).isdisjoint(usual)
    assert names(measured(launcher="slurm")) == usual


def with_tests(job, *uuids):
    """Return the job with a device test of each rank on one of these GPUs."""
    test = DeviceTest("bfloat16", 8192, 600.0, 3000.0, 50.0, None)
    ran = RankRun(1, "done", "done", device_test=test)
    ranks = tuple(replace(rank, gpu=uuid, run=ran) for rank, uuid in zip(job.ranks, uuids, strict=True))
    return replace(job, ranks=ranks)


def test_each_gpu_has_figures_of_its_own_and_one_that_ranks_share_or_a_cpu_has_none():
    found = figures(with_tests(healthy_job(2, 2, gpus=2), "GPU-a", "GPU-b", "GPU-c", "GPU-d"))
    assert [(f.node, f.ranks) for f in found[::3]] == [
        ("node1", (0,)),
        ("node1", (1,)),
        ("node2", (2,)),
        ("node2", (3,)),
    ]
    assert [(f.label, f.value, f.unit) for f in found[:3]] == [
        ("matrix speed of rank 0 (GPU-a)", 600.0, "TFLOPS"),
        ("copies in GPU memory of rank 0 (GPU-a)", 3000.0, "GB/s"),
        ("copies from the host of rank 0 (GPU-a)", 50.0, "GB/s"),
    ]
    assert len({f.name for f in found}) == len(found) == 12
    shared = figures(with_tests(healthy_job(1, 3, gpus=2), "GPU-a", "GPU-a", "GPU-b"))
    assert {f.ranks for f in shared} == {(2,)}
    assert figures(with_tests(healthy_job(1, 2), None, None)) == []


@pytest.mark.parametrize(
    ("values", "now", "expected"),
    [
        ((*STEADY, 8.0, 8.1), 8.0, True),
        ((*STEADY, 8.0, 8.1), 10.0, False),  # it has recovered
        ((*STEADY, 10.0, 10.0), 5.0, False),  # one slow run
        ((*STEADY, 10.0, 5.0), 5.0, True),
        ((*STEADY[:5], 8.0, 8.0), 8.0, True),
        ((*STEADY[:4], 8.0, 8.0), 8.0, False),  # too few earlier values
        ((10.0, 14.0, 7.0, 12.0, 9.0, 13.0, 8.0, 6.0, 6.0), 6.0, False),  # within their scatter
        ((10.0, 14.0, 7.0, 12.0, 9.0, 13.0, 8.0, 1.0, 1.0), 1.0, True),
        ((10.0,) * 9, 9.5, False),  # no scatter at all, and a small drop
        ((*[10.0] * 7, 8.9, 8.9), 8.9, True),
        ((0.0,) * 9, 0.0, False),
        ((*STEADY, 12.0, 12.0), 12.0, False),  # faster
    ],
)
def test_a_figure_fell_if_the_newest_three_are_below_the_scatter_of_the_earlier(values, now, expected):
    assert fell(values, now, 0.9) is expected
