"""What a site's policy makes of findings: ignored, regraded, only observed; and what would have been."""

from __future__ import annotations

import msgspec
import pytest
from made.policies import policy
from rules.test_diagnose import job as job_of_nodes
from rules.test_diagnose import rule

from distcheck.report.headline import headline
from distcheck.rules.diagnose import diagnose, passing_nodes
from distcheck.rules.finding import Fault, Fix, NotChecked, Verdict, excluded_nodes

OBSERVE, ENFORCE = {"mode": "observe"}, {"mode": "enforce"}


def fault(*nodes, scope="node", severity="error", confirmed=True):
    return Fault("bad", Fix("f"), scope=scope, severity=severity, confirmed=confirmed, nodes=nodes)


def judged(*outcomes, nodes=4, strict=False, mode=None, sections=None, **more):
    job = job_of_nodes(nodes)
    site = None if sections is None else policy(*sections, node="n0", **more)
    job = msgspec.structs.replace(job, asked=msgspec.structs.replace(job.asked, mode=mode, policy=site))
    found = {f"{'abcd'[n]}-rule": outcome for n, outcome in enumerate(outcomes)}
    rules = [rule(lambda _, o=outcome: iter([o]), name=name) for name, outcome in found.items()]
    return job, diagnose(job, rules=rules, strict=strict)


CODES = {
    10: fault("n1", severity="warning"),
    20: fault("n1", confirmed=False),
    30: fault(scope="job"),
    40: fault("n1"),
}


@pytest.mark.parametrize(("code", "outcome"), CODES.items())
def test_observing_makes_each_verdict_a_warning_and_keeps_what_it_would_have_been(code, outcome):
    _, real = judged(outcome, strict=True)
    assert (real.verdict.exit_code, real.would) == (code, None)
    _, same = judged(outcome, strict=True, sections=[ENFORCE])
    assert (same.verdict, same.would) == (real.verdict, None)
    for observing in ({"sections": [OBSERVE]}, {"mode": "observe"}):
        job, said = judged(outcome, strict=True, **observing)
        assert (said.verdict, said.would) == (Verdict("warn", 0), real.verdict)
        assert excluded_nodes(said.findings) == ()
        assert passing_nodes(job, said) == ("n0", "n1", "n2", "n3")
        where = " (n1)" if code == 40 else ""
        assert headline(job, said).endswith(f"exit code 0 (mode observe); would have been exit code {code}{where}")
        assert headline(job, said).startswith("WARN: bad")


def test_observing_what_is_not_known_is_a_warning_and_no_pass():
    _, said = judged(NotChecked(reason="no answer"), sections=[OBSERVE])
    assert (said.verdict, said.would) == (Verdict("warn", 0), Verdict("unknown", 20))


def test_observing_changes_no_pass_and_hides_no_fault_of_distcheck():
    def crashes(_):
        raise KeyError("gone")
        yield

    _, said = judged(sections=[OBSERVE])
    assert (said.verdict, said.would) == (Verdict("pass", 0), None)
    job = job_of_nodes(1)
    job = msgspec.structs.replace(job, asked=msgspec.structs.replace(job.asked, mode="observe"))
    said = diagnose(job, rules=[rule(crashes)])
    assert (said.verdict.exit_code, said.would) == (70, None)


def test_one_rule_is_enforced_while_the_rest_is_observed_and_the_other_way_round():
    only_a = {"mode": "observe", "rule": {"a-rule": {"mode": "enforce"}}}
    job, said = judged(fault("n1"), fault(scope="job"), sections=[only_a])
    assert (said.verdict, said.would) == (Verdict("node", 40), Verdict("job", 30))
    assert [f.observed for f in said.findings] == [False, True]
    assert headline(job, said).endswith(
        "[a-rule, +1 more] exit code 40: exclude n1 and start again; would have been exit code 30"
    )
    _, said = judged(fault("n1"), sections=[{"rule": {"a-rule": OBSERVE}}])
    assert (said.verdict, said.would) == (Verdict("warn", 0), Verdict("node", 40))
    _, said = judged(fault("n1"), fault("n2"), sections=[{"rule": {"a-rule": OBSERVE}}])
    assert (said.verdict, said.would, excluded_nodes(said.findings)) == (Verdict("node", 40), None, ("n2",))


def test_a_node_for_which_a_rule_is_observed_is_spared_and_the_others_are_excluded():
    here = {"nodes": "n1", "rule": {"a-rule": OBSERVE}}
    job, said = judged(fault("n1", "n2"), nodes=5, sections=[here])
    assert (said.verdict.exit_code, excluded_nodes(said.findings)) == (40, ("n2",))
    assert passing_nodes(job, said) == ("n0", "n1", "n3", "n4")


def test_an_ignored_rule_is_listed_with_its_reason_and_decides_nothing():
    ignored = {"rule": {"a-rule": {"ignore": "capped on purpose", "until": "2027-01-31"}}}
    _, said = judged(fault("n1"), sections=[ignored])
    (gap,) = said.not_checked
    assert (said.findings, said.verdict.exit_code) == ((), 0)
    assert (gap.rule, gap.required) == ("a-rule", False)
    assert gap.reason == "ignored by the site's policy: capped on purpose, until 2027-01-31"
    _, said = judged(fault("n1"), sections=[{"nodes": "n1", **ignored}])
    assert (said.findings, [gap.nodes for gap in said.not_checked]) == ((), [("n1",)])
    _, said = judged(fault("n2"), sections=[{"nodes": "n1", **ignored}])
    assert (said.verdict.exit_code, said.not_checked) == (40, ())
    _, said = judged(NotChecked(reason="no answer", nodes=("n1",)), sections=[{"nodes": "n1", **ignored}])
    assert said.verdict.exit_code == 0


def test_a_rule_whose_time_to_be_ignored_is_over_is_observed():
    _, said = judged(fault("n1"), sections=[{"rule": {"a-rule": {"ignore": "w", "until": "2026-11-30"}}}])
    assert (said.verdict, said.would) == (Verdict("warn", 0), Verdict("node", 40))
    assert [f.observed for f in said.findings] == [True]


@pytest.mark.parametrize(
    ("severity", "found", "code"), [("info", "info", 0), ("warning", "warning", 0), ("error", "error", 40)]
)
def test_a_severity_is_changed_before_the_verdict(severity, found, code):
    for own in ("warning", "error"):
        _, said = judged(fault("n1", severity=own), sections=[{"rule": {"a-rule": {"severity": severity}}}])
        assert (said.findings[0].severity, said.verdict.exit_code) == (found, code)
    _, said = judged(fault("n1", severity="info"), sections=[{"rule": {"a-rule": {"severity": severity}}}])
    assert said.findings[0].severity == "info"


@pytest.mark.parametrize(
    ("outcome", "passing"),
    [
        (fault("n1"), ("n0", "n2", "n3")),
        (fault("n1", "n3", confirmed=False), ("n0", "n2")),
        (fault("n1", severity="warning"), ("n0", "n1", "n2", "n3")),
        (NotChecked(reason="r", nodes=("n2",)), ("n0", "n1", "n3")),
        (NotChecked(reason="r"), ()),
        (fault(scope="job"), ()),
        (fault("n1", scope="link"), ("n0", "n2", "n3")),
    ],
)
def test_a_node_passes_if_nothing_is_wrong_or_unknown_of_it(outcome, passing):
    assert passing_nodes(*judged(outcome)) == passing
