"""Which case is repeated when collectives fail."""

from __future__ import annotations

import pytest
from made.jobs import change_rank, healthy_job
from msgspec.structs import replace

from distcheck.collectives.plan import Plan
from distcheck.expectation.baseline import of
from distcheck.facts.isolation import CulpritFacts, GroupTest, Isolation, Suspects
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.mesh import Mesh
from distcheck.facts.rank import RankRun
from distcheck.rules.diagnose import diagnose
from distcheck.run.repeat import failed_part, slow_figure, slow_part, smallest_case, worth_repeating

PLAN = Plan("gloo", ("all_reduce", "broadcast"), (1 << 20, 4 << 20), 60.0, dtypes=("float32", "bfloat16"))
DONE = RankRun(pid=1, step="done", outcome="done")


@pytest.fixture
def ended():
    """Return a measured job of four ranks, of which rank 1 ended so."""

    def ended(run):
        job = healthy_job(2, 2, looks=("environment", "meeting", "collectives"), command="bandwidth")
        job = replace(job, collectives=Collectives("gloo", "2.13.0", ""))
        return change_rank(change_rank(job, None, run=DONE), 1, run=run)

    return ended


def run(outcome, step="check all_reduce", **more):
    return RankRun(pid=1, step=step, outcome=outcome, **more)


@pytest.mark.parametrize(
    "how",
    [
        run("failed", detail="RuntimeError: Connection closed by peer"),
        run("stalled"),
        run("done", wrong={"all_reduce": 3}),
        run("died", detail="was killed by SIGSEGV"),
    ],
    ids=["failed", "stalled", "wrong", "crashed"],
)
def test_a_rank_that_a_setting_may_help_is_worth_it(ended, how):
    assert worth_repeating(ended(how))


@pytest.mark.parametrize(
    "how",
    [
        DONE,
        run("stopped"),
        run("not started"),
        run("died", detail="was killed by SIGKILL"),
        run("failed", detail="unavailable: no NCCL in this torch"),
        run("stalled", "dp: check all_reduce", place=2),
        run("done", wrong={"all_reduce": 0, "all_reduce in dp": 3}),
    ],
    ids=["healthy", "stopped", "not started", "killed", "no backend", "in a group", "wrong in a group"],
)
def test_a_rank_that_no_setting_helps_is_not(ended, how):
    assert not worth_repeating(ended(how))


@pytest.mark.parametrize(
    ("step", "part"),
    [
        ("process group", ("all_reduce", "float32", 1 << 20)),
        ("check broadcast", ("broadcast", "float32", 1 << 20)),
        ("all_reduce 4194304 B", ("all_reduce", "float32", 4 << 20)),
        ("broadcast bfloat16 1048576 B", ("broadcast", "bfloat16", 1 << 20)),
    ],
)
def test_only_the_first_part_of_the_plan_that_failed_is_repeated(ended, step, part):
    cut = failed_part(PLAN, ended(run("stalled", step)))
    assert (cut.operations, cut.dtypes, cut.sizes_bytes) == tuple((value,) for value in part)


def test_a_repetition_has_no_groups(ended):
    assert failed_part(replace(PLAN, mesh=Mesh({"dp": 2})), ended(run("stalled"))).mesh is None


def test_the_operation_with_wrong_numbers_is_repeated(ended):
    assert failed_part(PLAN, ended(run("done", "done", wrong={"broadcast": 2}))).operations == ("broadcast",)


def test_the_smallest_group_that_failed_is_repeated(ended):
    pair = GroupTest(2, ("node1", "node2"), "pair", "hung")
    passed = GroupTest(1, ("node1",), "alone", "passed")
    job = ended(run("stalled"))
    assert smallest_case(job, ("node1", "node2", "node3")) == ("node1", "node2", "node3")
    undecided = Isolation("undecided", "", undecided=(Suspects(("node1", "node2"), (passed, pair), ""),))
    assert smallest_case(replace(job, isolation=undecided), ("node1", "node2", "node3")) == ("node1", "node2")
    alone = GroupTest(1, ("node2",), "alone", "wrong")
    bad = CulpritFacts("node", ("node2",), (), "wrong", True, (pair, alone), "")  # noqa: FBT003 a field
    assert smallest_case(replace(job, isolation=Isolation("found", "", (bad,))), ("node1", "node2")) == ("node2",)


@pytest.fixture
def measured(ended):
    """Return a job whose all_reduce of 4 MiB reaches a bus bandwidth, with what was asked for besides."""

    def measured(busbw, **asked):
        seconds = 1.5 * (4 << 20) / busbw / 1e9
        rows = tuple(
            Measurement("all_reduce", size, "float32", 5, (seconds * size / (4 << 20),) * 4, uncertainty=0.01)
            for size in (1 << 20, 4 << 20)
        )
        job = ended(DONE)
        return replace(
            job,
            asked=replace(job.asked, operations=("all_reduce",), sizes_bytes=(1 << 20, 4 << 20), **asked),
            collectives=replace(job.collectives, measurements=rows),
        )

    return measured


def test_a_figure_below_what_is_required_is_repeated(measured):
    row = slow_figure(measured(0.4, min_busbw_GBps=0.5))
    assert (row.op, row.bytes) == ("all_reduce", 4 << 20)
    cut = slow_part(replace(PLAN, size_seconds=0.6), row)
    assert (cut.operations, cut.sizes_bytes, cut.size_seconds) == (("all_reduce",), (4 << 20,), 0.6)


@pytest.mark.parametrize(("share", "repeated"), [(0.5, True), (0.85, False)])
def test_a_figure_that_is_only_a_little_lower_than_before_delays_no_job(measured, share, repeated):
    before = of(measured(0.4), "before.json")
    now = measured(0.4 * share, baseline=before)
    assert [f.rule for f in diagnose(now, select=["perf-below-baseline"]).findings] == ["perf-below-baseline"]
    assert (slow_figure(now) is not None) == repeated


def test_a_figure_that_suffices_or_is_compared_with_nothing_is_not(measured):
    assert slow_figure(measured(0.6, min_busbw_GBps=0.5)) is None
    assert slow_figure(measured(0.001)) is None
