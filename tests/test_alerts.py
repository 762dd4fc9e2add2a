"""The alerts of the docs, by Prometheus' own promtool: they fire on metrics as distcheck writes them, or do not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from made.jobs import healthy_job
from made.reported import case
from prometheus_client.parser import text_string_to_metric_families

from distcheck.report import render
from distcheck.rules.finding import Finding, Fix, NamedGpu, NotChecked, Verdict

ALERTS = Path(__file__).parent.parent / "docs" / "monitoring" / "alerts.yaml"
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"),
]
EVERY = 5
"""Minutes between two runs."""


def found(severity="error", scope="gpu", **more):
    gpus = (NamedGpu("node3", 4, "GPU-4"),) if scope == "gpu" else ()
    where = {"scope": scope, "nodes": ("node3",), "gpus": gpus}
    return Finding(rule=f"a-{scope}-rule", severity=severity, message="m", fix=Fix("f"), **where, **more)


def metrics(*outcomes, observed=False):
    """Return the samples of one run of `distcheck node`: labels and value by metric."""
    job, diagnosis = case(healthy_job(1, 1), *outcomes)
    if observed:
        diagnosis = diagnosis._replace(verdict=Verdict("warn", 0), would=diagnosis.verdict)
    families = text_string_to_metric_families(render("prometheus", job, diagnosis))
    read = {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}
    return read | {("distcheck_last_run_timestamp_seconds",): None}


HEALTHY = metrics()
SICK = metrics(found())
SICK_NODE = metrics(found(scope="node"))
SUSPECTED = metrics(found(confirmed=False))
NOT_SEEN = metrics(NotChecked(reason="r"))
WRONG = metrics(found(scope="job"))
WOULD = metrics(found(), observed=True)
WARNED = metrics(found("warning"))
NO_RUN = None
"""node_exporter goes on to show the last one's."""


def series(runs):
    """Return the runs as promtool's series: one value a minute; the last run's where there is none."""
    keys = {key for run in runs if run is not NO_RUN for key in run}
    for key in sorted(keys, key=str):
        name, *labels = key
        written = ", ".join(f'{label}="{value}"' for label, value in [*labels, ("instance", "node3:9100")] if value)
        values, last = [], None
        for n, run in enumerate(runs):
            if run is not NO_RUN:
                last = {**run, ("distcheck_last_run_timestamp_seconds",): n * EVERY * 60}
            values += [f"{last[key]}" if last and key in last else "_"] * EVERY
        yield {"series": f"{name}{{{written}}}", "values": " ".join(values)}


def promtool(folder, runs, **expectations):
    minute = len(runs) * EVERY - 1
    (folder / "alerts.yaml").write_text(ALERTS.read_text())
    test = {"interval": "1m", "input_series": list(series(runs))}
    test |= {name: [{"eval_time": f"{minute}m", **each} for each in some] for name, some in expectations.items()}
    (folder / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["alerts.yaml"], "tests": [test]}))
    command = ["promtool", "test", "rules", folder / "test.yaml"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_promtool_accepts_the_rules():
    command = ["promtool", "check", "rules", ALERTS]
    assert "5 rules found" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


CASES = {
    "healthy": ([HEALTHY] * 12, []),
    "warnings": ([WARNED] * 12, []),
    "a bad GPU": ([HEALTHY, HEALTHY, SICK], ["DistcheckNodeBad"]),
    "a bad node": ([HEALTHY, HEALTHY, SICK_NODE], ["DistcheckNodeBad"]),
    "a repaired one": ([SICK, SICK, HEALTHY], []),
    "one unknown run": ([HEALTHY, NOT_SEEN, HEALTHY], []),
    "two unknown runs": ([HEALTHY, HEALTHY, NOT_SEEN, NOT_SEEN], []),
    "an unknown run that stays the last": ([HEALTHY, NOT_SEEN, *[NO_RUN] * 4], []),
    "three unknown runs": ([HEALTHY, NOT_SEEN, NOT_SEEN, NOT_SEEN], ["DistcheckNodeUnknown"]),
    "suspected three times": ([HEALTHY, SUSPECTED, SUSPECTED, SUSPECTED], ["DistcheckNodeUnknown"]),
    "misconfigured for a moment": ([HEALTHY, WRONG, WRONG, HEALTHY], []),
    "misconfigured": ([HEALTHY, *[WRONG] * 4], ["DistcheckNodeMisconfigured"]),
    "only observed": ([HEALTHY, WOULD, WOULD], ["DistcheckNodeWouldDrain"]),
    "no run for half an hour": ([HEALTHY, *[NO_RUN] * 5], []),
    "no run for an hour": ([HEALTHY, *[NO_RUN] * 11], ["DistcheckStale"]),
    "bad, and no run for an hour": ([SICK, *[NO_RUN] * 11], ["DistcheckNodeBad", "DistcheckStale"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_fires(tmp_path, name):
    runs, alerts = CASES[name]
    fired = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    query = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "exp_samples": fired}
    code, said = promtool(tmp_path, runs, promql_expr_test=[query])
    assert (code, "SUCCESS" in said) == (0, True), said


def test_what_the_collector_is_given_is_a_configuration_of_prometheus(tmp_path):
    (block,) = re.findall(r"(?s)```yaml\n(.*?)```", (ALERTS.parent.with_suffix(".md")).read_text())
    (tmp_path / "prometheus.yaml").write_text(
        yaml.safe_dump(yaml.safe_load(block)["receivers"]["prometheus"]["config"])
    )
    subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yaml"], check=True)


def test_the_page_lists_the_alerts():
    rows = re.findall(r"(?m)^\| `(Distcheck\w+)` \| (\w+) \|", (ALERTS.parent.with_suffix(".md")).read_text())
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in group["rules"]]


def test_an_alert_names_node_rule_and_gpu_and_a_wrong_expectation_fails(tmp_path):
    labels = {"severity": "critical", "rule": "a-gpu-rule", "node": "node3", "gpu": "4", "uuid": "GPU-4"}
    (rules,) = yaml.safe_load(ALERTS.read_text())["groups"]
    expected = {
        "exp_labels": {**labels, "instance": "node3:9100"},
        "exp_annotations": {
            "summary": "node3 is confirmed bad: a-gpu-rule at GPU 4 (GPU-4)",
            "description": rules["rules"][0]["annotations"]["description"].replace("{{ $labels.rule }}", "a-gpu-rule"),
        },
    }
    for alerts, code in (([expected], 0), ([], 1)):
        test = {"alertname": "DistcheckNodeBad", "exp_alerts": alerts}
        ended, said = promtool(tmp_path, [HEALTHY, SICK], alert_rule_test=[test])
        assert ended == code, said
