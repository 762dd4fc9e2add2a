"""Exit codes of every kind of finding and every pair of kinds, and the exclude list."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import get_args

import pytest
from made.jobs import healthy_job, replace

from distcheck.rules import Rule
from distcheck.rules.diagnose import diagnose
from distcheck.rules.finding import (
    Finding,
    Fix,
    NotChecked,
    Scope,
    Verdict,
    VerdictName,
    excluded_nodes,
    outcome,
    verdict,
)

PAGE = Path(__file__).parents[1] / "docs" / "exit-codes.md"
CODES = {
    ("job", True): 30,
    ("job", False): 30,
    ("rank", True): 30,
    ("rank", False): 30,
    ("system", True): 30,
    ("system", False): 30,
    ("node", True): 40,
    ("node", False): 20,
    ("gpu", True): 40,
    ("gpu", False): 20,
    ("link", True): 20,
    ("link", False): 20,
    ("tool", True): 70,
    ("tool", False): 70,
}
"""Exit code of a single error, by its scope and whether it is confirmed."""
WORSE_FIRST = (30, 40, 20, 70, 0)
NAMES = {0: "pass", 30: "job", 40: "node", 20: "unknown", 70: "unknown"}


def finding(scope, confirmed=None, severity="error", node="n0", *, excludes=False):
    return Finding(
        severity=severity,
        scope=scope,
        confirmed=confirmed is not False,
        nodes=(node,),
        message="m",
        fix=Fix("f"),
        excludes=excludes,
    )


def job(nodes):
    whole = healthy_job(nodes, 1)
    return replace(whole, nodes=tuple(replace(node, name=f"n{n}") for n, node in enumerate(whole.nodes)))


def test_the_table_has_every_scope():
    assert {scope for scope, _ in CODES} == set(get_args(Scope))


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_the_scope_of_a_single_error_decides_the_exit_code(kind, code):
    given = verdict([finding(*kind)], [])
    assert (given.exit_code, given.name) == (code, NAMES[code])


@pytest.mark.parametrize(("one", "other"), tuple(itertools.combinations(CODES, 2)))
def test_the_worse_of_two_errors_decides_in_either_order(one, other):
    worse = min((CODES[one], CODES[other]), key=WORSE_FIRST.index)
    for pair in ((one, other), (other, one)):
        assert verdict([finding(*kind) for kind in pair], []).exit_code == worse


@pytest.mark.parametrize("severity", ["warning", "info"])
@pytest.mark.parametrize("kind", CODES)
def test_only_errors_decide_the_exit_code(kind, severity):
    found = [finding(*kind, severity=severity)]
    strict = 10 if severity == "warning" and kind[0] != "tool" else 0  # of scope tool: about the site's policy
    assert verdict(found, []).exit_code == 0
    assert verdict(found, [], strict=True).exit_code == strict
    assert excluded_nodes(found) == ()
    for other, code in CODES.items():
        assert verdict([*found, finding(*other)], [], strict=True).exit_code == code


@pytest.mark.parametrize("kind", CODES)
def test_a_required_check_that_was_not_made_is_unknown_unless_an_error_is_found(kind):
    needed, optional = NotChecked(reason="r"), NotChecked(reason="r", required=False)
    assert verdict([], [needed]).exit_code == 20
    assert verdict([finding("node", severity="warning")], [needed], strict=True).exit_code == 20
    assert verdict([], [optional]).exit_code == 0
    assert verdict([finding(*kind)], [needed, optional]).exit_code == CODES[kind]


@pytest.mark.parametrize("kind", CODES)
def test_only_confirmed_node_and_gpu_errors_exclude_a_node(kind):
    scope, confirmed = kind
    excluded = ("n0",) if scope in {"node", "gpu"} and confirmed else ()
    assert excluded_nodes([finding(scope, confirmed), finding("link", node="n1")]) == excluded


def test_a_node_that_need_leaves_out_is_excluded_at_any_severity():
    assert excluded_nodes([finding("node", severity="info", excludes=True)]) == ("n0",)


@pytest.mark.parametrize("scope", ["node", "gpu"])
@pytest.mark.parametrize(("nodes", "bad"), [(n, b) for n in range(1, 7) for b in range(1, n + 1)])
def test_a_fault_on_more_than_half_of_at_least_three_nodes_is_systemic(scope, nodes, bad):
    same = Rule("same", "probe", "environment", (), lambda _: iter(finding(scope, node=f"n{n}") for n in range(bad)))
    diagnosis = diagnose(job(nodes), rules=[same])
    systemic = nodes >= 3 and 2 * bad > nodes
    assert {f.scope for f in diagnosis.findings} == {"system" if systemic else scope}
    assert diagnosis.verdict.exit_code == (30 if systemic else 40)
    assert excluded_nodes(diagnosis.findings) == (() if systemic else tuple(f"n{n}" for n in range(bad)))


def test_systemic_faults_are_counted_per_rule_and_only_if_confirmed():
    def one(name, nodes, confirmed=None):
        return Rule(name, "probe", "environment", (), lambda _: iter(finding("node", confirmed, node=n) for n in nodes))

    apart = diagnose(job(3), rules=[one("a", ["n0"]), one("b", ["n1"]), one("c", ["n2"])])
    assert (apart.verdict.exit_code, excluded_nodes(apart.findings)) == (40, ("n0", "n1", "n2"))
    suspected = diagnose(job(3), rules=[one("a", ["n0", "n1", "n2"], confirmed=False)])
    assert (suspected.verdict.exit_code, excluded_nodes(suspected.findings)) == (20, ())


def test_a_systemic_fault_decides_before_a_bad_node_which_is_still_named():
    everywhere = Rule("a", "probe", "environment", (), lambda _: iter(finding("node", node=f"n{n}") for n in range(4)))
    one = Rule("b", "probe", "environment", (), lambda _: iter([finding("gpu", node="n2")]))
    diagnosis = diagnose(job(4), rules=[everywhere, one])
    assert (diagnosis.verdict.exit_code, excluded_nodes(diagnosis.findings)) == (30, ("n2",))


@pytest.mark.parametrize("name", get_args(VerdictName))
def test_a_verdict_line_begins_with_one_of_four_words(name):
    assert outcome(Verdict(name, 0)) in {"PASS", "WARN", "FAIL", "UNKNOWN"}
    assert outcome(Verdict("unknown", 130)) == "INTERRUPTED"


def test_the_page_matches_the_code():
    rows = re.findall(r"^\| (`\w+`[^|]*) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    documented = {}
    for kind, code in rows:
        for scope in re.findall(r"`(\w+)`", kind):
            confirmations = [False] if "not confirmed" in kind else [True] if "confirmed" in kind else [True, False]
            documented |= {(scope, confirmed): int(code) for confirmed in confirmations}
    assert documented == CODES
