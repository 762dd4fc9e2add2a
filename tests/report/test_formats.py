"""All formats; those other than text and JSON in detail."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import pytest

from distcheck.facts.job import Collectives, Measurement
from distcheck.report import FORMATS, Detail, render
from distcheck.report.document import document
from distcheck.report.html import chart, marked
from distcheck.rules.finding import Finding, Fix, NotChecked

VOID = {"meta"}


class Tags(HTMLParser):
    """Checks that tags are balanced and remembers them."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


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
    [("healthy", "PASS: exit code 0. "), ("failing", "FAIL (job configuration): exit code 30. ")],
)
def test_the_verdict_line_can_be_searched_for(name, fixture, beginning, request):
    plain = re.sub(r"</?(p|b|system-out)>", "", render(name, *request.getfixturevalue(fixture)).replace("\\", ""))
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
    ("kind", "suffix"), [("html", "html"), ("junit", "xml"), ("prometheus", "prom"), ("markdown", "md")]
)
@pytest.mark.parametrize("name", ["healthy", "failing"])
def test_goldens(kind, suffix, name, request, golden):
    golden(f"{name}.{suffix}", render(kind, *request.getfixturevalue(name)))


def test_html_is_balanced_and_loads_nothing_from_the_network(any_job):
    page = render("html", *any_job, options=Detail(verbose=True, legend=True))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.seen}
    assert not any(name in {"src", "href", "onload"} for _, attributes in tags.seen for name in attributes)


def test_html_shows_hostile_strings_literally(hostile):
    page = render("html", *hostile)
    tags = Tags()
    tags.feed(page)
    text = "".join(tags.text)
    assert "<script>alert('x')</script>" in text
    assert "{{ 7*7 }}" in text


def test_html_has_the_contents_of_text(failing):
    page = render("html", *failing)
    for words in (
        "gpu-duplicate",
        "ranks 16-29 on node2",
        "scontrol update nodename=node3 state=drain",
        "(not confirmed)",
    ):
        assert words in page


def test_html_shows_backticks_as_code_and_escapes_other_markup(failing):
    page = render("html", *failing)
    assert "have one device: <code>Duplicate GPU detected</code>. Every" in page
    assert marked("`<b>` & <i>") == "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert "`" not in page.partition("<h2>Findings</h2>")[2]


def test_html_has_an_uncertainty_column_only_for_repeated_bursts(healthy):
    job, diagnosis = healthy
    for bursts, column in ((1, False), (9, True)):
        figures = tuple(msgspec.structs.replace(m, bursts=bursts) for m in job.collectives.measurements)
        collectives = msgspec.structs.replace(job.collectives, measurements=figures)
        page = render("html", msgspec.structs.replace(job, collectives=collectives), diagnosis)
        assert ('<th class="number">±</th>' in page) is column


def test_html_colours_are_readable_on_light_and_dark(healthy):
    style = render("html", *healthy).partition("<style>")[2].partition("</style>")[0]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    for colours, ground in ((light, "#ffffff"), (dark, "#121212")):
        named = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", colours))
        assert named.keys() == {"error", "warning", "good", "info", "c0", "c1", "c2", "c3", "c4", "c5"}
        low = {name: colour for name, colour in named.items() if contrast(colour, ground) < 4.5}
        assert not low, f"on {ground}"


def contrast(one, other):
    """Return the contrast of two colours, 1 to 21 (https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio)."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_curve_shows_busbw_over_sizes(healthy, single, empty):
    drawn = chart(document(*healthy))
    assert [curve.op for curve in drawn.curves] == ["all_reduce", "broadcast"]
    xs = [x for x, _, _ in drawn.curves[0].points]
    assert xs == sorted(xs)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert drawn.curves[0].points[0][1] < drawn.curves[1].points[0][1], "faster is higher"
    assert [label for _, label in drawn.speeds] == ["0", "100", "200", "300", "400"]
    assert chart(document(*single)) is None
    assert chart(document(*empty)) is None


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


def test_prometheus_escapes_labels(job_of, judge):
    job = msgspec.structs.replace(
        job_of(1, 2),
        collectives=Collectives("gloo", "", measurements=(Measurement("broadcast", 8, "f", 1, (1.0, 1.0)),)),
    )  # fmt: skip
    text = render("prometheus", *judge(job, Finding(rule='a"b\\c\nd', message="m", fix=Fix("f"))))
    assert r'distcheck_findings{rule="a\"b\\c\\nd",severity="error"} 1' in text
    assert 'distcheck_busbw_GBps{op="broadcast",dtype="f",bytes="8"} 8e-09' in text
    assert 'distcheck_verdict{verdict="job"} 1' in text
    assert "distcheck_exit_code 30" in text


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
