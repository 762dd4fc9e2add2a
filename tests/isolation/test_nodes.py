"""Bad nodes are found and good ones never blamed, for any number of nodes."""

from __future__ import annotations

import re
from random import Random

import pytest
from isolation.simulator import Cluster, Run, convicted, is_certain, link, most_rounds, names, search

from distcheck.isolation.pairing import FURTHER_ROUNDS, ROUNDS


def blamed(run: Run) -> set[str]:
    return set(convicted(run.verdict, certain=False))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 129, pytest.param(1024, marks=pytest.mark.long)])
def test_healthy_nodes_pass_alone_in_two_rounds_of_pairs_and_all_together(n):
    run = search(Cluster(names(n), noise=0.05, local_ranks=2 if n < 64 else 0))
    assert run.verdict.kind == "healthy", run.verdict.sentence
    assert is_certain(run.verdict)
    assert run.largest_passed == n
    assert run.pair_rounds == (min(n - 1, 2) if n != 3 else 3)


@pytest.mark.parametrize("ended", ["failed", "wrong", "hung"])
@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 13, 64, pytest.param(1024, marks=pytest.mark.long)])
def test_only_the_bad_node_is_named_with_its_fault(n, ended):
    for seed in range(3):
        bad = Random(seed).choice(names(n))
        run = search(Cluster(names(n), bad={bad: 0.0}, ended=ended, noise=0.05), seed)
        assert convicted(run.verdict) == (bad,), run.verdict.sentence
        assert not run.verdict.undecided
        assert [c.fault for c in run.verdict.culprits] == [ended]
        assert run.pair_rounds <= ROUNDS
        assert run.largest_passed == n - 1
        partners = {p for e in run.verdict.culprits[0].evidence for p in e.nodes} - {bad}
        assert len(partners) >= 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "number"), [(4, 300), (7, 300), (10, 300), (16, 300), (33, 200), (64, 200), (250, 60), (1024, 12)]
)
def test_up_to_29_percent_bad_nodes_are_all_found_and_no_others(trials, n, number):
    for seed in trials(number):
        random = Random(f"{n} {seed}")
        bad = random.sample(names(n), random.randint(1, int(0.29 * n)))
        run = search(Cluster(names(n), bad=dict.fromkeys(bad, 0.0), noise=0.03), seed)
        assert blamed(run) == set(bad), (seed, run.verdict.sentence)
        assert is_certain(run.verdict)
        assert run.pair_rounds <= ROUNDS + FURTHER_ROUNDS


@pytest.mark.long
@pytest.mark.parametrize("share", [0.4, 0.5, 0.7, 0.9, 1.0])
def test_with_too_few_good_nodes_no_good_one_is_blamed_and_rounds_are_bounded(trials, share):
    for n in (4, 9, 40, 200):
        for seed in trials(100 if n < 200 else 10):
            bad = Random(f"{n} {seed}").sample(names(n), round(share * n))
            run = search(Cluster(names(n), bad=dict.fromkeys(bad, 0.0)), seed)
            assert blamed(run) <= set(bad)
            assert run.pair_rounds <= ROUNDS + FURTHER_ROUNDS
            assert len(run.rounds) <= most_rounds(n)
            assert run.verdict.kind in {"found", "shared"}
            if 2 * len(bad) > n:
                assert run.verdict.kind == "shared" or run.verdict.undecided
                assert not (run.verdict.kind == "shared" and convicted(run.verdict))


def test_two_bad_nodes_of_four_are_both_named_wherever_they_are():
    for i in range(4):
        for j in range(i):
            bad = {names(4)[i], names(4)[j]}
            run = search(Cluster(names(4), bad=dict.fromkeys(bad, 0.0)))
            assert set(convicted(run.verdict)) == bad, run.verdict.sentence


def test_a_node_that_fails_alone_is_convicted_and_never_a_partner():
    for n in (2, 3, 8, 64):
        run = search(Cluster(names(n), bad_alone={"node2": 0.0}))
        assert convicted(run.verdict) == ("node2",)
        assert "alone, without any other node: 2 of 2 tests (rounds 1 and 2)" in run.verdict.sentence
        assert not any("node2" in g.nodes and len(g.nodes) > 1 for r in run.rounds for g in r.groups)


def test_a_fault_of_most_nodes_alone_is_shared_and_excludes_none():
    run = search(Cluster(names(8), bad_alone=dict.fromkeys(names(5), 0.0)))
    assert run.verdict.kind == "shared"
    assert convicted(run.verdict) == ()
    assert "something that they share" in run.verdict.sentence


def test_if_no_pair_passes_no_node_is_blamed():
    for n in (3, 4, 12, 100):
        run = search(Cluster(names(n), loss=1.0))
        assert run.verdict.kind == "shared"
        assert run.verdict.culprits == ()
        assert {n for s in run.verdict.undecided for n in s.nodes} == set(names(n))


