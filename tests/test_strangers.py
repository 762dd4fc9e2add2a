"""Job files from strangers: whatever the schema allows is judged and rendered, and shown as what it is."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hostile import HOSTILE, changed, full_job
from hypothesis import given, settings
from hypothesis import strategies as st

from distcheck.diagnose import diagnose
from distcheck.errors import UsageError
from distcheck.facts import Look
from distcheck.jobfile import join, load, save
from distcheck.report import FORMATS, Options, render

EVERYTHING = Options(all_ranks=True, legend=True, timings=True, verbose=True)
TURNS = range(6)
OUR_TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "pre", "code", "table",
    "thead", "tbody", "tr", "th", "td", "div", "span", "strong", "svg", "g", "line", "text", "polyline", "circle",
    "details", "summary", "section", "header", "main", "footer", "dl", "dt", "dd", "b", "em", "br", "a",
}  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, attrs))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(params=TURNS)
def hostile_job(request, tmp_path):
    """A job of which every string of every field is hostile, as it comes out of a file."""
    return load(save(full_job(request.param), tmp_path / "job.json"))


def test_every_string_of_every_field_is_hostile_in_it():
    job = full_job(0)
    assert job.nodes[0].name == job.processes[0].command[0] == job.asked.command == HOSTILE
    assert job.processes[0].node == job.nodes[0].key
    assert job.ranks[0].process == job.processes[0].uid


def test_no_rule_crashes_over_it(hostile_job):
    crashed = [f for f in diagnose(hostile_job).findings if f.rule == "probe-rule-crashed"]
    assert crashed == []


def test_in_html_it_is_text_and_neither_tags_nor_attributes(hostile_job):
    page = render("html", hostile_job, diagnose(hostile_job), options=EVERYTHING)
    tags = Tags()
    tags.feed(page)
    assert {tag for tag, _ in tags.seen} <= OUR_TAGS
    assert not any(name.startswith("on") or name in {"src", "href"} for _, attrs in tags.seen for name, _ in attrs)
    assert "{{ 7*7 }}" in "".join(tags.text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2028]", page)


def test_on_a_terminal_it_moves_no_cursor_and_breaks_no_line(hostile_job):
    for options in (EVERYTHING, EVERYTHING._replace(color=True)):
        text = render("text", hostile_job, diagnose(hostile_job), options=options)
        bare = re.sub(r"\x1b\[\d*(;\d+)*m", "", text) if options.color else text
        assert all(line.isprintable() for line in bare.split("\n"))
        assert "\x1b[31;1m\x07" not in text


def test_in_markdown_it_is_no_markup_and_no_further_cell(hostile_job):
    text = render("markdown", hostile_job, diagnose(hostile_job), options=EVERYTHING)
    outside = re.sub(r"(?ms)^(`{3,})\w*$.*?^\1$", "", text)
    assert set(re.findall(r"(?<!\\)<([a-z/]+)", outside)) <= {"details", "summary", "/summary", "/details"}
    assert not re.search(r"(?<!\\)`tick", outside)
    tables = re.findall(r"(?m)(?:^\|.*\n)+", outside)
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_in_junit_prometheus_and_json_it_stays_within_its_quotes(hostile_job):
    diagnosis = diagnose(hostile_job)
    xml = ET.fromstring(render("junit", hostile_job, diagnosis, options=EVERYTHING))
    assert {e.tag for e in xml.iter()} <= {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "error", "skipped", "system-out",
    }  # fmt: skip
    samples = render("prometheus", hostile_job, diagnosis, options=EVERYTHING).split("\n")[:-1]
    assert all(line.startswith(("#", "distcheck_")) for line in samples)
    report = render("json", hostile_job, diagnosis, options=EVERYTHING)
    assert report.count("\n") == 1
    assert json.loads(report)["command"] == HOSTILE


def _bases():
    path = Path(__file__).parent / "rules" / "conftest.py"
    spec = importlib.util.spec_from_file_location("jobs_of_rules", path)
    jobs = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = jobs
    spec.loader.exec_module(jobs)
    looks = get_args(Look)
    healthy = [jobs.healthy_job(*shape, gpus=2) for shape in ((1, 2, "torchrun"), (3, 2, "slurm"), (2, 2, "openmpi"))]
    asked = [msgspec.structs.replace(j, asked=msgspec.structs.replace(j.asked, looks=looks)) for j in healthy]
    return [*asked, *map(full_job, TURNS)]


BASES = _bases()


@given(st.integers(0, 2**32), st.integers(0, len(BASES) - 1))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_whatever_the_schema_allows_is_judged_and_rendered(tmp_path_factory, seed, base):
    path = tmp_path_factory.mktemp("jobs") / "job.json"
    try:
        job = load(save(changed(BASES[base], seed), path))
    except UsageError as error:
        assert str(path) in str(error)
        return
    diagnosis = diagnose(job)
    assert [f for f in diagnosis.findings if f.rule == "probe-rule-crashed"] == []
    for name in FORMATS:
        assert render(name, job, diagnosis, options=Options(verbose=True))


@given(st.integers(0, 2**32), st.integers(0, len(BASES) - 1))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_whatever_one_process_says_of_itself_the_others_facts_are_judged_with_it(seed, base):
    """A guest of a roll call without a token, or one file of a folder."""
    whole, odd = BASES[1], changed(BASES[base], seed)
    job = join(whole, odd.nodes, odd.processes, odd.ranks)
    diagnosis = diagnose(job)
    assert [f for f in diagnosis.findings if f.rule == "probe-rule-crashed"] == []
    assert {p.uid for p in whole.processes} <= {p.uid for p in job.processes}
    assert render("text", job, diagnosis)
