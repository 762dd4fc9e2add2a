"""Job files from strangers: whatever the schema allows is judged and rendered, and shown as what it is."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.edges import as_json, bases, changed, edges, places, read, replaced
from made.hostile import HOSTILE, full_job
from msgspec import inspect

from distcheck.facts.errors import UsageError
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import ProcessFacts
from distcheck.facts.saved import join, load, save
from distcheck.report import FORMATS, Detail, render
from distcheck.rollcall import framing
from distcheck.rollcall.protocol import FromFollower, Hello, Report, follower_decoder
from distcheck.rollcall.wire import ProtocolError
from distcheck.rules.diagnose import diagnose

EVERYTHING = Detail(all_ranks=True, legend=True, timings=True, verbose=True)
TURNS = range(6)
MASKS = {"GpuClocks.event_reasons", "GpuLoad.event_reasons", "Fabric.health_mask"}
"""Of 64 bits, of which the highest has a meaning, and which msgspec cannot bound from above."""
OUR_TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "pre", "code", "table",
    "thead", "tbody", "tr", "th", "td", "div", "span", "strong", "svg", "g", "line", "text", "polyline", "circle",
    "details", "summary", "section", "header", "main", "footer", "nav", "dl", "dt", "dd", "b", "em", "br", "a", "ol",
    "caption", "fieldset", "legend", "input", "label", "script",
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
    assert page.count("<script") == 1, "the page's own"
    given = [(name, value or "") for _, attrs in tags.seen for name, value in attrs]
    assert not any(name.startswith("on") or name == "src" for name, _ in given)
    assert all(value.startswith("#") for name, value in given if name == "href"), "places of the page"
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


BASES = bases()


@pytest.mark.long
@given(st.randoms(use_true_random=False), st.sampled_from(BASES))
def test_whatever_the_schema_allows_is_judged_and_rendered(tmp_path_factory, choose, base):
    job = changed(base, choose, tmp_path_factory.mktemp("jobs") / "job.json")
    diagnosis = diagnose(job)
    assert [f for f in diagnosis.findings if f.rule == "probe-rule-crashed"] == []
    for name in FORMATS:
        assert render(name, job, diagnosis, options=EVERYTHING)


@pytest.mark.long
@given(st.randoms(use_true_random=False), st.sampled_from(BASES))
def test_whatever_one_process_says_of_itself_the_others_facts_are_judged_with_it(tmp_path_factory, choose, base):
    """A follower of a roll call without a token, or one file of a folder."""
    whole, odd = BASES[1], changed(base, choose, tmp_path_factory.mktemp("jobs") / "job.json")
    job = join(whole, [(odd.nodes, odd.processes, odd.ranks)])
    diagnosis = diagnose(job)
    assert [f for f in diagnosis.findings if f.rule == "probe-rule-crashed"] == []
    assert {p.uid for p in whole.processes} <= {p.uid for p in job.processes}
    assert render("text", job, diagnosis)


def _numbers(kind, seen):
    """Yield the bounds of every number that a type holds, with the names of struct and field."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            if cls not in seen:
                seen.add(cls)
                for field in fields:
                    for name, number in _numbers(field.type, seen):
                        yield name or f"{cls.__name__}.{field.name}", number
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            for part in types:
                yield from _numbers(part, seen)
        case inspect.VarTupleType(item_type=item):
            yield from _numbers(item, seen)
        case inspect.DictType(key_type=key, value_type=item):
            yield from _numbers(key, seen)
            yield from _numbers(item, seen)
        case inspect.IntType() | inspect.FloatType():
            yield "", kind


@pytest.mark.parametrize("heard", [Job, FromFollower, Hello], ids=["a job file", "followers", "a follower at the door"])
def test_every_number_that_others_can_send_has_bounds(heard):
    """A bare int or float admits numbers with which no arithmetic works; distcheck/facts/base.py has kinds for them."""
    numbers = dict(_numbers(inspect.type_info(heard), set()))
    unbounded = [name for name, kind in numbers.items() if kind.ge is None or (kind.le is None and name not in MASKS)]
    assert unbounded == []
    assert len(numbers) > (1 if heard is Hello else 100)


def is_named(way, words):
    """Whether an error names the field to which a way leads; of a dictionary's item it names the dictionary."""
    return any(f".{key}" in words for key in way[-3:] if isinstance(key, str))


@pytest.mark.long
@pytest.mark.parametrize("base", [3, 6, 9])
def test_every_value_at_an_edge_is_taken_or_refused_with_the_name_of_its_field(base, tmp_path):
    raw, refused = as_json(BASES[base]), 0
    # What a field admits is the same in every element of a list.
    alike = {tuple(key if isinstance(key, str) else ... for key in way): (way, kind) for way, kind in places(raw)}
    for way, kind in alike.values():
        for value in edges(kind):
            try:
                msgspec.convert(replaced(raw, way, value), Job, str_keys=True)
            except msgspec.ValidationError:
                refused += 1
                if isinstance(value, int | float) and way != ("schema",):
                    with pytest.raises(UsageError) as told:
                        read(replaced(raw, way, value), tmp_path / "job.json")
                    assert is_named(way, str(told.value))
    assert refused > 50


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e308, 2**64 - 1, -(2**63)])
def test_no_number_that_others_send_is_beyond_what_can_be_reckoned_with(number):
    """MessagePack carries what JSON cannot."""
    base = BASES[7]
    node, process = base.nodes[0], base.processes[0]
    ranks = [rank for rank in base.ranks if rank.process == process.uid]
    said = {"word": "Report", "node": node, "process": process, "ranks": ranks, "peer_doors": [], "clock_seconds": 1.0}
    raw = msgspec.to_builtins(said)
    parts = (("node", NodeFacts), ("process", ProcessFacts))
    ways = [((part, *way), kind) for part, of in parts for way, kind in places(raw[part], inspect.type_info(of))]
    tried = 0
    for way, kind in [*ways, (("clock_seconds",), inspect.FloatType())]:
        if any(isinstance(k, inspect.IntType | inspect.FloatType) for k in getattr(kind, "types", (kind,))):
            body = msgspec.msgpack.encode(replaced(raw, way, number))
            try:
                heard = framing.decode(body, follower_decoder)
            except ProtocolError as error:
                assert is_named(way, str(error))
                tried += 1
            else:
                assert msgspec.json.decode(msgspec.json.encode(heard), type=Report) == heard
    assert tried > 30


@pytest.mark.parametrize("value", ["1e308", "1e-320", "-1", "0", "1" + "0" * 400])
def test_seconds_that_nothing_can_take_are_refused_by_name(tmp_path, value):
    path = tmp_path / "job.json"
    path.write_text(msgspec.json.encode(BASES[4]).decode().replace("[0.001,", f"[{value},", 1))
    with pytest.raises(UsageError, match=r"collectives\.measurements\[0\]\.seconds_by_rank\[0\]"):
        load(path)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("gone", ["ranks", "processes", "nodes"])
def test_figures_without_ranks_are_shown_and_are_no_pass(tmp_path, name, gone):
    raw = as_json(BASES[4])
    for part in ("ranks", "processes", "nodes"):
        raw[part] = []
        if part == gone:
            break
    job = read(raw, tmp_path / "job.json")
    diagnosis = diagnose(job)
    assert diagnosis.verdict.exit_code == 20
    assert render(name, job, diagnosis, options=EVERYTHING)
