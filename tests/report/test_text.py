import re

import msgspec
import pytest
from made import reported
from made.jobs import healthy_job

from distcheck.facts.asked import Asked
from distcheck.facts.job import Collectives, Measurement
from distcheck.report import Detail, render
from distcheck.report.document import document
from distcheck.report.plain import ascii_only, bar
from distcheck.rules.finding import Finding, Fix, NotChecked


def text(judged, **options):
    return render("text", *judged, options=Detail(**options))


@pytest.mark.parametrize("name", ["failing", "empty", "missing", "single", "hostile"])
def test_goldens(name, request, golden):
    golden(f"{name}.txt", text(request.getfixturevalue(name)))


def test_golden_with_everything(failing, golden):
    golden("failing-everything.txt", text(failing, verbose=True, all_ranks=True, legend=True, timings=True))


def test_golden_timings(healthy, golden):
    golden("healthy-timings.txt", text(healthy, timings=True))


def rank_table(report):
    """Return the rows of the table of ranks, as lists of cells."""
    lines = report[re.search(r"(?m)^ *rank  ", report).start() :]
    return [re.split(r"  +", line.strip()) for line in lines.split("\n\n")[0].splitlines()[2:]]


def test_every_rank_has_a_row_up_to_16(job_of, judge):
    rows = rank_table(text(judge(job_of(2, 8))))
    assert [row[0] for row in rows] == list(map(str, range(16)))


def test_beyond_16_ranks_healthy_ones_are_folded_over_their_nodes(job_of, judge):
    assert rank_table(text(judge(job_of(128, 8))))[0] == [
        "0-1023", "node[001-128]", "0-7", "1024 x NVIDIA H200", "listening, reached", "done", "ok",
    ]  # fmt: skip


def test_ranks_with_a_problem_stand_before_the_folded_ones(job_of, judge):
    bad = Finding(rule="r", ranks=(17,), message="m", fix=Fix("f"))
    report = text(judge(job_of(5, 8), bad))
    rows = rank_table(report)
    assert rows[0] == ["17", "node3", "1", "1 0000:11:00.0 GPU-node3-1", "reached", "done", "error"]
    assert rows[1][:3] == ["0-16,18-39", "node[1-5]", "0-7"]
    assert "ranks are folded; --all-ranks shows a row for each" in report
    assert len(rank_table(text(judge(job_of(5, 8), bad), all_ranks=True))) == 40


