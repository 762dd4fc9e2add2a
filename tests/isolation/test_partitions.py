"""A partitioned network convicts no node for its side, whenever the search ends."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isolation.simulator import Cluster, convicted, measured, names, search

from distcheck.isolation.round import Result, Round
from distcheck.isolation.schedule import next_round, so_far, take
from distcheck.isolation.state import lose, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.isolation import Isolation
    from distcheck.isolation.state import State


def verdicts(cluster: Cluster) -> Iterator[tuple[State, Isolation]]:
    """Yield the verdict for a time limit after every round, and at last the final one."""
    state, random = start(cluster.nodes), Random(0)
    while isinstance(now := next_round(state), Round):
        state = take(state, now, [measured(cluster, i, g, random) for i, g in enumerate(now.groups)])
        yield state, so_far(state)
    yield state, now


def assert_nobody_is_convicted(part: dict[str, int]) -> None:
    said = [verdict for _, verdict in verdicts(Cluster(list(part), part=part))]
    assert [convicted(v, certain=False) for v in said] == [()] * len(said), (part, said[-1].sentence)
    assert said[-1].kind != "healthy"


@pytest.mark.long
@pytest.mark.parametrize("n", range(4, 8))
def test_a_partition_of_few_nodes_never_convicts_a_node(n):
    """Every partition into two or three parts of at least two nodes."""
    ways = {
        tuple({p: i for i, p in enumerate(dict.fromkeys(way))}[p] for p in way) for way in product(range(3), repeat=n)
    }
    ways = {way for way in ways if len(set(way)) > 1 and min(Counter(way).values()) > 1}
    assert len(ways) == {4: 3, 5: 10, 6: 40, 7: 161}[n]
    for way in ways:
        assert_nobody_is_convicted(dict(zip(names(n), way, strict=True)))


@pytest.mark.long
@given(st.integers(8, 48), st.data())
def test_a_partition_into_any_parts_never_convicts_a_node(n, data):
    """From two to eight parts independent of names; small ones are as likely as large ones."""
    sizes = data.draw(
        st.lists(st.integers(2, max(2, n // 2)), min_size=1, max_size=7).filter(lambda s: sum(s) <= n - 2)
    )
    parts = [i for i, size in enumerate([*sizes, n - sum(sizes)]) for _ in range(size)]
    data.draw(st.randoms(use_true_random=False)).shuffle(parts)
    assert_nobody_is_convicted(dict(zip(names(n), parts, strict=True)))


@pytest.mark.long
@pytest.mark.parametrize(("n", "tries"), [(64, 5), (250, 1)])
def test_of_many_nodes_neither_a_few_nor_a_half_are_convicted_for_being_cut_off_from_the_others(n, tries):
    for seed in range(tries):
        for size in (2, 3, 5, n // 10, n // 3, n // 2):
            side = frozenset(Random(f"{n} {seed} {size}").sample(names(n), size))
            assert_nobody_is_convicted({node: int(node in side) for node in names(n)})


@pytest.mark.long
@pytest.mark.parametrize("parts", [(60, 2, 2), (58, 2, 2, 2), (55, 3, 3, 3), (48, 4, 4, 4, 4)])
def test_several_unseen_sides_are_found_among_nodes_that_never_passed(parts):
    """Without their own tests they look like many bad nodes: they are paired while larger groups are tested."""
    for seed in range(15):
        numbers = [i for i, size in enumerate(parts) for _ in range(size)]
        Random(seed).shuffle(numbers)
        assert_nobody_is_convicted(dict(zip(names(64), numbers, strict=True)))


@pytest.mark.long
def test_bad_nodes_beside_a_partition_are_convicted_and_only_these():
    for seed in range(30):
        random = Random(seed)
        *bad, _ = random.sample(names(64), random.randint(2, 5))
        side = frozenset(random.sample(names(64), 32)) if seed % 2 else frozenset(names(64)[: random.randint(8, 56)])
        said = [v for _, v in verdicts(Cluster(names(64), bad=dict.fromkeys(bad, 0.0), side=side))]
        assert all(set(convicted(v)) <= set(bad) for v in said), said[-1].sentence
        if not seed % 2:
            assert set(convicted(said[-1])) == set(bad), said[-1].sentence


def test_two_bad_nodes_are_certain_only_when_they_failed_with_each_other_too():
    for a, b in combinations(names(6), 2):
        for state, verdict in verdicts(Cluster(names(6), bad={a: 0.0, b: 0.0})):
            together = any({a, b} == set(t.nodes) and t.bad for t in state.tests)
            assert together or not convicted(verdict, certain=False)
        assert set(convicted(verdict)) == {a, b}


@pytest.mark.parametrize("n", [4, 8, 16, 64])
def test_nodes_that_never_passed_are_tested_with_each_other_at_no_extra_round(n):
    healthy = len(search(Cluster(names(n))).rounds)
    bad = Random(n).sample(names(n), max(1, n // 10))
    run = search(Cluster(names(n), bad=dict.fromkeys(bad, 0.0)))
    assert run.pair_rounds <= 4
    assert len(run.rounds) - run.pair_rounds <= healthy - 2
    assert all(any({a, b} == set(t.nodes) for t in run.state.tests) for a, b in combinations(bad, 2))


@pytest.mark.parametrize("part", [{1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1}, {1: 0, 2: 1, 3: 0, 4: 1, 5: 0, 6: 0}])
def test_what_is_undecided_names_both_ends_of_every_failure(part):
    cluster = Cluster(names(6), part={f"node{i}": p for i, p in part.items()})
    told = 0
    for state, verdict in verdicts(cluster):
        failed = [set(t.nodes) for t in state.tests if t.bad and len(t.nodes) == 2]
        for suspects in verdict.undecided:
            told += 1
            ends = [set(e.nodes) for e in suspects.evidence]
            assert len(suspects.nodes) > 1
            assert set(suspects.nodes) == set().union(*ends)
            assert all(pair in failed for pair in ends)
            assert all(n in suspects.sentence for n in suspects.nodes)
    assert told


def test_an_end_of_the_one_pair_that_failed_is_never_named_alone():
    """Time runs out before it is known which of the two it is, or the path between them."""
    for n in (3, 4, 5, 8):
        state = start(names(n))
        now = next_round(state)
        for _ in range(3):
            bad = [{"node1", "node2"} == set(g.nodes) for g in now.groups]
            state = take(state, now, [Result(group=i, ended="hung" if b else "passed") for i, b in enumerate(bad)])
            for suspects in so_far(state).undecided:
                assert set(suspects.nodes) >= {"node1", "node2"}
            now = next_round(state)
            if not isinstance(now, Round):
                break


@pytest.mark.parametrize("n", [6, 7])
def test_nodes_that_failed_with_each_other_twice_stand_once_among_those_that_nothing_tells_apart(trials, n):
    for seed in trials(800 if n == 6 else 32):
        chance, state = Random(seed), start(names(n))
        while isinstance(now := next_round(state), Round):
            ended = [chance.choice(["failed", "failed", "untested", "passed"]) for _ in now.groups]
            state = take(state, now, [Result(group=i, ended=how) for i, how in enumerate(ended)])
            if chance.random() < 0.15 and state.nodes:
                state = lose(state, {chance.choice(state.nodes): "left"})
        for suspects in now.undecided:
            assert len(set(suspects.nodes)) == len(suspects.nodes), (seed, suspects)
