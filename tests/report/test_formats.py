"""All formats; those other than text and JSON in detail."""

import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import msgspec
import pytest
from made import reported

from distcheck.report import FORMATS, Detail, junit, render
from distcheck.rules import Rule
from distcheck.rules.finding import Finding, Fix, NotChecked


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_renders_every_job(name, any_job):
    for options in (
        Detail(),
        Detail(all_ranks=True, legend=True, timings=True, verbose=True),
        Detail(quiet=True),
    ):
        text = render(name, *any_job, options=options)
        assert text.endswith("\n")
        assert text == render(name, *any_job, options=options)
        assert all(line.isprintable() for line in text.split("\n")) or name == "json"
        assert text.encode()


@pytest.mark.parametrize("name", ["text", "markdown", "html", "junit"])
@pytest.mark.parametrize(
    ("fixture", "beginning"),
    [("healthy", "PASS: 8 ranks on 2 nodes"), ("failing", "FAIL: ranks 16 and 17 both run on GPU-node2-0")],
)
def test_the_verdict_line_can_be_searched_for(name, fixture, beginning, request):
    plain = re.sub(
        r"(?m)^## |</?(h1|system-out)[^>]*>", "", render(name, *request.getfixturevalue(fixture)).replace("\\", "")
    )
    assert [line.strip() for line in plain.splitlines() if line.strip().startswith(beginning)], name


def test_an_unknown_format_is_refused(empty):
    with pytest.raises(ValueError, match="unknown format 'yaml'; choose one of text, json"):
        render("yaml", *empty)


@pytest.mark.process
def test_only_the_requested_format_is_imported():
    heavy = "{'tabulate', 'jinja2', 'ClusterShell'}"
    code = f"import sys, distcheck.report.json; print(*sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize(
    ("kind", "suffix"), [("text", "txt"), ("junit", "xml"), ("prometheus", "prom"), ("markdown", "md")]
)
@pytest.mark.parametrize("name", reported.CASES)
def test_goldens_of_four_jobs(kind, suffix, name, golden):
    golden(f"{name}-job.{suffix}", render(kind, *reported.CASES[name]()))


def test_junit_has_a_suite_for_the_job_and_one_for_each_node_named(failing):
    root = ET.fromstring(render("junit", *failing))
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["job", "node2", "node3"]
    outcomes = {case.get("name"): [part.tag for part in case] for case in suites["job"].findall("testcase")}
    assert outcomes == {
        "net-mtu-differs": ["system-out"],
        "env-nccl-set": ["system-out"],
        "nccl-slow": ["skipped"],
        "coll-wrong-result": ["error"],
        "coll-hang": ["error"],
        "env-rank-unset": [],
        "probe-rule-crashed": [],
    }
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9", "failures": "2", "errors": "2", "skipped": "1",
    }  # fmt: skip
    assert suites["node3"].find("testcase/failure").get("message") == "GPU 0 of node3 fell off the bus"
    assert suites["job"].find("properties/property[@name='exit_code']").get("value") == "30"


@pytest.mark.parametrize(
    ("look", "gpus", "asked", "reason"),
    [
        ("meeting", False, {}, ""),
        ("meeting", False, {"ignore": ("r",)}, "left out by --select or --ignore"),
        ("meeting", False, {"select": ("other",)}, "left out by --select or --ignore"),
        ("gpu", True, {}, ""),
        ("gpu", False, {}, "no node has a GPU"),
    ],
)
def test_junit_skips_rules_that_did_not_run(job_of, look, gpus, asked, reason):
    job = job_of(1, 2, gpus=gpus, measured=False)
    job = msgspec.structs.replace(job, asked=msgspec.structs.replace(job.asked, **asked))
    rule = Rule("r", "probe", look, (), lambda _job: iter(()))
    assert junit._why_not_run(job, rule, {"r"}) == reason
    assert junit._why_not_run(job, rule, ()) == (reason or "no rank has a variable that it judges")


def test_junit_leaves_out_rules_that_do_not_apply(empty):
    root = ET.fromstring(render("junit", *empty))
    assert [case.get("name") for case in root.iter("testcase")] == ["env-rank-unset", "probe-rule-crashed"]


def test_junit_with_findings_on_many_nodes_stays_small(job_of, judge):
    names = tuple(f"node{n}" for n in range(1024))
    wide = Finding(rule="r", nodes=names, ranks=tuple(range(8192)), message="m", fix=Fix("f"))
    assert len(render("junit", *judge(job_of(1, 1), wide))) < 1024 * 400


LINE = re.compile(r'[a-zA-Z_]\w*(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? [-+.\de]+|# (HELP|TYPE) .+')


def test_prometheus_follows_the_exposition_format(any_job):
    text = render("prometheus", *any_job)
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))


def test_markdown_escapes_html_and_markup(hostile):
    text = render("markdown", *hostile, options=Detail(verbose=True))
    outside = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text)
    assert re.findall(r"(?<!\\)<[a-z/]+", outside) == ["<details", "<summary", "</summary", "</details"]
    assert not re.search(r"(?<!\\)`tick", outside)
    rows = [line for line in outside.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {5, 8}


def test_markdown_fences_are_longer_than_backticks_inside(job_of, judge):
    ticks = Finding(rule="r", message="m", fix=Fix("f", ("echo ````", "true")))
    assert "`````sh\necho ````\ntrue\n`````" in render("markdown", *judge(job_of(1, 1), ticks))


def test_required_gaps_are_distinguished_from_optional_ones(job_of, judge):
    judged = judge(job_of(1, 1), NotChecked(rule="a", reason="x"), NotChecked(rule="b", reason="y", required=False))
    assert "| x | yes | a |" in render("markdown", *judged)
    assert "| y | no | b |" in render("markdown", *judged)
