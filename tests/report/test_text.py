import re

import msgspec
import pytest

from distcheck.facts.job import Asked, Collectives, Measurement
from distcheck.facts.rank import RankRun
from distcheck.facts.training import Parameter, Training
from distcheck.report import Detail, render
from distcheck.rules.finding import Finding, Fix, NotChecked


def text(judged, **options):
    return render("text", *judged, options=Detail(**options))


@pytest.mark.parametrize("name", ["healthy", "failing", "empty", "missing", "single", "hostile"])
def test_goldens(name, request, golden):
    golden(f"{name}.txt", text(request.getfixturevalue(name)))


def test_golden_with_everything(failing, golden):
    golden("failing-everything.txt", text(failing, verbose=True, all_ranks=True, legend=True, timings=True))


def test_golden_timings(healthy, golden):
    golden("healthy-timings.txt", text(healthy, timings=True, legend=True))


def test_every_rank_has_a_row_up_to_32(job_of, judge):
    assert "not shown" not in text(judge(job_of(4, 8)))
    assert len(re.findall(r"(?m)^ +\d+ +node\d", text(judge(job_of(4, 8))))) == 32


def test_beyond_32_ranks_only_bad_ones_and_the_ends_have_a_row(job_of, judge):
    bad = Finding(rule="r", ranks=(17,), message="m", fix=Fix("f"))
    judged = judge(job_of(5, 8), bad)
    shown = re.findall(r"(?m)^ +(\d+) +node\d", text(judged))
    assert shown == ["0", "1", "2", "17", "37", "38", "39"]
    assert "not shown (use --all-ranks): 33 ok (3-16,18-36)" in text(judged)
    assert len(re.findall(r"(?m)^ +\d+ +node\d+ +\d", text(judged, all_ranks=True))) == 40


def test_commands_are_not_wrapped(failing):
    command = failing.diagnosis.findings[0].fix.commands[0]
    assert [line.strip() for line in text(failing).splitlines()].count(command) == 1


def test_the_same_message_on_many_ranks_is_shown_once(job_of, judge):
    many = [Finding(rule="r", ranks=(n,), message="same", fix=Fix("f")) for n in range(8)]
    report = text(judge(job_of(1, 8), *many))
    assert report.count("same") == 1
    assert report.count("fix: f") == 1
    assert "error: r - ranks 0-7\n" in report


def test_many_messages_of_a_rule_are_counted(job_of, judge):
    many = [Finding(rule="r", ranks=(n,), message=f"message {n}", fix=Fix("f")) for n in range(20)]
    judged = judge(job_of(1, 2), *many)
    assert text(judged).count("message ") == 8
    assert "and 12 more like these" in text(judged)
    assert text(judged, verbose=True).count("message ") == 20


def test_info_findings_are_shown_with_verbose_only(failing):
    assert "NCCL_DEBUG" not in text(failing)
    assert "info: env-nccl-set" in text(failing, verbose=True)


def test_quiet_shows_findings_and_the_verdict_line(failing):
    report = text(failing, quiet=True)
    assert report.startswith("error: gpu-duplicate")
    assert "not checked\n" not in report
    assert report.splitlines()[-1].startswith("FAIL (job configuration): exit code 30. ")


def test_the_default_of_two_ranks_is_reported(single):
    job = msgspec.structs.replace(single.job, asked=Asked("gate", (), started_here=True, by_default=True))
    assert "No rank count given; using 2 local Gloo ranks." in text((job, single.diagnosis))


def test_only_severities_and_the_verdict_are_coloured(failing):
    colored = text(failing, color=True)
    assert "\x1b[1;31merror\x1b[0m: gpu-duplicate" in colored
    assert "\x1b[1;31mFAIL (job configuration)\x1b[0m: exit code 30. " in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == text(failing)


def test_the_report_is_deterministic(any_job):
    assert text(any_job) == text(any_job)
    assert "\x1b" not in text(any_job)
    assert text(any_job).endswith("s\n")


def test_nothing_hostile_reaches_the_terminal(hostile):
    report = text(hostile, verbose=True, timings=True)
    assert all(line.isprintable() for line in report.split("\n"))
    assert not any(line.startswith("::") for line in report.splitlines())
    assert "\\x1b[31mred" in report


def test_times_rank_by_rank_up_to_16_ranks(job_of, judge):
    assert "time per operation on each rank" in text(judge(job_of(2, 8)))
    assert "time per operation on each rank" not in text(judge(job_of(2, 9)))
    assert "time per operation on each rank" in text(judge(job_of(2, 9)), all_ranks=True)


def test_expectations_groups_and_an_early_end_are_shown(job_of, judge):
    job = msgspec.structs.replace(
        job_of(1, 2),
        asked=Asked("bandwidth", (), min_busbw_GBps=2.0),
        collectives=Collectives(
            "gloo", "", ended="the deadline came",
            measurements=(
                Measurement("all_reduce", 1000, "float32", 5, (1e-6, 1e-6)),
                Measurement("all_reduce", 1000, "float32", 5, (1e-6, 2e-6), group="pair"),
            ),
        ),
    )  # fmt: skip
    report = text(judge(job))
    assert re.search(r"all_reduce +world +1000 B +1\.00 +1\.00 +2\.00 +50%", report)
    assert re.search(r"all_reduce +pair .* #1 ", report)
    assert "ended early: the deadline came" in report


def test_what_was_not_checked_is_grouped_by_reason(job_of, judge):
    gaps = [NotChecked(rule=f"gpu-{n}", reason="no NVML", required=False) for n in range(30)]
    report = text(judge(job_of(1, 1), *gaps))
    assert report.count("no NVML") == 1
    assert "30 rules not checked" in report


def test_a_run_with_training_steps_says_what_they_covered(healthy):
    training = Training("float32", parameters=(Parameter("a", "8", "b"),) * 6, steps=2, due=2)
    runs = (RankRun(1, "done", "done", training={"DDP": training}) for _ in healthy.job.ranks)
    ranks = tuple(msgspec.structs.replace(r, run=run) for r, run in zip(healthy.job.ranks, runs, strict=True))
    said = render("text", msgspec.structs.replace(healthy.job, ranks=ranks), healthy.diagnosis)
    assert f"training with DDP: 2 steps on {len(ranks)} ranks, 6 tensors in float32 compared bit by bit" in said
