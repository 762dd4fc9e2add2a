"""The line for Nagios: its state, its text and its performance data, by the plugins' guidelines."""

from __future__ import annotations

import re

import msgspec
import pytest
from made.jobs import healthy_job
from made.reported import CASES, case

from distcheck.report import render
from distcheck.report.nagios import state
from distcheck.rules.finding import Finding, Fix, NotChecked, Verdict

DATUM = re.compile(r"'([^'= ]+)'=(-?[\d.]+)(s|%|[KMGT]?B|c)?(;[\d.]*){0,4}")
"""https://www.monitoring-plugins.org/doc/guidelines.html: 'label'=value[UOM];[warn];[crit];[min];[max]"""


def figures(line: str) -> dict[str, float]:
    data = [DATUM.fullmatch(word) for word in line.partition(" | ")[2].split()]
    assert all(data), line
    return {datum[1]: float(datum[2]) for datum in data}


@pytest.mark.parametrize("name", CASES)
def test_every_report_is_one_line_with_figures_that_can_be_read(name):
    job, diagnosis = CASES[name]()
    text = render("nagios", job, diagnosis)
    assert (text.count("\n"), text.count("|"), text.endswith("\n")) == (1, 1, True)
    known = figures(text.rstrip())
    errors = sum(finding.severity == "error" for finding in diagnosis.findings)
    assert (known["errors"], known["nodes"]) == (errors, len(job.nodes))
    assert known["time"] == pytest.approx(job.seconds, abs=1e-3)


def test_the_figures_are_those_of_the_largest_size_and_the_hottest_gpu():
    job, diagnosis = CASES["healthy"]()
    known = figures(render("nagios", job, diagnosis).rstrip())
    assert known["gpus"] == sum(len(node.gpus.devices) for node in job.nodes)
    assert known["gpu_celsius"] == 31
    assert 0 < known["broadcast_float32_busbw_GBps"] < known["all_reduce_float32_busbw_GBps"]


def finding(severity="error", **more):
    return Finding(rule="a-rule", severity=severity, message="a | b", fix=Fix("f"), **more)


@pytest.mark.parametrize(
    ("outcome", "word", "code"),
    [
        (None, "OK", 0),
        (finding("warning"), "WARNING", 1),
        (finding(scope="job"), "CRITICAL", 2),
        (finding(scope="node", nodes=("node1",)), "CRITICAL", 2),
        (finding(scope="link"), "UNKNOWN", 3),
        (NotChecked(reason="r"), "UNKNOWN", 3),
    ],
)
def test_the_state_is_that_of_the_verdict(outcome, word, code):
    job, diagnosis = case(healthy_job(1, 1), *([outcome] if outcome else []))
    assert state(diagnosis) == (word, code)
    text = render("nagios", job, diagnosis)
    assert text.startswith(f"DISTCHECK {word} - ")
    assert text.count("|") == 1
    held = diagnosis._replace(verdict=Verdict("warn", 0), would=diagnosis.verdict)
    assert state(held).code == 0


def test_an_interrupted_run_keeps_its_line():
    job = msgspec.structs.replace(healthy_job(1, 1), interrupted=15)
    _, diagnosis = case(job, NotChecked(reason="r"))
    assert "INTERRUPTED" in render("nagios", job, diagnosis._replace(verdict=Verdict("unknown", 143)))
