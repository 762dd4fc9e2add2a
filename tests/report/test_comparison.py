"""What differs between two runs: findings, figures, hardware, software and variables."""

import json
from difflib import unified_diff

import msgspec
import pytest
from made import reported

from distcheck.facts.gpu import Gpus
from distcheck.report import Detail, render
from distcheck.report.comparison import Earlier, comparison, lines, title
from distcheck.report.schema.document import Document
from distcheck.rules.finding import Finding, Fix

replace = msgspec.structs.replace


def finding(rule, rank, message="m", severity="error"):
    return Finding(
        rule=rule, severity=severity, scope="rank", ranks=(rank,), nodes=("node1",), message=message, fix=Fix("f")
    )


def slower(job, factor, uncertainty=0.01):
    """Return a job whose every operation takes so much longer."""
    rows = tuple(
        replace(m, seconds_by_rank=tuple(s * factor for s in m.seconds_by_rank), uncertainty=uncertainty)
        for m in job.collectives.measurements
    )
    return replace(job, collectives=replace(job.collectives, measurements=rows))


def updated(job):
    """Return a job with another driver on the second node, another torch, and a variable of rank 3."""
    second = job.nodes[1]
    assert isinstance(second.gpus, Gpus)
    nodes = (job.nodes[0], replace(second, gpus=replace(second.gpus, driver="575.51.03")))
    processes = tuple(
        replace(p, installed=replace(p.installed, torch=replace(p.installed.torch, version="2.12.0+cu130")))
        for p in job.processes
    )
    ranks = tuple(
        replace(r, environment={**r.environment, "NCCL_DEBUG": "INFO"} if r.placement.rank == 3 else r.environment)
        for r in job.ranks
    )
    return replace(job, nodes=nodes, processes=processes, ranks=ranks)


@pytest.fixture
def compared():
    """A later run with a new, a gone and an unchanged finding, other software, and slower collectives."""
    job = reported.build(2, 8)
    old = reported.case(updated(job), finding("a", 1, "took 1 ms"), finding("b", 2), finding("i", 4, severity="info"))
    new = reported.case(slower(job, 1.25), finding("a", 1, "took 2 ms"), finding("b", 3))
    return new, comparison(Earlier("old.json", *old), *new)


def test_findings_are_new_gone_or_unchanged_by_rule_and_place(compared):
    _, found = compared
    assert [(f.rule, f.ranks) for f in found.new] == [("b", (3,))]
    assert [(f.rule, f.ranks) for f in found.gone] == [("b", (2,)), ("i", (4,))]
    assert [(f.rule, f.message) for f in found.unchanged] == [("a", "took 2 ms")], "figures in a message may differ"
    assert lines(found, everything=False) == [
        "new: error: b - rank 3 on node1: m",
        "gone: error: b - rank 2 on node1: m",
        "unchanged: error: a - rank 1 on node1: took 2 ms",
        "1 more new or gone: info findings, shown with -v",
    ]
    assert "gone: info: i - rank 4 on node1: m" in lines(found, everything=True)
    assert (found.verdict, found.exit_code) == ("job", 30)


def test_a_node_without_ranks_is_compared_with_its_earlier_self():
    job = reported.build(1, 1)
    alone = replace(job.ranks[0], placement=replace(job.ranks[0].placement, rank=None))
    job = replace(job, ranks=(alone,), asked=replace(job.asked, command="node"))
    now = replace(job, nodes=(replace(job.nodes[0], kernel="6.99"),))
    found = comparison(Earlier("old.json", *reported.case(job)), *reported.case(now))
    assert [(fact.name, fact.now) for fact in found.facts] == [("software: kernel", "6.99")]


def test_several_findings_of_a_rule_at_one_place_are_told_apart_by_their_messages():
    job = reported.build(1, 2)
    old = reported.case(job, finding("r", 1, "all_reduce took 1.5 ms"), finding("r", 1, "broadcast took 2 ms"))
    new = reported.case(job, finding("r", 1, "broadcast took 9 ms"), finding("r", 1, "all_gather took 9 ms"))
    found = comparison(Earlier("old.json", *old), *new)
    assert [[f.message for f in kind] for kind in (found.new, found.gone, found.unchanged)] == [
        ["all_gather took 9 ms"], ["all_reduce took 1.5 ms"], ["broadcast took 9 ms"],
    ]  # fmt: skip


def test_another_gpu_of_the_same_node_is_a_new_finding_and_other_words_at_one_place_are_none():
    job = reported.build(1, 2)

    def lost(gpu):
        return Finding(rule="g", scope="gpu", nodes=("node1",), message=f"GPU {gpu} of node1 is lost", fix=Fix("f"))

    def taken(pid):
        return Finding(rule="p", ranks=(0,), message=f"port 29500 is taken by process {pid}", fix=Fix("f"))

    old = reported.case(job, lost(0), taken(11))
    found = comparison(Earlier("old.json", *old), *reported.case(job, lost(0), lost(1), taken(12)))
    assert [[f.message for f in kind] for kind in (found.new, found.gone, found.unchanged)] == [
        ["GPU 1 of node1 is lost"], [], ["GPU 0 of node1 is lost", "port 29500 is taken by process 12"],
    ]  # fmt: skip
    found = comparison(Earlier("old.json", *old), *reported.case(job, lost(1)))
    assert [[f.rule for f in kind] for kind in (found.new, found.gone, found.unchanged)] == [["g"], ["g", "p"], []]


