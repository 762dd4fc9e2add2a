"""The contract of the schedule: disjoint groups, bounded rounds, the same for the same input, whatever the results."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isolation.simulator import Cluster, convicted, measured, most_rounds, names, search

from distcheck.facts.isolation import Isolation
from distcheck.isolation.round import Compute, Rail, Result, Round
from distcheck.isolation.schedule import next_round, so_far, take
from distcheck.isolation.state import State, by_name, lose, start

ENDINGS = ["passed", "passed", "passed", "failed", "wrong", "hung", "untested"]


def finish(state: State, data: st.DataObject) -> tuple[State, Isolation]:
    """Drive a search with arbitrary results, some of them left out."""
    while isinstance(now := next_round(state), Round):
        assert now.number == len(state.rounds) + 1 <= most_rounds(len(state.nodes) + len(state.missing))
        members = [n for g in now.groups for n in g.nodes]
        assert len(members) == len(set(members)) > 0
        assert set(members) <= set(state.nodes)
        assert next_round(state) == now
        seed = data.draw(st.randoms(use_true_random=False))
        results = [
            Result(
                group=i,
                ended=seed.choice(ENDINGS),
                busbw_GBps=seed.choice([None, 0.0, 1.0, 40.0, 41.0]),
                rails=tuple(
                    Rail(r, seed.choice(ENDINGS), seed.choice([None, 1.0, 40.0])) for r in range(seed.randint(0, 2))
                ),
                compute=tuple(
                    Compute(g.nodes[0], r, seed.choice([None, 0.0, 0.1, 5.0])) for r in range(seed.randint(0, 2))
                ),
            )
            for i, g in enumerate(now.groups)
            if seed.random() < 0.95
        ]
        state = take(state, now, results)
        if seed.random() < 0.05 and state.nodes:
            state = lose(state, {seed.choice(state.nodes): "left"})
    return state, now


@pytest.mark.long
@given(st.integers(0, 40), st.integers(0, 5), st.data())
def test_any_results_lead_to_a_verdict_within_the_bound(n, seed, data):
    state, verdict = finish(start(names(n), seed=seed), data)
    assert verdict.sentence
    assert set(convicted(verdict, certain=False)) <= set(state.nodes)
    if verdict.kind == "healthy":
        assert verdict.culprits == ()
        assert not verdict.undecided
        assert not any(t.hard for t in state.tests if set(t.nodes) <= set(state.nodes))
    msgspec.json.decode(msgspec.json.encode(verdict), type=Isolation)


@given(st.integers(2, 60), st.data())
def test_persistently_bad_nodes_are_the_only_ones_ever_blamed(n, data):
    bad = data.draw(st.sets(st.sampled_from(names(n)), max_size=n))
    run = search(Cluster(names(n), bad=dict.fromkeys(bad, 0.0)))
    assert set(convicted(run.verdict, certain=False)) <= bad
    if bad:
        assert run.verdict.kind != "healthy" or n < 2


def test_the_same_names_seed_and_results_give_the_same_rounds_and_another_seed_other_partners():
    cluster = Cluster(names(40), bad={"node3": 0.0, "node20": 0.3}, noise=0.05)
    assert search(cluster, 1).rounds == search(cluster, 1).rounds
    shuffled = Cluster(list(reversed(names(40))), bad=cluster.bad, noise=0.05)
    assert search(shuffled, 1).rounds == search(cluster, 1).rounds
    healthy = Cluster(names(40), bad={"node3": 0.0})
    assert search(healthy, 1).rounds != search(healthy, 2).rounds


def test_a_search_can_be_saved_between_rounds():
    cluster = Cluster(names(16), bad={"node3": 0.0})
    state = start(cluster.nodes)
    while isinstance(now := next_round(state), Round):
        from random import Random

        state = take(state, now, [measured(cluster, i, g, Random(0)) for i, g in enumerate(now.groups)])
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    assert convicted(now) == ("node3",)


def test_nodes_are_neighbours_by_their_numbers():
    assert sorted(["n10", "n9", "n1", "m2-3", "m2-10", "x"], key=by_name) == ["m2-3", "m2-10", "n1", "n9", "n10", "x"]
    first = next_round(start(["n10", "n9", "n1", "n2"]))
    assert [g.nodes for g in first.groups] == [("n1",), ("n2",), ("n9",), ("n10",)]
    assert len({by_name(n) for n in ["a", "a0", "a00", "0", "00", "9" * 5000]}) == 6


def test_missing_nodes_are_reported_and_take_no_part():
    state = start(names(4), missing={"node2": "no answer on port 29500", "node9": "could not log in"})
    assert state.nodes == ("node1", "node3", "node4")
    while isinstance(now := next_round(state), Round):
        state = take(state, now, [Result(group=i, ended="passed") for i in range(len(now.groups))])
    assert now.untested == ("node2", "node9")
    assert "missing: node2 (no answer on port 29500)" in now.sentence


def test_a_node_that_leaves_is_missing_and_its_partner_is_not_blamed():
    state = start(names(8))
    while isinstance(now := next_round(state), Round):
        ended = ["hung" if "node4" in g.nodes and now.number > 1 else "passed" for g in now.groups]
        state = take(state, now, [Result(group=i, ended=e) for i, e in enumerate(ended)])
        if "hung" in ended:
            state = lose(state, {"node4": "connection lost"})
    assert now.kind == "healthy", now.sentence
    assert now.untested == ("node4",)
    assert "missing: node4 (connection lost); 7 nodes passed alone and in groups of up to 7" in now.sentence


@pytest.mark.parametrize("n", [2, 3, 4, 9, 40])
def test_at_any_time_limit_only_bad_nodes_are_named_and_convictions_stay(n):
    for seed in range(10):
        bad = {Random(f"{n} {seed}").choice(names(n)): 0.0}
        state, random, known = start(names(n), seed=seed), Random(seed), set()
        cluster = Cluster(names(n), bad=bad, noise=0.05)
        while isinstance(now := next_round(state), Round):
            named = set(convicted(so_far(state)))
            assert known <= named <= bad.keys()
            known = named
            state = take(state, now, [measured(cluster, i, g, random) for i, g in enumerate(now.groups)])
        assert known <= set(convicted(now))


@pytest.mark.parametrize("n", range(5, 17))
def test_at_any_time_limit_no_node_is_named_for_its_side(n):
    sides = [names(n)[:k] for k in range(2, n - 1)]
    # Of more nodes a few stand out by chance in pairs only, where neighbours by name are no neighbours.
    sides += [Random(f"{n} {seed}").sample(names(n), n // 2) for seed in range(10 if n <= 12 else 0)]
    for side in sides:
        cluster, state, random = Cluster(names(n), side=frozenset(side)), start(names(n)), Random(0)
        while isinstance(now := next_round(state), Round):
            state = take(state, now, [measured(cluster, i, g, random) for i, g in enumerate(now.groups)])
            assert convicted(so_far(state)) == (), (side, now.number)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 64])
def test_a_decided_bad_node_is_named_at_the_time_limit(n):
    for seed in range(10):
        bad = Random(f"{n} {seed}").choice(names(n))
        cluster, state, random = Cluster(names(n), bad={bad: 0.0}), start(names(n)), Random(0)
        while isinstance(now := next_round(state), Round) and not any(g.purpose == "group" for g in now.groups):
            state = take(state, now, [measured(cluster, i, g, random) for i, g in enumerate(now.groups)])
        assert convicted(so_far(state)) == (bad,)


def test_undecided_nodes_at_the_time_limit_are_reported():
    state = start(names(2))
    while isinstance(now := next_round(state), Round):
        state = take(
            state, now, [Result(group=i, ended="hung" if now.number > 1 else "passed") for i in range(len(now.groups))]
        )
    found = so_far(state)
    assert (found.kind, [s.nodes for s in found.undecided]) == ("ended", [("node1", "node2")])
    assert found.sentence.startswith("time limit reached; node1 and node2 each pass alone")


def test_a_node_whose_only_partner_left_is_in_one_group_a_round():
    """It is in the groups, which started with it, and passed with no node that is still present."""
    state, in_groups = start(names(8)), False
    while isinstance(now := next_round(state), Round):
        members = [n for g in now.groups for n in g.nodes]
        assert len(members) == len(set(members)), now.groups
        results = []
        for i, g in enumerate(now.groups):
            if "node1" in g.nodes and len(g.nodes) == 2 and "node2" not in g.nodes:
                continue
            bad = len(g.nodes) > 1 and ("node8" in g.nodes or len(g.nodes) > 2)
            results.append(Result(group=i, ended="failed" if bad else "passed"))
        state = take(state, now, results)
        if any(g.purpose == "group" and "node1" in g.nodes for g in now.groups):
            state, in_groups = lose(state, {"node2": "left"}), True
    assert in_groups


def test_without_any_test_the_verdict_is_not_a_pass():
    state = start(names(4))
    while isinstance(now := next_round(state), Round):
        state = take(state, now, [])
    assert now.kind == "unmeasured"
    assert start([]) == State((), {})
    assert next_round(start([])).kind == "unmeasured"


def test_a_group_without_a_result_is_not_a_pass():
    state = start(names(8))
    while isinstance(now := next_round(state), Round):
        state = take(
            state, now, [Result(group=i, ended="passed") for i, g in enumerate(now.groups) if len(g.nodes) < 8]
        )
    assert now.kind == "undecided"
    assert "no result of 1 group of up to 8 nodes" in now.sentence


def test_results_without_a_group_are_refused():
    state = start(names(2))
    now = next_round(state)
    for wrong in (
        [Result(group=2, ended="passed")],
        [Result(group=0, ended="passed")] * 2,
        [Result(group=-1, ended="hung")],
    ):
        with pytest.raises(ValueError, match="has no result to take"):
            take(state, now, wrong)
    with pytest.raises(ValueError, match="out of turn"):
        take(take(state, now, []), now, [])


@pytest.mark.long
def test_every_pair_round_of_many_thousand_nodes_uses_every_node_that_is_not_set_aside():
    run = search(Cluster(names(3001), bad={"node7": 0.0}))
    assert convicted(run.verdict) == ("node7",)
    for now in run.rounds[1:3]:
        assert sum(len(g.nodes) for g in now.groups) >= 2998
