"""Comparing a run with a baseline of the same kind, with the noise of both."""

from __future__ import annotations

import msgspec
import pytest
from made.jobs import healthy_job

from distcheck.expectation import baseline
from distcheck.facts.errors import UsageError
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.saved import save

replace = msgspec.structs.replace
MIB = 1 << 20


def measured(seconds=0.01, uncertainty=0.01, op="all_reduce", size=MIB, dtype="float32", ranks=4):
    return Measurement(op, size, dtype, 20, (seconds,) * ranks, bursts=7, uncertainty=uncertainty)


def ran(job, *rows, backend="gloo"):
    return replace(job, collectives=Collectives(backend, torch="2.13.0", measurements=rows))


@pytest.fixture
def job():
    return healthy_job(2, 2, looks=("environment", "meeting", "collectives"))


def test_a_saved_run_is_loaded_with_its_figures(job, tmp_path):
    path = save(ran(job, measured(), measured(op="broadcast", uncertainty=None)), tmp_path / "before.json")
    before = baseline.load(path)
    assert (before.file, before.ranks_by_node, before.gpus, before.backend) == (str(path), (2, 2), {}, "gloo")
    assert [(row.op, row.bytes, row.seconds, row.uncertainty) for row in before.rows] == [
        ("all_reduce", MIB, 0.01, 0.01),
        ("broadcast", MIB, 0.01, None),
    ]


def test_a_run_without_measurements_is_rejected_with_the_fix(job, tmp_path):
    path = save(job, tmp_path / "env.json")
    with pytest.raises(UsageError, match=r"nothing was measured in that run; save one with: distcheck bandwidth"):
        baseline.load(path)


def test_runs_of_one_kind_do_not_differ(job):
    before, now = (baseline.of(ran(job, measured(s)), "f") for s in (0.01, 0.02))
    assert baseline.differences(before, now) == []


@pytest.mark.parametrize(
    ("nodes", "per_node", "gpus", "words"),
    [
        (1, 4, 0, "ranks on each node: 2 x 2, now 1 x 4"),
        (4, (5, 1, 1, 1), 0, "ranks on each node: 2 x 2, now 1 x 5 + 3 x 1"),
        (2, 2, 2, "GPUs: none, now 4 x NVIDIA H100"),
    ],
)
def test_a_different_layout_or_other_gpus_are_not_comparable(job, nodes, per_node, gpus, words):
    before = baseline.of(ran(job, measured()), "f")
    other = baseline.of(ran(healthy_job(nodes, per_node, gpus=gpus), measured()), "f")
    assert baseline.differences(before, other) == [words]


def test_a_different_backend_is_not_comparable(job):
    before = baseline.of(ran(job, measured()), "f")
    assert baseline.differences(before, baseline.of(ran(job, measured(), backend="mpi"), "")) == [
        "backend: gloo, now mpi"
    ]


def test_only_figures_of_both_runs_are_compared(job):
    before = baseline.of(ran(job, measured(), measured(size=4 * MIB), measured(dtype="int32")), "f")
    changes = baseline.compare(before, (measured(0.02), measured(op="broadcast"), measured(0.01, dtype="int32")))
    assert [(c.name, c.row.bytes, c.share) for c in changes] == [
        ("all_reduce", MIB, 0.5),
        ("all_reduce int32", MIB, 1.0),
    ]


@pytest.mark.parametrize(
    ("then", "now", "seconds", "fell"),
    [
        (0.01, 0.01, 0.0101, False),
        (0.01, 0.01, 0.0105, True),
        (0.1, 0.2, 0.0130, False),
        (0.1, 0.2, 0.0150, True),
        (None, None, 0.0120, False),
        (None, None, 0.0130, True),
        (0.01, 8.0, 0.0500, False),
        (0.01, 8.0, 10.0, True),
    ],
)
def test_a_figure_fell_if_it_is_lower_by_more_than_both_uncertainties(job, then, now, seconds, fell):
    before = baseline.of(ran(job, measured(uncertainty=then)), "f")
    (change,) = baseline.compare(before, (measured(seconds, now),))
    assert change.fell is fell
