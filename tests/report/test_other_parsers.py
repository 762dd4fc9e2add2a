"""Programs of others read the formats: junitparser, prometheus_client, node_exporter, markdown-it, jsonschema."""

import copy
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import jsonschema
import junitparser
import msgspec
import pytest
import yaml
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

from distcheck.report import Detail, render
from distcheck.report.harmless import harmless
from distcheck.report.schema.document import json_schema
from distcheck.rules.finding import Finding, Fix, NamedGpu

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
KINDS = {"failures": junitparser.Failure, "errors": junitparser.Error, "skipped": junitparser.Skipped}


def test_junitparser_counts_what_the_report_says_it_has(any_job):
    suites = junitparser.JUnitXml.fromstring(render("junit", *any_job).encode())
    totals = {"tests": 0, **dict.fromkeys(KINDS, 0)}
    for suite in suites:
        results = [result for case in suite for result in case.result]
        counted = {name: sum(isinstance(each, kind) for each in results) for name, kind in KINDS.items()}
        counted["tests"] = len(list(suite))
        assert {name: getattr(suite, name) for name in counted} == counted
        totals = {name: totals[name] + counted[name] for name in totals}
    assert {name: getattr(suites, name) for name in totals} == totals
    errors = [finding for finding in any_job.diagnosis.findings if finding.severity == "error"]
    assert bool(totals["failures"]) == bool(errors)


def families(job):
    return {family.name: family.samples for family in text_string_to_metric_families(render("prometheus", *job))}


@pytest.fixture
def failing(failing):
    """The job with the time at which it ended."""
    return failing._replace(job=msgspec.structs.replace(failing.job, at="2026-11-28 20:31:43 +0100"))


def test_prometheus_client_reads_the_values(failing, healthy):
    read = families(failing)
    assert {sample.labels["verdict"]: sample.value for sample in read["distcheck_verdict"]} == {
        "pass": 0, "warn": 0, "unknown": 0, "job": 1, "node": 0,
    }  # fmt: skip
    assert [sample.value for sample in read["distcheck_exit_code"]] == [30]
    assert {"rule": "gpu-duplicate", "severity": "error"} in [sample.labels for sample in read["distcheck_findings"]]
    assert {(each.labels["op"], each.labels["bytes"]) for each in families(healthy)["distcheck_busbw_GBps"]} >= {
        ("all_reduce", "268435456")
    }


def test_prometheus_client_reads_back_labels_with_quotes(job_of, judge):
    named = Finding(rule='a"b\\c\nd', message="m", fix=Fix("f"))
    (sample,) = families(judge(job_of(1, 1), named))["distcheck_findings"]
    assert sample.labels == {"rule": 'a"b\\c\\nd', "severity": "error"}


def labelled(text):
    """Return the samples of metrics by name and labels; an empty label is as good as none."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(s.name, *sorted((k, v) for k, v in s.labels.items() if v)): s.value for s in samples}


@pytest.fixture
def exported(tmp_path):
    """Return what a real node_exporter shows of a file of metrics."""

    def exported(text):
        (tmp_path / "distcheck.prom").write_text(text)
        command = ["prometheus-node-exporter", "--web.listen-address=127.0.0.1:0", "--collector.disable-defaults"]
        command += ["--collector.textfile", f"--collector.textfile.directory={tmp_path}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as exporter:
            try:
                addresses = (re.search(r"Listening on.*address=(\S+)", line) for line in exporter.stderr)
                address = next(filter(None, addresses))[1]
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                    return labelled(answer.read().decode())
            finally:
                exporter.terminate()

    return exported


@pytest.mark.process
@pytest.mark.skipif(shutil.which("prometheus-node-exporter") is None, reason="apt-get install prometheus-node-exporter")
def test_node_exporter_shows_every_sample_and_none_with_a_timestamp(exported, any_job):
    text = render("prometheus", *any_job)
    shown = exported(text)
    assert shown[("node_textfile_scrape_error",)] == 0
    assert labelled(text).items() <= shown.items()
    assert exported("distcheck_exit_code 0 1700000000000\n")[("node_textfile_scrape_error",)] == 1


GPU = NamedGpu("node1", 3, "GPU-3")


@pytest.mark.parametrize(
    ("finding", "places"),
    [
        ({"nodes": ("node1", "node2")}, [("node1", "", ""), ("node2", "", "")]),
        ({"nodes": ("node1",), "gpus": (GPU,)}, [("node1", "3", "GPU-3")]),
        ({"nodes": ("node1", "node2"), "gpus": (GPU,)}, [("node1", "3", "GPU-3"), ("node2", "", "")]),
        ({"nodes": ("node1",), "gpus": (NamedGpu("node1", 3, None),)}, [("node1", "3", "")]),
        ({}, []),
    ],
)
def test_the_places_of_a_finding_are_its_gpus_and_its_nodes_without_one(job_of, judge, finding, places):
    found = judge(job_of(1, 1), Finding(rule="r", message="m", fix=Fix("f"), **finding))
    labels = [{"rule": "r", "severity": "error", **dict(zip(("node", "gpu", "uuid"), p, strict=True))} for p in places]
    assert [sample.labels for sample in families(found)["distcheck_node_findings"]] == labels


def test_findings_of_many_nodes_are_few_series_and_errors_come_first(job_of, judge):
    nodes = tuple(f"node{n}" for n in range(8192))
    about = [
        Finding(rule=severity, severity=severity, message="m", fix=Fix("f"), nodes=there)
        for severity, there in (("warning", nodes), ("error", nodes[:3]))
    ]
    samples = families(judge(job_of(1, 1), *about))["distcheck_node_findings"]
    assert [sample.labels["severity"] for sample in samples[:4]] == ["error", "error", "error", "warning"]
    assert len(samples) == 256


@pytest.mark.parametrize(
    ("at", "seconds"), [("2026-11-28 20:31:43 +0100", [1795894303]), ("", []), ("yesterday", []), ("0 +", [])]
)
def test_the_time_of_the_run_is_a_sample(failing, at, seconds):
    job = msgspec.structs.replace(failing.job, at=at)
    read = families(failing._replace(job=job))
    assert [sample.value for sample in read["distcheck_last_run_timestamp_seconds"]] == seconds


def test_the_page_names_every_metric_with_its_labels(failing, healthy):
    samples = [sample for job in (failing, healthy) for each in families(job).values() for sample in each]
    written = {(sample.name, *sorted(sample.labels)) for sample in samples}
    rows = re.findall(r"(?m)^\| `(distcheck_\w+)` \| ([^|]+?) \|", (DOCS / "monitoring.md").read_text())
    assert {(name, *sorted(re.findall(r"`(\w+)`", labels))) for name, labels in rows} == written


def test_the_alerts_use_written_metrics(failing):
    (group,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yaml").read_text())["groups"]
    used = set(re.findall(r"distcheck_\w+", " ".join(rule["expr"] for rule in group["rules"])))
    assert used <= set(families(failing))


def queries():
    """Return the dashboard's queries: of its panels and of its variables."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return asked + [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]


