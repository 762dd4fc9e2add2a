"""A run compared with an earlier one."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.expectation import baseline
from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives, Measurement

MIB = 1 << 20
SIZES = (MIB, 16 * MIB)


def rows(slower=1.0, uncertainty=0.01, ops=("all_reduce", "broadcast")):
    return tuple(
        Measurement(op, size, "float32", 20, (size / 1e9 * slower,) * 4, bursts=7, uncertainty=uncertainty)
        for op in ops
        for size in SIZES
    )


@pytest.fixture
def held(job_of, change):
    """Return a job that is compared with an earlier one; `now` are its own figures."""

    def held(now, before=None, **asked):
        job = job_of(2, 2, looks=("environment", "meeting", "collectives"), operations=("all_reduce", "broadcast"))
        ran = Collectives("gloo", torch="2.13.0", measurements=rows() if before is None else before)
        earlier = baseline.of(change.job(job, collectives=ran), "before.json")
        runs = change.job(job, collectives=change.job(ran, measurements=now))
        return change.job(runs, asked=change.job(runs.asked, baseline=earlier, sizes_bytes=SIZES, **asked))

    return held


@pytest.fixture
def said(judge):
    """Return the rule's outcomes for a job, findings first."""

    def said(job):
        diagnosis = judge(job, "collectives.baseline")
        return [*diagnosis.findings, *(n for n in diagnosis.not_checked if n.rule == "perf-below-baseline")]

    return said


def test_the_same_figures_are_silent(held, said):
    assert said(held(rows())) == []
    assert said(held(rows(1.09))) == []
    assert said(held(rows(0.5))) == []


def test_the_command_that_shows_the_baseline_can_be_pasted(held, said, change):
    job = held(rows(9))
    earlier = change.job(job.asked.baseline, file="last week.json")
    commands = {finding.fix.commands for finding in said(change.asked(job, baseline=earlier))}
    assert commands == {("distcheck isolate", "distcheck report 'last week.json'")}


@pytest.mark.parametrize(("slower", "severity"), [(1.15, "warning"), (1.3, "error"), (9, "error")])
def test_a_drop_is_reported_with_its_size(held, said, slower, severity):
    now = (*rows()[:2], *rows(slower)[2:])
    (finding,) = said(held(now))
    assert (finding.rule, finding.severity, finding.scope) == ("perf-below-baseline", severity, "link")
    assert finding.message.startswith("broadcast of ")
    assert f"{1 - 1 / slower:.0%} lower" in finding.message
    assert "in before.json it took" in finding.message
    assert (finding.ranks, finding.nodes, finding.confirmed) == ((), (), False)


def test_each_operation_is_a_separate_finding(held, said):
    assert [f.message.split()[0] for f in said(held(rows(2.0)))] == ["all_reduce", "broadcast"]


@pytest.mark.parametrize(
    ("now", "before", "required", "reason"),
    [
        (rows(1.2, 0.2), rows(uncertainty=0.1), False, "slower than in before.json, but within the uncertainty"),
        (rows(1.3, 0.2), rows(uncertainty=0.1), True, "slower than in before.json, but within the uncertainty"),
        (rows(), rows()[::2], True, "before.json has no figure for all_reduce of 16 MiB and broadcast of 16 MiB"),
        (rows(), rows(ops=("all_gather",)), True, "before.json has no figure for any operation and size of this run"),
    ],
)
def test_what_cannot_be_compared_is_not_checked(held, said, now, before, required, reason):
    (unlooked,) = said(held(now, before))
    assert unlooked.required == required
    assert reason in unlooked.reason


def test_a_few_very_slow_bursts_do_not_hide_a_drop(held, said):
    jittery = tuple(msgspec.structs.replace(row, at_least=0.9) for row in rows(9.0, uncertainty=18.0))
    assert [f.severity for f in said(held(jittery))] == ["error", "error"]


def test_a_different_kind_of_run_is_not_compared(held, said, change):
    job = held(rows(5.0))
    other = change.job(job.asked.baseline, ranks_by_node=(8,), gpus={"NVIDIA H100": 8})
    (unlooked,) = said(change.asked(job, baseline=other))
    assert unlooked.required
    assert unlooked.reason == (
        "before.json is not comparable with this run: ranks on each node: 1 x 8, now 2 x 2 and "
        "GPUs: 8 x NVIDIA H100, now none"
    )


def test_a_run_without_measurements_does_not_pass(held, said, change):
    (unlooked,) = said(change.job(held(rows()), collectives=Missing(reason="torch cannot be imported")))
    assert unlooked.required


def test_changed_versions_are_shown_with_a_drop(held, said, change):
    job = held(rows(2.0))
    finding = said(change.job(job, collectives=change.job(job.collectives, torch="2.14.0")))[0]
    assert finding.evidence["torch"] == "2.13.0, now 2.14.0"


def test_without_a_baseline_the_rule_is_silent(held, said, change):
    assert said(change.asked(held(rows(5.0)), baseline=None)) == []
