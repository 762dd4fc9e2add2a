"""The rules about training steps, on steps of any number of ranks."""

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives
from distcheck.facts.rank import RankRun
from distcheck.facts.training import Parameter, Training, WrongTensor

replace = msgspec.structs.replace
STEP = ("collectives.step_results",)
WRONG = (WrongTensor("a.weight", 1, 64, 3, "5", "2.5"), WrongTensor("a.bias", 1, 8, 8, "nan", "1"))


HEALTHY = Training(
    "float32",
    (Parameter("a.weight", "w0", ("x0", "y0")), Parameter("a.bias", "w1", ("x1", "y1"))),
    steps=2,
    due=2,
)


@pytest.fixture
def job(job_of, change):
    """Return a function that makes a job of a rank on each node; `odd` changes the training of some."""

    def made(ranks=4, odd=(), outcome="done", **asked):
        job = job_of(ranks, 1, looks=("environment", "meeting", "training"), **asked)
        for number in range(ranks):
            training = dict(odd).get(number, lambda t: t)(HEALTHY)
            kept = {} if training is None else {"DDP": training}
            job = change.rank(job, number, run=RankRun(1, "done", outcome, training=kept))
        return job

    return made


def with_parameter(training, **fields):
    first, *rest = training.parameters
    return replace(training, parameters=(replace(first, **fields), *rest))


ODD = {
    "step-gradient-wrong": lambda t: replace(t, wrong_own=WRONG, wrong_average=WRONG),
    "step-parameters-differ": lambda t: with_parameter(t, stepped=("x0", "z0")),
}


def test_healthy_steps_are_silent(job, judge):
    for ranks in (1, 2, 4):
        said = judge(job(ranks), *STEP)
        assert not said.findings
        assert not said.not_checked


@pytest.mark.parametrize("rule", ODD)
def test_the_one_odd_rank_of_four_is_confirmed_bad(job, judge, rule):
    said = judge(job(4, {2: ODD[rule]}), *STEP)
    assert [(f.rule, f.ranks, f.nodes, f.confirmed) for f in said.findings] == [(rule, (2,), ("node3",), True)]
    assert said.verdict.exit_code == 40


def test_of_two_ranks_that_differ_neither_is_blamed(job, judge):
    said = judge(job(2, {1: ODD["step-parameters-differ"]}), *STEP)
    assert [(f.rule, f.ranks, f.confirmed) for f in said.findings] == [("step-parameters-differ", (0, 1), False)]
    assert said.verdict.exit_code == 20


def test_the_numbers_of_a_wrong_gradient_are_in_the_message_and_those_of_each_tensor_in_the_evidence(job, judge):
    (finding,) = judge(job(4, {1: lambda t: replace(t, wrong_average=WRONG, share=0.5)}), *STEP).findings
    assert finding.message == (
        "the gradient of rank 1 (node2) has the factor 0.5 instead of 1 in the average for DDP: 3 of 64 elements of "
        "a.weight in step 1, the first 5 instead of 2.5"
    )
    assert "8 of 8 elements of a.bias in step 1, the first nan instead of 1" in finding.evidence["rank 1"]


def test_a_wrong_average_that_no_rank_explains_blames_nobody(job, judge):
    everywhere = {n: lambda t: replace(t, wrong_average=WRONG) for n in range(4)}
    (finding,) = judge(job(4, everywhere), *STEP).findings
    assert (finding.rule, finding.ranks, finding.scope, finding.confirmed) == (
        "step-gradient-wrong", (0, 1, 2, 3), "link", False,
    )  # fmt: skip
    (finding,) = judge(job(4, {3: everywhere[3]}), *STEP).findings
    assert (finding.ranks, finding.scope, finding.confirmed) == ((3,), "node", False)


def test_steps_that_were_requested_and_not_taken_are_required(job, judge):
    late = Missing(reason="less than 8 s of the time limit were left")
    said = judge(job(4, {n: lambda _: late for n in range(4)}), *STEP)
    assert {(n.rule, n.required, n.reason) for n in said.not_checked} == {
        ("step-gradient-wrong", True, f"--step: DDP: {late.reason}")
    }
    assert said.verdict.exit_code == 20
    assert judge(job(2, {0: lambda _: None, 1: lambda _: None}), *STEP).verdict.exit_code == 20


def test_averages_that_all_ranks_have_with_the_same_factor_are_a_fault_of_the_job(job, judge):
    undivided = {n: lambda t: replace(t, wrong_average=WRONG, scale=4.0) for n in range(4)}
    said = judge(job(4, undivided), *STEP)
    assert [(f.rule, f.scope, f.severity) for f in said.findings] == [("step-average-scaled", "job", "error")]
    assert "4 times the average on all 4 ranks; they are summed and not divided" in said.findings[0].message
    assert said.verdict.exit_code == 30
    undivided[2] = lambda t: replace(t, wrong_average=WRONG, scale=3.0)
    assert [f.rule for f in judge(job(4, undivided), *STEP).findings] == ["step-gradient-wrong"]


def test_gloo_that_sums_for_fsdp2_is_a_warning(job, judge):
    old = job(2, {n: lambda t: replace(t, wrong_average=WRONG, scale=2.0) for n in range(2)})
    ranks = (replace(r, run=replace(r.run, training={"FSDP2": r.run.training["DDP"]})) for r in old.ranks)
    ran = replace(old, ranks=tuple(ranks), collectives=Collectives("gloo", torch="2.7.1"))
    (finding,) = judge(ran, *STEP).findings
    assert (finding.rule, finding.severity) == ("step-average-scaled", "warning")
    assert "2.7.1" in finding.fix.text


def test_a_torch_without_a_way_to_train_is_listed_and_passes(job, judge):
    old = job(2)
    lack = Missing(reason="torch 2.3.1 has no fully_shard; 2.6 and later have it")
    ranks = (replace(r, run=replace(r.run, training={**r.run.training, "FSDP2": lack})) for r in old.ranks)
    said = judge(replace(old, ranks=tuple(ranks)), *STEP)
    assert [(n.required, n.ranks) for n in said.not_checked] == [(False, (0, 1))]
    assert said.verdict.exit_code == 0


def test_a_job_of_many_ranks_gives_one_finding_for_all_that_differ(job, judge):
    odd = {n: lambda t, n=n: with_parameter(t, stepped=("x0", f"z{n}")) for n in range(40, 64)}
    (finding,) = judge(job(64, odd), *STEP).findings
    assert finding.ranks == tuple(range(40, 64))
    assert len(finding.evidence) == 8


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        ("DDP step 1", "DDP step 2"),
        ("DDP step 2", "FSDP2 model"),
        ("import", "DDP model"),
    ],
)
def test_a_rank_that_hangs_in_a_training_step_is_named(job_of, change, judge, behind, ahead):
    job = job_of(4, 1, looks=("environment", "meeting", "collectives", "training"))
    for number in range(4):
        run = RankRun(1, f"training step: {behind if number == 2 else ahead}", "stalled")
        job = change.rank(job, number, run=run)
    job = change.job(job, collectives=Collectives("gloo", ended="time limit reached"))
    said = judge(job, "collectives.outcome")
    assert [(f.rule, f.ranks) for f in said.findings] == [("collective-stalled", (2,))]
