"""The engine: every rule that applies is run, a crash takes nothing along, most nodes alike are the site's fault."""

from __future__ import annotations

import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives, Job
from distcheck.facts.node import NodeFacts
from distcheck.rules import Rule
from distcheck.rules.diagnose import diagnose
from distcheck.rules.finding import Fault, Fix, NotChecked


def job(nodes=1, looks=("environment", "meeting"), **more):
    return Job(
        distcheck="0",
        run="r",
        asked=Asked(command="env", looks=looks),
        met=True,
        nodes=tuple(map(node, range(nodes))),
        **more,
    )


def node(number):
    unknown = Missing(reason="made up")
    return NodeFacts(
        key=f"n{number}", name=f"n{number}", hostname="h", boot_id="b", network_namespace="n", kernel="k", python="p",
        distcheck="0", torch=unknown, interfaces=unknown, ephemeral_ports=unknown, unprivileged_port_start=unknown,
        accelerator="none",
    )  # fmt: skip


def rule(judge, look="environment", name="a-rule"):
    return Rule(name, "host.probe", look, (), judge)


def bad_node(number):
    return Fault(scope="node", nodes=(f"n{number}",), message="bad", fix=Fix("replace it"))


def test_the_engine_fills_in_name_and_page():
    (found,) = diagnose(job(), rules=[rule(lambda _: iter([bad_node(0)]))]).findings
    assert (found.rule, found.docs) == ("a-rule", "docs/rules/host.probe.md#a-rule")


def test_a_crash_is_a_finding_of_its_own_and_the_other_rules_are_run():
    def crashes(_):
        yield bad_node(0)
        raise KeyError("gone")

    diagnosis = diagnose(job(), rules=[rule(crashes, name="first"), rule(lambda _: iter([bad_node(1)]), name="second")])
    assert [f.rule for f in diagnosis.findings] == ["first", "probe-rule-crashed", "second"]
    assert diagnosis.verdict.exit_code == 40


def test_rules_of_what_was_not_asked_for_are_silent():
    assert diagnose(job(), rules=[rule(lambda _: iter([bad_node(0)]), look="gpu")]).findings == ()


def test_what_was_asked_for_and_skipped_is_listed_with_its_reason():
    skipped = job(looks=("environment", "gpu"), skipped={"gpu": "the deadline passed"})
    diagnosis = diagnose(skipped, rules=[rule(lambda _: iter([bad_node(0)]), look="gpu")])
    assert diagnosis.not_checked == (NotChecked(rule="a-rule", reason="the deadline passed"),)
    assert diagnosis.verdict.exit_code == 20


@pytest.mark.parametrize(("bad", "nodes", "scope", "code"), [
    (2, 3, "system", 30), (1, 3, "node", 40), (2, 4, "node", 40), (3, 4, "system", 30), (2, 2, "node", 40),
])  # fmt: skip
def test_a_fault_of_most_of_at_least_three_nodes_is_the_systems(bad, nodes, scope, code):
    diagnosis = diagnose(job(nodes), rules=[rule(lambda _: iter(bad_node(n) for n in range(bad)))])
    assert {f.scope for f in diagnosis.findings} == {scope}
    assert diagnosis.verdict.exit_code == code


def test_select_and_ignore_leave_rules_out():
    both = [rule(lambda _: iter([bad_node(0)]), name=name) for name in ("one", "two")]
    assert [f.rule for f in diagnose(job(), rules=both, select=["two"]).findings] == ["two"]
    assert [f.rule for f in diagnose(job(), rules=both, ignore=["two"]).findings] == ["one"]


def about(ranks=(), nodes=()):
    return Fault(ranks=ranks, nodes=nodes, message="m", fix=Fix("f"))


