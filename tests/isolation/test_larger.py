"""Faults only of larger groups: a boundary, a limit of scale, an untested link; no node is blamed."""

from __future__ import annotations

from random import Random

import pytest
from isolation.simulator import Cluster, convicted, is_certain, link, most_rounds, names, search

from distcheck.isolation.larger import sizes, split


def test_groups_grow_fourfold_up_to_all():
    assert sizes(1) == []
    assert sizes(2) == [2]
    assert sizes(8) == [8]
    assert sizes(100) == [8, 32, 100]
    assert sizes(12_500) == [8, 32, 128, 512, 2048, 8192, 12_500]


def test_nodes_are_split_evenly_and_none_is_left_out():
    for n in range(2, 200):
        for size in (2, 8, 32):
            parts = split(names(n), size)
            assert [x for p in parts for x in p] == names(n)
            assert max(map(len, parts)) <= size
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("n", [4, 6, 8, 16, 64, pytest.param(1024, marks=pytest.mark.long)])
@pytest.mark.parametrize("part", [2, 4])
def test_a_boundary_names_its_two_sides_and_no_node(n, part):
    if n // part < 2:
        part = 2
    side = names(n)[: n // part]
    run = search(Cluster(names(n), side=frozenset(side)))
    assert run.verdict.kind == "boundary", run.verdict.sentence
    assert run.verdict.culprits == ()
    assert [set(s) for s in run.verdict.boundaries[0].sides] == [set(side), set(names(n)) - set(side)]
    assert run.verdict.boundaries[0].cause == "boundary"
    assert "boundary, infrastructure or scale" in run.verdict.sentence
    assert not is_certain(run.verdict)


@pytest.mark.long
@pytest.mark.parametrize("n", [4, 5, 6, 7, 8, 10, 17, 33, 64])
def test_no_boundary_confirms_a_bad_node(n):
    told = trials = 0
    for k in range(2, n - 1):
        for seed in range(20 if n < 12 else 3):
            run = search(Cluster(names(n), side=frozenset(names(n)[:k]), noise=0.03), seed)
            assert convicted(run.verdict) == (), (k, seed, run.verdict.sentence)
            told += run.verdict.kind == "boundary"
            trials += 1
    assert told / trials > 0.75


@pytest.mark.parametrize("n", [16, 64, 100, pytest.param(1024, marks=pytest.mark.long)])
@pytest.mark.parametrize("largest", [4, 8, 31, 40, 200])
def test_a_failure_only_above_a_size_is_reported_as_scale(n, largest):
    run = search(Cluster(names(n), largest=largest))
    if largest >= n:
        assert run.verdict.kind == "healthy"
        return
    assert run.verdict.kind == "boundary", run.verdict.sentence
    assert {b.cause for b in run.verdict.boundaries} == {"scale"}
    assert all(len(side) <= largest for b in run.verdict.boundaries for side in b.sides)
    assert convicted(run.verdict, certain=False) == ()
    assert len(run.rounds) <= most_rounds(n)


def test_bad_nodes_and_a_limit_of_scale_are_both_reported():
    run = search(Cluster(names(64), bad={"node9": 0.0, "node40": 0.0}, largest=16))
    assert set(convicted(run.verdict)) == {"node9", "node40"}
    assert {b.cause for b in run.verdict.boundaries} == {"scale"}


def test_bad_nodes_and_a_boundary_are_both_reported():
    run = search(Cluster(names(64), bad={"node9": 0.0, "node40": 0.0}, side=frozenset(names(32))))
    assert {"node9", "node40"} == set(convicted(run.verdict))
    assert [b.cause for b in run.verdict.boundaries] == ["boundary"]


@pytest.mark.parametrize("n", range(4, 17))
def test_a_partition_into_two_groups_names_no_node_whatever_their_names(n):
    for seed in range(25):
        random = Random(f"{n} {seed}")
        side = frozenset(random.sample(names(n), n // 2 if n > 8 else random.randint(2, n - 2)))
        run = search(Cluster(names(n), side=side), seed)
        assert convicted(run.verdict) == (), (sorted(side), run.verdict.sentence)
        assert run.verdict.kind != "healthy"


def test_a_node_that_fails_with_one_side_only_may_be_on_the_other():
    run = search(Cluster(names(6), side=frozenset({"node3", "node4", "node6"})))
    assert convicted(run.verdict, certain=False) == ()
    assert not is_certain(run.verdict)


def test_a_bad_link_that_no_pair_tested_is_found_by_groups():
    run = search(Cluster(names(64), links=frozenset({link("node1", "node30")})))
    assert not any(set(g.nodes) == {"node1", "node30"} for r in run.rounds[:3] for g in r.groups)
    assert [(c.part, set(c.nodes)) for c in run.verdict.culprits] == [("link", {"node1", "node30"})]


def test_a_slow_link_between_groups_of_a_size_is_seen_against_the_others_of_that_size():
    run = search(Cluster(names(256), slow_links={link("node1", "node6"): 0.3}, noise=0.02))
    assert run.verdict.kind in {"boundary", "found"}
    assert {"node1", "node6"} <= {n for b in run.verdict.boundaries for s in b.sides for n in s} | {
        n for c in run.verdict.culprits for n in c.nodes
    }
    assert convicted(run.verdict, certain=False) == ()