def test_the_dashboard_asks_for_every_metric_and_for_no_other(failing, healthy):
    written = families(failing) | families(healthy)
    assert set(re.findall(r"distcheck_\w+", " ".join(queries()))) == set(written)


def test_the_dashboard_uses_labels_that_the_metrics_have(failing, healthy):
    samples = [sample for job in (failing, healthy) for each in families(job).values() for sample in each]
    selectors = re.findall(r"(distcheck_\w+)\{([^}]*)\}", " ".join(queries()))
    assert selectors
    for name, selector in selectors:
        labels = {label for sample in samples if sample.name == name for label in sample.labels}
        for label, value in re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"([^"]*)"', selector):
            assert label in labels | {"instance"}, f"{name} has no label {label}"  # the scrape adds instance
            values = {sample.labels[label] for sample in samples if label in sample.labels}
            assert value.startswith("$") or value in values, f"{name} has no {label} {value}"
    for wanted in re.findall(r"by \(([^)]*)\)", " ".join(queries())):
        named = {label.strip() for label in wanted.split(",")}
        assert named <= {"instance"} | {label for sample in samples for label in sample.labels}


def test_the_panels_of_the_dashboard_have_room_and_a_source():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)), "two panels overlap"
    assert max(x for x, _ in cells) < 24
    (source,) = [each["name"] for each in DASHBOARD["templating"]["list"] if each["type"] == "datasource"]
    assert {panel["datasource"]["uid"] for panel in panels} == {f"${{{source}}}"}
    assert all(panel["title"] and panel["targets"] for panel in panels)


def shown(text):
    """Return what a renderer of Markdown shows: the paragraphs' and cells' text, the code blocks, and raw HTML."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inline = [
        "".join(child.content for child in token.children if child.type in {"text", "text_special", "code_inline"})
        for token in tokens
        if token.type == "inline"
    ]
    html = [token.content for token in tokens if token.type == "html_block"]
    html += [child.content for token in tokens for child in token.children or () if child.type == "html_inline"]
    return inline, [token.content for token in tokens if token.type == "fence"], html, {each.tag for each in tokens}


def test_a_renderer_of_markdown_shows_messages_and_commands_as_they_are(any_job):
    texts, fences, html, tags = shown(render("markdown", *any_job, options=Detail(verbose=True)))
    for finding in any_job.diagnosis.findings:
        assert harmless(finding.message) in texts
        assert not finding.fix.commands or "".join(f"{harmless(c)}\n" for c in finding.fix.commands) in fences
    assert set(re.findall(r"</?\w+", " ".join(html))) <= {"<details", "<summary", "</summary", "</details"}
    assert tags <= {"", "h2", "h3", "p", "ul", "li", "code", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize(
    "message", ["- a list", "1. a list", "1) a list", "+ a list", "# 1", "> quoted", "= x", "![a](b)", "    x", "---"]
)
def test_a_renderer_of_markdown_sees_no_block_in_a_message(job_of, judge, message):
    text = render("markdown", *judge(job_of(1, 1), Finding(rule="r", message=message, fix=Fix(message))))
    texts, _, _, tags = shown(text)
    assert message.strip() in texts
    assert f"Fix: {message.strip()}" in texts
    assert not tags & {"ol", "blockquote", "hr", "img", "a"}


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_json_report_matches_its_published_schema(any_job):
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(strict(render("json", *any_job)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict",), "fine"),
        (("exit_code",), "30"),
        (("findings", 0, "severity"), "fatal"),
        (("world", "gpus"), 8),
        (("ranks", 0), None),
    ],
)
def test_the_published_schema_refuses_another_document(failing, path, value):
    document = copy.deepcopy(strict(render("json", *failing)))
    here = document
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    assert list(jsonschema.Draft202012Validator(json_schema()).iter_errors(document))