@pytest.mark.parametrize(("cause", "consequence", "left"), [
    (about((2, 3), ("n1",)), about((2, 3), ("n1",)), False),
    (about((1, 2, 3), ("n0", "n1")), about((2, 3), ("n1",)), False),
    (about((2,), ("n1",)), about((2, 3), ("n1",)), True),
    (about((4,), ("n1",)), about((2, 3), ("n1",)), True),
    (about((), ("n1",)), about((2, 3), ("n1",)), False),
    (about((), ("n2",)), about((2, 3), ("n1",)), True),
    (about((2,), ("n1",)), about((), ("n1",)), False),
    (about((2,), ("n1",)), about((), ("n1", "n2")), True),
    (about(), about((2, 3), ("n1",)), False),
    (about((2,), ("n1",)), about(), False),
])  # fmt: skip
def test_a_finding_is_dropped_where_a_rule_that_explains_it_reports_the_same_ranks_or_nodes(cause, consequence, left):
    explains = rule(lambda _: iter([cause]), name="cause")
    explained = rule(lambda _: iter([consequence]), name="consequence")._replace(unless=("cause",))
    expected = ["cause", "consequence"] if left else ["cause"]
    for rules in ([explains, explained], [explained, explains]):
        assert sorted(f.rule for f in diagnose(job(), rules=rules).findings) == expected
        chosen = diagnose(job(), rules=rules, select=["consequence"])
        assert [f.rule for f in chosen.findings] == expected[1:], "the other rule still explains it"
        assert chosen.verdict.exit_code == (30 if left else 0)
        assert [f.rule for f in diagnose(job(), rules=rules, ignore=["cause"]).findings] == expected[1:]


def test_a_rule_explains_where_it_is_explained_itself_and_not_where_it_found_nothing_or_crashed():
    def crashes(_):
        raise KeyError("gone")
        yield

    first, third = (rule(lambda _: iter([about((1,))]), name=name) for name in ("first", "third"))
    second = rule(lambda _: iter([about((1,))]), name="second")._replace(unless=("first",))
    third = third._replace(unless=("second",))
    assert [f.rule for f in diagnose(job(), rules=[first, second, third]).findings] == ["first"]
    for fails in (crashes, lambda _: iter([])):
        rules = [rule(fails, name="first"), second]
        assert "second" in [f.rule for f in diagnose(job(), rules=rules).findings]


def test_a_chosen_rule_that_the_command_does_not_look_for_is_no_pass():
    diagnosis = diagnose(job(), select=["gpu-duplicate"])
    assert [n.rule for n in diagnosis.not_checked] == ["gpu-duplicate"]
    assert diagnosis.verdict.exit_code == 20


@pytest.mark.parametrize("chosen", ["perf-below-min-busbw", "collective-wrong-result", "perf-below-expectation"])
@pytest.mark.parametrize("measured", [None, Missing(reason="no torch"), Collectives("gloo", ended="by SIGKILL")])
def test_a_chosen_rule_that_had_no_figures_is_no_pass(measured, chosen):
    asked = Asked("bandwidth", ("collectives",), min_busbw_GBps=10.0)
    judged = diagnose(Job("0", "run", asked, met=True, collectives=measured), select=[chosen])
    assert ([n.rule for n in judged.not_checked], judged.verdict.exit_code) == ([chosen], 20)


@pytest.mark.parametrize("searched", [None, Missing(reason="no time"), Isolation("ended", "the time was over")])
def test_a_search_that_was_not_made_is_no_pass(searched):
    job = Job("0", "run", Asked("isolate", ("isolation",)), met=True, isolation=searched)
    assert diagnose(job).verdict.exit_code == 20
    assert diagnose(job, select=["isolation-bad-node"]).verdict.exit_code == 20


def test_a_rule_that_needs_no_figures_is_judged_without_them():
    asked = Asked("gate", ("environment", "collectives"))
    judged = diagnose(Job("0", "run", asked, met=True, collectives=None), select=["env-pet-leak"])
    assert judged.verdict.exit_code == 0
