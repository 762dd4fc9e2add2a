"""What earlier runs found: a node that failed often, and a figure that is lower than it was."""

from __future__ import annotations

import pytest
from made.jobs import LAUNCHERS

from distcheck.expectation.past import figures
from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.facts.history import Failure, History, PastFigure, RecentRuns
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.rank import RankRun

OURS = ("host.history",)
MIB = 1 << 20
AT = 1_795_000_000.0
STEADY = (10.0, 10.1, 9.9, 10.05, 9.95, 10.0, 10.0)


def failures(*rules):
    return tuple(Failure(AT + 60 * n, (name,)) for n, name in enumerate(rules))


def recent(node, *rules, runs=10, command="gate"):
    return RecentRuns(node, command, runs, failures(*rules))


@pytest.fixture
def gate(job_of, change):
    """Return a job whose nodes have this history; each collective has the same time on all ranks."""

    def gate(past, nodes=4, launcher="by hand", backend="nccl", seconds=0.01):
        looks = ("environment", "meeting", "peers", "gpu", "collectives")
        job = job_of(nodes, 2, launcher, looks, gpus=2, command="gate")
        measured = tuple(
            Measurement("all_reduce", size, "float32", 5, (seconds,) * 2 * nodes) for size in (MIB, 64 * MIB)
        )
        return change.job(job, collectives=Collectives(backend, measurements=measured), history=past)

    return gate


def test_a_node_that_failed_three_of_its_last_ten_gates_is_named_and_no_other(gate, judge):
    past = History(
        "/shared/it's",
        (recent("node3", "gpu-xid", "isolation-bad-node", "gpu-xid"), recent("node2", "gpu-xid", "gpu-xid")),
    )
    diagnosis = judge(gate(past), *OURS)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.severity, finding.scope) == ("host-failed-before", "warning", "node")
    assert (finding.nodes, finding.ranks) == (("node3",), ())
    assert finding.message == (
        "node3 was confirmed bad in 3 of its last 10 gate runs, the last time on 2026-11-18 11:08 UTC (gpu-xid)"
    )
    assert finding.evidence == {
        "2026-11-18 11:06 UTC": "gpu-xid",
        "2026-11-18 11:07 UTC": "isolation-bad-node",
        "2026-11-18 11:08 UTC": "gpu-xid",
    }
    assert finding.fix.commands == (
        "distcheck report --history '/shared/it'\"'\"'s'",
        "distcheck explain gpu-xid",
        "distcheck explain isolation-bad-node",
    )
    assert (diagnosis.verdict.name, diagnosis.verdict.exit_code, diagnosis.not_checked) == ("warn", 0, ())


def test_a_rule_that_somebody_wrote_into_the_history_runs_no_command_when_the_fix_is_pasted(gate, only):
    finding, _ = only(gate(History("/h", (recent("node3", *["x; $(reboot)"] * 3),))))
    assert finding.fix.commands[1] == "distcheck explain 'x; $(reboot)'"


@pytest.mark.parametrize(
    "past",
    [
        None,
        History("/h", (recent("node3", *["gpu-xid"] * 2), recent("node3", *["gpu-xid"] * 2, command="node"))),
        History("/h", (recent("node9", *["gpu-xid"] * 5),)),
    ],
    ids=["none", "two failures of each of two commands", "a node that is not in the job"],
)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_history_without_three_failures_of_a_command_on_a_node_of_the_job_is_silent(gate, silent, past, launcher):
    assert silent(gate(past, launcher=launcher))


@pytest.mark.parametrize(
    ("past", "reason"),
    [
        (Missing(reason="/h is not a folder"), "--history: /h is not a folder"),
        (History("/h", newer=2), "2 lines of a newer distcheck in /h: install its version to read them"),
        (History("/h", unread=("node3.jsonl: Permission denied",)), "not read in /h: node3.jsonl: Permission denied"),
    ],
)
def test_what_the_history_does_not_show_is_not_checked_and_changes_no_verdict(gate, judge, past, reason):
    diagnosis = judge(gate(past), *OURS)
    assert [(gap.rule, gap.reason, gap.required) for gap in diagnosis.not_checked] == [
        ("host-failed-before", reason, False)
    ]
    assert (diagnosis.findings, diagnosis.verdict.name) == ((), "pass")


