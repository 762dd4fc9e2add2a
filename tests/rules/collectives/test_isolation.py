"""The results of isolation, as findings."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.isolation import CulpritFacts, GroupTest, Isolation, Sides, Suspects
from distcheck.rules.diagnose import diagnose


@pytest.fixture
def searched(job_of, change):
    """Return a job of four nodes with two ranks each and this isolation result."""

    def searched(isolation, gpus=0):
        job = job_of(4, 2, looks=("environment", "meeting", "isolation"), command="isolate", gpus=gpus)
        return change.job(job, isolation=isolation)

    return searched


@pytest.fixture
def said(judge):
    def said(job):
        diagnosis = judge(job, "collectives.isolation")
        return list(diagnosis.findings), list(diagnosis.not_checked), diagnosis.verdict.exit_code

    return said


def culprit(part="node", nodes=("node3",), fault="failed", *, certain=True, local_ranks=(), ratio=None):
    tests = (GroupTest(2, (*nodes, "node4")[:2], "pair", fault, ratio, ("node3: died in all_reduce",)),)
    return CulpritFacts(part, nodes, local_ranks, fault, certain, tests, f"{nodes[0]} fails with node1 and node4")


def found(*culprits):
    return Isolation("found", "node3 is bad", culprits=culprits, rounds=4)


def test_a_healthy_search_is_silent(searched, said):
    assert said(searched(Isolation("healthy", "all work", rounds=3))) == ([], [], 0)
    assert said(searched(None)) == ([], [], 0)


@pytest.mark.parametrize(("nodes", "remedy"), [(1, "add 2 nodes or use"), (2, "add 1 node or use")])
def test_the_speed_of_one_or_two_nodes_is_not_judged(job_of, change, said, nodes, remedy):
    job = job_of(nodes, 2, looks=("environment", "meeting", "isolation"), command="isolate")
    findings, (unlooked,), code = said(change.job(job, isolation=Isolation("healthy", "all work", rounds=3)))
    assert (findings, unlooked.required, code) == ([], False, 0)
    assert remedy in unlooked.reason


def test_the_speed_of_a_node_without_a_comparable_pair_is_not_judged(job_of, change, said):
    job = job_of(8, (*[4] * 7, 2), looks=("environment", "meeting", "isolation"), command="isolate")
    findings, (unlooked,), code = said(change.job(job, isolation=Isolation("healthy", "all work", rounds=3)))
    assert (findings, unlooked.required, unlooked.nodes, code) == ([], False, ("node8",), 0)
    assert unlooked.ranks == (28, 29)
    assert unlooked.reason.startswith("speed of node8 not judged")
    assert said(change.job(job, isolation=Isolation("unmeasured", "nothing")))[1] != [unlooked]


BAD, SLOW, LINK = "isolation-bad-node", "isolation-slow-node", "isolation-bad-link"


@pytest.mark.parametrize(
    ("culprit_of", "rule", "scope", "ranks", "confirmed"),
    [
        ({"fault": "failed"}, BAD, "node", (4, 5), True),
        ({"fault": "hung"}, BAD, "node", (4, 5), True),
        ({"fault": "wrong"}, BAD, "node", (4, 5), True),
        ({"certain": False}, BAD, "node", (4, 5), False),
        ({"part": "rail", "local_ranks": (1,)}, BAD, "gpu", (5,), True),
        ({"fault": "slow", "ratio": 0.1}, SLOW, "node", (4, 5), True),
        ({"part": "rank", "fault": "slow", "local_ranks": (0,), "ratio": 0.1}, SLOW, "node", (4,), True),
        ({"part": "link", "nodes": ("node2", "node3")}, LINK, "link", (2, 3, 4, 5), False),
    ],
)
def test_a_culprit_is_named_and_excluded_if_it_is_certain(searched, said, culprit_of, rule, scope, ranks, confirmed):
    one = culprit(**culprit_of)
    (finding,), unlooked, code = said(searched(found(one)))
    assert (finding.rule, finding.severity, finding.scope, finding.nodes) == (rule, "error", scope, one.nodes)
    assert (finding.ranks, finding.confirmed, unlooked, code) == (ranks, confirmed, [], 40 if confirmed else 20)
    assert finding.message == one.sentence
    share = ", 10% of the others" if one.fault == "slow" else ""
    assert list(finding.evidence.values()) == [f"{one.fault}{share} (node3: died in all_reduce)"]
    assert rule != LINK or "distcheck net --hosts 'node[2-3]' --nproc 1" in finding.fix.commands


def test_a_bad_node_with_a_duplicate_name_is_named_but_not_excluded(searched, said, change):
    job = searched(found(culprit(nodes=("node1 (boot bbbbbbbb)",))))
    job = change.node(change.node(job, 0, name="node1", boot_id="aaaaaaaa1"), 2, name="node1", boot_id="bbbbbbbb1")
    (finding,), _, code = said(job)
    assert (finding.ranks, finding.nodes, finding.confirmed, code) == ((4, 5), ("node1 (boot bbbbbbbb)",), False, 20)
    assert finding.fix.commands[0] == "distcheck node  # on node1"


@pytest.mark.parametrize(("gpus", "shown"), [(2, "nvidia-smi -q -d PERFORMANCE"), (0, "lscpu --extended")])
def test_the_fix_of_a_slow_node_shows_the_clocks_of_what_it_computes_on(searched, said, gpus, shown):
    (finding,), _, _ = said(searched(found(culprit(fault="slow", ratio=0.1)), gpus))
    assert finding.fix.commands[0] == f"ssh node3 'uptime; {shown}'"


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("boundary", "every part of one side fails with every part of the other"),
        ("scale", "only all nodes together fail"),
        ("flaky", "together they failed once and passed once"),
        ("group", "isolation ended before it found the cause"),
    ],
)
def test_a_boundary_names_the_two_sides_and_blames_no_node(searched, said, cause, words):
    sides = Sides((("node1", "node2"), ("node3", "node4")), cause)
    (finding,), _, code = said(searched(Isolation("boundary", "two sides", boundaries=(sides,), rounds=7)))
    assert (finding.rule, finding.ranks, finding.nodes, code) == ("isolation-boundary", (), (), 20)
    assert finding.message.startswith(
        "one side (node1 and node2) and the other (node3 and node4) each work alone but not together"
    )
    assert words in finding.message


def test_undecided_suspects_are_named(searched, said):
    suspects = Suspects(("node1", "node2"), (), "node1 and node2 fail together; a spare node would tell")
    (finding,), _, code = said(searched(Isolation("undecided", "unclear", undecided=(suspects,), rounds=2)))
    assert (finding.rule, finding.ranks, finding.nodes) == ("isolation-undecided", (0, 1, 2, 3), ("node1", "node2"))
    assert finding.fix.commands == ("distcheck isolate --hosts 'node[1-2]'",)
    assert (finding.confirmed, code) == (False, 20)


def test_a_fault_of_most_nodes_has_scope_system_and_no_node_is_to_be_excluded(searched, said):
    each = tuple(culprit("node", (f"node{n}",), certain=False) for n in (1, 2, 3, 4))
    shared = Isolation("shared", "most nodes fail by themselves", culprits=each, rounds=2)
    (finding,), _, code = said(searched(shared))
    assert (finding.rule, finding.scope, finding.nodes, code) == ("isolation-undecided", "system", (), 30)
    assert finding.evidence


@pytest.mark.parametrize("kind", ["shared", "undecided"])
@pytest.mark.parametrize("rule", ["isolation-bad-node", "isolation-slow-node", "isolation-bad-link"])
def test_a_search_that_could_not_tell_is_no_pass_for_who_selected_one_rule(searched, kind, rule):
    each = tuple(culprit("node", (f"node{n}",), certain=False) for n in (1, 2, 3, 4))
    both = (Suspects(("node1", "node2"), (), "either may be bad"),)
    job = searched(Isolation(kind, "unclear", culprits=each if kind == "shared" else (), undecided=both, rounds=2))
    said = diagnose(job, select=(rule,))
    assert (said.findings, said.verdict.exit_code) == ((), 20)


@pytest.mark.parametrize("kind", ["unmeasured", "ended", "undecided", "boundary", "found"])
def test_an_unfinished_search_is_unknown(searched, said, kind):
    findings, (*_, unlooked), code = said(searched(Isolation(kind, "the time for it was over", rounds=1)))
    assert (findings, unlooked.required, code) == ([], True, 20)
    assert "the time for it was over" in unlooked.reason


def test_untested_nodes_make_the_verdict_unknown(searched, said):
    _, (unlooked,), code = said(searched(Isolation("healthy", "the others work", untested=("node4",), rounds=3)))
    assert ("node4" in unlooked.reason, code) == (True, 20)


def test_an_impossible_search_is_unknown(searched, said):
    _, (unlooked,), code = said(searched(Missing(reason="torch cannot be imported")))
    assert (unlooked.reason, code) == ("torch cannot be imported", 20)