def test_two_nodes_stay_undecided_and_the_verdict_suggests_a_spare_node():
    run = search(Cluster(names(2), bad={"node1": 0.0}))
    assert run.verdict.kind == "undecided"
    assert convicted(run.verdict, certain=False) == ()
    assert [s.nodes for s in run.verdict.undecided] == [("node1", "node2")]
    assert "node1 and node2 each pass alone, and together fail 2 times" in run.verdict.sentence
    assert "a spare node would decide: test it with node1 and with node2" in run.verdict.sentence


def test_a_bad_rail_of_two_nodes_is_named_without_blaming_a_node():
    run = search(Cluster(names(2), rails={"node2": 5}, local_ranks=8))
    assert run.verdict.kind == "undecided"
    assert "together fail on rail 5" in run.verdict.sentence


def test_of_three_nodes_one_bad_is_named_and_two_bad_are_not():
    for bad in names(3):
        run = search(Cluster(names(3), bad={bad: 0.0}))
        others = [n for n in names(3) if n != bad]
        assert convicted(run.verdict) == (bad,)
        assert all(n in run.verdict.sentence for n in others)
        assert "2 of 2 tests" in run.verdict.sentence
    two = search(Cluster(names(3), bad={"node1": 0.0, "node2": 0.0}))
    assert convicted(two.verdict, certain=False) == ()
    assert two.verdict.kind == "shared"


def test_a_rail_is_named_rather_than_the_node_and_the_rails_of_a_bad_partner_are_not_mixed_in():
    run = search(Cluster(names(64), rails={"node7": 3, "node8": 5, "node30": 0}, local_ranks=8, noise=0.02))
    found = {(c.nodes[0], c.local_ranks) for c in run.verdict.culprits if c.part == "rail"}
    assert found == {("node7", (3,)), ("node8", (5,)), ("node30", (0,))}
    assert "rail 3 of node7 fails with" in run.verdict.sentence


@pytest.mark.long
def test_a_bad_link_blames_no_node_and_is_named():
    for n in (3, 4, 5, 16, 64):
        for seed in range(20):
            a, b = Random(f"{n} {seed}").sample(names(n), 2)
            run = search(Cluster(names(n), links=frozenset({link(a, b)})), seed)
            assert blamed(run) == set(), run.verdict.sentence
            assert [set(c.nodes) for c in run.verdict.culprits] == [{a, b}], run.verdict.sentence
            assert run.verdict.culprits[0].part == "link"
            assert len(run.rounds) <= most_rounds(n)


def test_a_bad_link_beside_bad_nodes_blames_these_nodes_only(trials):
    for seed in trials(100):
        random = Random(seed)
        *bad, a, b = random.sample(names(40), 6)
        run = search(Cluster(names(40), bad=dict.fromkeys(bad, 0.0), links=frozenset({link(a, b)})), seed)
        assert blamed(run) == set(bad)


@pytest.mark.long
def test_one_pass_does_not_clear_a_flaky_node_and_no_other_is_blamed(trials):
    noticed = named = 0
    seeds = trials(1200)
    for seed in seeds:
        bad = Random(seed).choice(names(64))
        run = search(Cluster(names(64), bad={bad: 0.3}, noise=0.03), seed)
        assert blamed(run) <= {bad}, run.verdict.sentence
        noticed += run.verdict.kind != "healthy"
        named += blamed(run) == {bad}
        for culprit in run.verdict.culprits:
            if culprit.part == "node" and "flaky" in culprit.sentence:
                passed, of = map(int, re.search(r"flaky, passed (\d+) of (\d+)", culprit.sentence).groups())
                assert (passed > 0, of - passed) == (True, len(culprit.evidence))
    assert noticed / len(seeds) > 0.98
    assert named / len(seeds) > 0.7


def test_many_flaky_nodes_at_once_leave_the_innocent_alone(trials):
    wrong = 0
    for seed in trials(60):
        bad = Random(seed).sample(names(200), 10)
        run = search(Cluster(names(200), bad=dict.fromkeys(bad, 0.3), noise=0.03), seed)
        assert set(convicted(run.verdict)) <= set(bad)
        wrong += len(blamed(run) - set(bad))
    assert wrong <= 1


def test_a_node_that_is_flaky_alone_is_named_with_its_score():
    runs = [search(Cluster(names(8), bad_alone={"node3": 0.5}), seed) for seed in range(40)]
    assert all(blamed(r) <= {"node3"} for r in runs)
    assert any("flaky, passed 1 of 3" in r.verdict.sentence and r.verdict.culprits[0].certain for r in runs)
    assert any("flaky, passed 2 of 3" in r.verdict.sentence and not r.verdict.culprits[0].certain for r in runs)


def test_failures_spread_over_links_everywhere_are_the_networks():
    for seed, loss in enumerate((0.1, 0.2, 0.3)):
        run = search(Cluster(names(128), loss=loss), seed)
        assert run.verdict.kind == "shared"
        assert convicted(run.verdict) == ()