def test_figures_that_change_by_more_than_noise_are_lower_or_higher(compared):
    _, found = compared
    assert len(found.figures) == 10
    assert {f.change for f in found.figures} == {"lower"}
    assert found.figures[-1].share == pytest.approx(0.8)
    job = reported.build(2, 8)
    for factor, uncertainty, change in (
        (0.8, 0.01, "higher"),
        (1.0, 0.01, "same"),
        (1.2, 0.5, "same"),
        (0.8, 0.5, "same"),
    ):
        later = slower(job, factor, uncertainty)
        found = comparison(Earlier("x", *reported.case(slower(job, 1, uncertainty))), *reported.case(later))
        assert {f.change for f in found.figures} == {change}


def test_hardware_software_and_variables_that_differ_are_listed_with_their_ranks(compared):
    _, found = compared
    assert {(f.name, f.before, f.now) for f in found.facts} == {
        ("software: GPU driver", "580.65.06 (ranks 0-7); 575.51.03 (ranks 8-15)", "580.65.06"),
        ("software: torch", "2.12.0+cu130", "2.13.0+cu130"),
        ("variable: NCCL_DEBUG", "(not set) (ranks 0-2,4-15); INFO (rank 3)", "(not set)"),
    }


def test_a_run_compared_with_itself_differs_in_nothing():
    for made in reported.CASES.values():
        one = made()
        found = comparison(Earlier("same.json", *one), *one)
        assert (found.new, found.gone, found.facts) == ((), (), ())
        assert {f.change for f in found.figures} == {"same"}
        assert len(found.unchanged) == len(one.diagnosis.findings)


def test_variables_of_one_job_only_and_ranks_own_values_are_no_difference():
    job = reported.build(2, 8)

    def with_id(number):
        ranks = tuple(
            replace(r, environment={**r.environment, "SLURM_JOB_ID": number, "MINE": f"{number}.{r.placement.rank}"})
            for r in job.ranks
        )
        return reported.case(replace(job, ranks=ranks))

    assert comparison(Earlier("x", *with_id("1")), *with_id("2")).facts == ()


def test_a_port_of_one_job_only_and_the_numbers_of_further_ranks_are_no_difference():
    def run(ranks, port):
        job = reported.build(1, ranks)
        numbered = tuple(
            replace(
                r,
                placement=replace(r.placement, master_port=port),
                environment={
                    "RANK": str(n),
                    "LOCAL_RANK": str(n),
                    "MASTER_PORT": str(port),
                    "CUDA_VISIBLE_DEVICES": "0",
                },
            )
            for n, r in enumerate(job.ranks)
        )
        return reported.case(replace(job, ranks=numbered))

    def named(before, now):
        return {fact.name for fact in comparison(Earlier("x", *before), *now).facts}

    assert named(run(4, 29500), run(4, 29511)) == set()
    assert named(run(2, 29500), run(4, 29511)) == {"place: world size", "hardware: GPUs", "hardware: GPU firmware"}, (
        "not RANK"
    )


def test_figures_of_other_hardware_are_not_compared():
    four, two = reported.case(reported.build(4, 8)), reported.case(reported.build(2, 8))
    found = comparison(Earlier("x", *two), *four)
    assert found.figures == ()
    assert found.not_comparable == (
        "ranks on each node: 2 x 8, now 4 x 8",
        "GPUs: 16 x NVIDIA H200, now 32 x NVIDIA H200",
    )
    assert ("place: nodes", "node[1-2]", "node[1-4]") in {(f.name, f.before, f.now) for f in found.facts}


def test_runs_without_figures_are_compared_without_them():
    plain = reported.case(reported.build(2, 8, measured=False))
    found = comparison(Earlier("x", *plain), *reported.case(reported.build(4, 8)))
    assert (found.figures, found.not_comparable) == ((), ())


@pytest.mark.parametrize(("kind", "suffix"), [("text", "txt"), ("markdown", "md"), ("html", "html")])
def test_goldens_of_what_a_comparison_adds_to_a_report(kind, suffix, compared, golden):
    new, found = compared
    alone, report = (render(kind, *new, options=Detail(comparison=other)).split("\n") for other in (None, found))
    added = [line[1:] for line in unified_diff(alone, report, n=0) if line.startswith("+")]
    golden(f"compared.{suffix}", "\n".join(added[1:]) + "\n")


def test_the_comparison_is_part_of_the_document(compared):
    new, found = compared
    report = msgspec.json.decode(render("json", *new, options=Detail(comparison=found)), type=Document, strict=True)
    assert report.comparison == found
    assert json.loads(render("json", *new))["comparison"] is None


def test_the_title_counts_what_differs(compared):
    assert title(compared[1]) == (
        "compared with old.json (exit code 30 then): findings: 1 new, 2 gone, 1 unchanged; figures: 10 lower, 0 higher"
        ", 0 the same within noise; facts: 3 different"
    )