def test_the_history_is_judged_even_if_the_collectives_were_skipped(gate, rules, change):
    job = gate(History("/h", (recent("node3", *["gpu-xid"] * 3),)))
    skipped = change.job(job, collectives=None, skipped={"gpu": "why", "collectives": "why"})
    assert rules(skipped) == ["host-failed-before"]


# -- a figure that is lower than it was -----------------------------------------------------------------------------


def slower(gate, share, nodes=4, values=STEADY, **more):
    """Return a job whose largest all_reduce has this share of its usual bandwidth, as in the two runs before."""

    def before(now):
        usual = now.value / (share if "67108864" in now.name else 1)
        earlier = (*(usual * value / 10 for value in values), now.value, now.value)
        return PastFigure(now.node, now.name, earlier, versions="torch 2.8.0")

    past = tuple(before(now) for now in figures(gate(None, nodes, **more)))
    return gate(History("/h", figures=past), nodes, **more)


def test_a_figure_that_fell_is_named_with_both_values(gate, only):
    finding, _ = only(slower(gate, 0.6))
    assert (finding.rule, finding.severity, finding.scope) == ("perf-below-history", "warning", "link")
    assert finding.nodes == ()
    assert finding.message == (
        "all_reduce of 64 MiB: 11.7 GB/s busbw on node1, node2, node3 and node4; in earlier runs the median was "
        "19.6 GB/s busbw: 40% lower"
    )
    assert finding.evidence == {
        "all_reduce of 64 MiB, GB/s busbw": "19.4, 19.7, 19.5, 19.6, 19.6, 11.7, 11.7, 11.7",
        "earlier versions": "torch 2.8.0",
    }
    finding, _ = only(slower(gate, 0.6, nodes=1))
    assert (finding.scope, finding.nodes) == ("node", ("node1",))


@pytest.mark.parametrize(
    ("backend", "share", "found"), [("nccl", 0.95, 0), ("nccl", 0.85, 1), ("gloo", 0.6, 0), ("gloo", 0.4, 1)]
)
def test_a_small_drop_is_silent_and_with_gloo_a_larger_one(gate, rules, backend, share, found):
    assert rules(slower(gate, share, backend=backend)) == ["perf-below-history"] * found


def test_figures_under_other_conditions_are_not_compared(gate, rules, change):
    job = slower(gate, 0.5)
    assert rules(job) == ["perf-below-history"]
    assert rules(change.node(job, 1, name="node7")) == []
    assert rules(gate(slower(gate, 0.5, nodes=2).history)) == []


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_gpu_whose_own_work_became_slower_is_named_with_its_rank(gate, judge, change, backend):
    def gpus(share):
        test = DeviceTest("bfloat16", 8192, 600.0 * share, 3000.0, 50.0, 50.0)
        job = gate(None, nodes=2, backend=backend)
        runs = (RankRun(n, "done", "done", device="NVIDIA H100", device_test=test) for n in range(4))
        return change.job(
            job, ranks=tuple(change.job(rank, run=run) for rank, run in zip(job.ranks, runs, strict=True))
        )

    slow, usual = gpus(0.8), [figure for figure in figures(gpus(1)) if figure.ranks]
    low = {figure.name: figure.value for figure in figures(slow)}
    past = tuple(PastFigure(f.node, f.name, (f.value,) * 7 + (low[f.name],) * 2) for f in usual if f.ranks != (3,))
    findings = judge(change.job(slow, history=History("/h", figures=past)), *OURS).findings
    assert [(f.scope, f.nodes, f.ranks) for f in findings] == [("node", ("node1",), (0, 1)), ("node", ("node2",), (2,))]
    assert findings[0].message == (
        "matrix speed of rank 0 (GPU-1-0): 480 TFLOPS on node1; in earlier runs the median was 600 TFLOPS: 20% lower"
    )
