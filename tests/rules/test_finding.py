"""Findings and exit codes: the table of the contract."""

from __future__ import annotations

import pytest

from distcheck.rules.finding import Finding, Fix, NotChecked, excluded_nodes, verdict


def found(severity="error", scope="job", *, confirmed=True, nodes=()):
    return Finding(severity=severity, scope=scope, confirmed=confirmed, nodes=nodes, message="m", fix=Fix("f"))


@pytest.mark.parametrize(
    ("scope", "confirmed", "name", "code"),
    [
        ("job", True, "job", 30),
        ("rank", True, "job", 30),
        ("system", True, "job", 30),
        ("node", True, "node", 40),
        ("gpu", True, "node", 40),
        ("node", False, "unknown", 20),
        ("gpu", False, "unknown", 20),
        ("link", True, "unknown", 20),
        ("link", False, "unknown", 20),
        ("tool", True, "unknown", 70),
    ],
)
def test_one_error_decides_by_its_scope(scope, confirmed, name, code):
    decided = verdict([found(scope=scope, confirmed=confirmed)], [])
    assert (decided.name, decided.exit_code) == (name, code)


@pytest.mark.parametrize(
    ("scopes", "code"),
    [
        (("node", "job"), 30),
        (("link", "node"), 40),
        (("link", "rank"), 30),
        (("tool", "link"), 20),
        (("tool", "gpu"), 40),
    ],
)
def test_the_jobs_faults_come_before_a_bad_node_before_what_is_unknown_before_our_own(scopes, code):
    assert verdict([found(scope=s) for s in scopes], []).exit_code == code


def test_warnings_pass_unless_strict():
    assert verdict([found("warning")], []).exit_code == 0
    assert verdict([found("warning")], []).name == "warn"
    assert verdict([found("warning")], [], strict=True).exit_code == 10
    assert verdict([found("info")], [], strict=True).exit_code == 0


def test_unknown_is_never_a_pass():
    assert verdict([], [NotChecked(reason="r")]).exit_code == 20
    assert verdict([found("warning")], [NotChecked(reason="r")]).exit_code == 20
    assert verdict([], [NotChecked(reason="r", required=False)]).exit_code == 0


def test_only_confirmed_node_and_gpu_errors_exclude_a_node():
    findings = [
        found(scope="node", nodes=("a",)),
        found(scope="gpu", nodes=("b",)),
        found(scope="node", confirmed=False, nodes=("c",)),
        found(scope="link", nodes=("d",)),
        found("warning", scope="node", nodes=("e",)),
        found(scope="system", nodes=("f",)),
    ]
    assert excluded_nodes(findings) == ("a", "b")