def test_many_ranks_with_a_problem_are_folded_by_node_and_beyond_that_by_status(job_of, judge):
    bad = Finding(rule="r", ranks=tuple(range(8, 32)), message="m", fix=Fix("f"))
    rows = rank_table(text(judge(job_of(5, 8), bad)))
    assert [(row[0], row[1], row[-1]) for row in rows[:4]] == [
        ("8-15", "node2", "error"), ("16-23", "node3", "error"), ("24-31", "node4", "error"),
        ("0-7,32-39", "node[1,5]", "ok"),
    ]  # fmt: skip
    many = Finding(rule="r", ranks=tuple(range(800)), message="m", fix=Fix("f"))
    rows = rank_table(text(judge(job_of(128, 8), many)))
    assert [(row[0], row[1], row[-1]) for row in rows[:2]] == [
        ("0-799", "node[001-100]", "error"), ("800-1023", "node[101-128]", "ok")
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_tables_and_prose_fit_the_terminal(width):
    for made in reported.CASES.values():
        lines = text(made(), width=width).splitlines()
        rules = [line for line in lines if set(line) == {"-", " "}]
        assert rules
        assert max(map(len, rules)) <= width


@pytest.mark.parametrize("width", [80, 100])
def test_on_a_terminal_lines_wrap_at_words_and_elsewhere_the_first_line_is_one(failing, width):
    for judged in (failing, *(made() for made in reported.CASES.values())):
        lines = text(judged, width=width, terminal=True).splitlines()
        long = [line for line in lines if len(line) > width and " " in line.strip()]
        assert all(line.startswith(" " * 6) for line in long), "only a command is as long as it is"
        assert " ".join(" ".join(lines).split()).startswith(document(*judged).headline)
        assert text(judged, width=width).splitlines()[0] == document(*judged).headline


def test_a_narrow_terminal_leaves_out_the_columns_that_matter_least():
    wide, narrow = text(reported.healthy(), width=200), text(reported.healthy(), width=80)
    assert re.search(r"algbw GB/s  busbw GB/s +expected  share  mean ms +±  min ms  max ms  slowest rank", wide)
    assert "too narrow" not in wide
    assert re.search(r"busbw GB/s  expected  share  mean ms +±  wrong", narrow)
    assert "too narrow for: algbw GB/s, bar, min ms, max ms, slowest rank (-v shows all\n  columns)" in narrow
    assert "too narrow" not in text(reported.healthy(), width=80, verbose=True)


def test_a_bar_is_as_long_as_the_share_of_the_highest_bandwidth():
    assert [bar(share) for share in (0, 0.05, 0.5, 1, 2)] == ["", "▌", "█████", "█" * 10, "█" * 10]
    lines = [line for line in text(reported.healthy()).splitlines() if line.startswith("all_reduce ")]
    lengths = [line.count("█") for line in lines if " MiB " in line]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (1, 10)


def test_without_utf_8_the_report_is_ascii(hostile):
    for made in (reported.healthy(), reported.messy(), hostile):
        assert ascii_only(text(made, verbose=True)).isascii()
    plain = ascii_only(text(reported.healthy()))
    assert "##########" in plain
    assert " +-" in plain


def test_findings_come_before_tables_but_on_a_pass(any_job):
    report = text(any_job)
    found, table = (re.search(word, report) for word in (r"(?m)^(error|warning): ", r"(?m)^ *rank  "))
    assert not (found and table) or found.start() < table.start()
    passed = text(reported.CASES["cpu"]())
    assert passed.index("\nrank  ") < passed.index("\nnot checked")


def test_evidence_that_only_repeats_the_message_is_left_out(job_of, judge):
    found = Finding(
        rule="r", ranks=(1,), message="rank 1 sees MTU 1500 on eth0; others 9000", fix=Fix("f"),
        evidence={"mtu": 1500, "interface": "eth0", "all": [1500, 9000], "driver": "mlx5", "rank": 15, "up": True},
    )  # fmt: skip
    report = text(judge(job_of(1, 2), found))
    assert "    driver: mlx5\n    rank: 15\n    up: True\n" in report
    assert "mtu:" not in report
    assert "interface:" not in report
    assert "all:" not in report
    assert "    mtu: 1500\n    interface: eth0\n    all: 1500, 9000\n" in text(judge(job_of(1, 2), found), verbose=True)


def test_the_same_message_on_many_ranks_is_shown_once(job_of, judge):
    many = [Finding(rule="r", ranks=(n,), message="same", fix=Fix("f")) for n in range(8)]
    report = text(judge(job_of(1, 8), *many))
    assert report.count("  same\n") == 1
    assert report.count("fix: f") == 1
    assert "error: r - ranks 0-7\n" in report


def test_many_messages_of_a_rule_are_counted(job_of, judge):
    many = [Finding(rule="r", ranks=(n,), message=f"message {n}", fix=Fix("f")) for n in range(20)]
    judged = judge(job_of(1, 2), *many)
    assert text(judged).count("  message ") == 8
    assert "and 12 more like these" in text(judged)
    assert text(judged, verbose=True).count("  message ") == 20


def test_quiet_shows_findings_and_the_verdict_line(failing):
    report = text(failing, quiet=True)
    assert report.startswith("FAIL: ranks 16 and 17 both run on ")
    assert report.splitlines()[2].startswith("error: gpu-duplicate")
    assert "not checked\n" not in report
    assert report.splitlines()[-1].startswith("FAIL: ranks 16 and 17 both run on ")


def test_a_meeting_place_that_distcheck_derived_is_named_in_front_of_a_command(job_of, judge):
    change = msgspec.structs.replace
    job = job_of(2, 1)
    job = change(job, asked=change(job.asked, program="python"))
    place = change(job.ranks[0].placement, master_derived=True, master_addr="node1", master_port=20042)
    derived = change(job, ranks=(change(job.ranks[0], placement=place), *job.ranks[1:]))
    passed_on = change(derived, asked=change(derived.asked, export=True))
    line = "tested at node1:20042, which COMMAND does not name; it may meet elsewhere\n"
    assert [line in text(judge(each)) for each in (derived, job, passed_on)] == [True, False, False]


def test_quiet_shows_one_line_of_a_job_that_passes(job_of, judge):
    assert (
        text(judge(job_of(2, 2)), quiet=True)
        == "PASS: 4 ranks on 2 nodes; all_reduce 552.6, broadcast 311.6 GB/s at 256 MiB. exit code 0\n"
    )


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_quiet_shows_what_makes_the_verdict_unknown(job_of, judge, name):
    gaps = (
        NotChecked(rule="coll-hang", reason="the collectives were not started"),
        NotChecked(rule="nccl-slow", reason="no expectation is known", required=False),
    )
    bad = Finding(rule="r", scope="job", message="m", fix=Fix("f"))
    unknown, failed = (render(name, *judge(job_of(1, 2), *o), options=Detail(quiet=True)) for o in (gaps, (bad, *gaps)))
    assert "the collectives were not started" in unknown
    assert "no expectation is known" not in unknown
    assert "UNKNOWN: the collectives were not started. " in unknown.replace("\\", "")
    assert "the collectives were not started" not in failed, "the finding decides"


def test_the_default_number_of_ranks_is_reported(single):
    asked = Asked("gate", (), started_here=True, by_default=True)
    job = msgspec.structs.replace(single.job, asked=asked)
    assert "No rank count given; using 2 local Gloo ranks." in text((job, single.diagnosis))
    job = msgspec.structs.replace(healthy_job(1, 4, gpus=4), asked=asked)
    assert "No rank count given; using 4 local ranks, one per GPU." in text((job, single.diagnosis))


def test_only_severities_and_the_verdict_are_coloured(failing):
    colored = text(failing, color=True)
    assert "\x1b[1;31merror\x1b[0m: gpu-duplicate" in colored
    assert "\x1b[1;31mFAIL\x1b[0m: ranks 16 " in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == text(failing)


def test_nothing_hostile_reaches_the_terminal(hostile):
    report = text(hostile, verbose=True, timings=True)
    assert all(line.isprintable() for line in report.split("\n"))
    assert not any(line.startswith("::") for line in report.splitlines())
    assert "\\x1b[31mred" in report


def test_times_rank_by_rank_up_to_16_ranks(job_of, judge):
    assert "Time per operation on each rank" in text(judge(job_of(2, 8)))
    assert "Time per operation on each rank" not in text(judge(job_of(2, 9)))
    assert "Time per operation on each rank" in text(judge(job_of(2, 9)), all_ranks=True)


def test_expectations_groups_and_an_early_end_are_shown(job_of, judge):
    job = msgspec.structs.replace(
        job_of(1, 2),
        asked=Asked("bandwidth", (), min_busbw_GBps=2.0),
        collectives=Collectives(
            "gloo", ended="the deadline came",
            measurements=(
                Measurement("all_reduce", 1000, "float32", 5, (1e-6, 1e-6)),
                Measurement("all_reduce", 1000, "float32", 5, (1e-6, 2e-6), group="pair"),
            ),
        ),
    )  # fmt: skip
    report = text(judge(job))
    assert re.search(r"all_reduce +world +1000 B +1\.00 +1\.00 +█+ +2\.00 +50%", report)
    assert re.search(r"all_reduce +pair .* #1 ", report)
    assert "ended early: the deadline came" in report


def test_what_was_not_checked_is_grouped_by_reason(job_of, judge):
    gaps = [NotChecked(rule=f"gpu-{n}", reason="no NVML", required=False) for n in range(30)]
    report = text(judge(job_of(1, 1), *gaps))
    assert report.count("no NVML") == 1
    assert "30 rules not checked" in report
