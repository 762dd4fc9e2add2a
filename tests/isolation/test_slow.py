"""Slow nodes, rails, links and ranks: convicted by repetition against the others, never by noise or by a collective."""

from __future__ import annotations

from math import exp
from random import Random

import pytest
from isolation.simulator import Cluster, convicted, link, names, search

from distcheck.isolation.figures import mark_slow, settled, trials_of
from distcheck.isolation.round import Compute, NodeGroup, Rail, Result, Round, Trial
from distcheck.isolation.schedule import next_round, take
from distcheck.isolation.state import Settings, settings_for, start

FEW = [(n, speed) for n in (3, 4, 5, 7) for speed in (0.1, 0.4)]
MORE = [(n, speed) for n in (8, 12, 20, 64, 300) for speed in (0.1, 0.4, 0.7)]


@pytest.mark.parametrize(("n", "speed"), FEW + MORE)
def test_only_a_slow_node_is_named_after_three_slow_tests(n, speed):
    for seed in range(5):
        slow = Random(seed).choice(names(n))
        run = search(Cluster(names(n), slow={slow: speed}, noise=0.02, seconds_only=seed % 2 == 0), seed)
        assert convicted(run.verdict) == (slow,), run.verdict.sentence
        (culprit,) = run.verdict.culprits
        assert culprit.fault == "slow"
        assert len(culprit.evidence) >= 3
        assert "of what the others show" in culprit.sentence


@pytest.mark.long
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_several_slow_nodes_are_all_named(share):
    for n in (10, 50, 400):
        for seed in range(20 if n < 400 else 3):
            slow = Random(f"{n} {seed}").sample(names(n), max(1, int(share * n)))
            run = search(Cluster(names(n), slow=dict.fromkeys(slow, 0.4), noise=0.03), seed)
            assert set(convicted(run.verdict)) == set(slow), run.verdict.sentence


@pytest.mark.parametrize(
    ("n", "noise"),
    [
        *((n, s) for n in (2, 3, 4, 8, 64) for s in (0.02, 0.1, 0.2)),
        (64, 0.4),
        *(pytest.param(512, s, marks=pytest.mark.long) for s in (0.02, 0.1, 0.2, 0.4)),
    ],
)
def test_noise_convicts_no_node(n, noise):
    for seed in range(30 if n < 64 else 6):
        run = search(Cluster(names(n), noise=noise, local_ranks=2 if n < 64 else 0), seed)
        assert convicted(run.verdict) == (), (seed, run.verdict.sentence)


@pytest.mark.parametrize("n", [3, 4, 8, 20, 64])
@pytest.mark.parametrize("share", [0.35, 0.8])
def test_a_node_behind_a_link_of_a_twentieth_is_found_among_figures_that_scatter_by_a_third(n, share):
    runs = 30 if n < 64 else 6
    verdicts = []
    for seed in range(runs):
        slow = Random(seed).choice(names(n))
        noisy = Cluster(names(n), slow={slow: 0.05}, noise=0.3)
        verdicts.append(({slow}, set(convicted(search(noisy, seed, Settings(slow_share=share)).verdict))))
    assert all(found <= slow for slow, found in verdicts)
    assert sum(found == slow for slow, found in verdicts) >= 0.9 * runs


def test_a_slow_rail_and_a_slow_link_are_named_as_such():
    rail = search(Cluster(names(32), slow_rails={"node7": 3}, local_ranks=8, noise=0.02)).verdict
    assert [(c.part, c.nodes, c.local_ranks) for c in rail.culprits] == [("rail", ("node7",), (3,))]
    assert "rail 3 of node7 is slow" in rail.sentence
    way = search(Cluster(names(32), slow_links={link("node7", "node8"): 0.3}, noise=0.02)).verdict
    assert [(c.part, c.nodes, c.fault) for c in way.culprits] == [("link", ("node7", "node8"), "slow")]


@pytest.mark.parametrize("n", [3, 4, 8, 40])
@pytest.mark.parametrize(("rails", "share"), [({0, 1}, 0.5), ({7}, 0.75)])
def test_rails_that_are_slow_on_every_node_blame_no_node(n, rails, share):
    random, state = Random(1), start(names(n))
    while isinstance(now := next_round(state), Round):
        results = []
        for i, group in enumerate(now.groups):
            speeds = [40 * (share if r in rails else 1) * (1 + 0.01 * random.random()) for r in range(8)]
            its = tuple(Rail(r, "passed", speed) for r, speed in enumerate(speeds)) if len(group.nodes) == 2 else ()
            results.append(Result(group=i, ended="passed", busbw_GBps=40.0, rails=its))
        state = take(state, now, results)
    assert now.kind == "healthy", now.sentence


@pytest.mark.parametrize("n", [3, 4, 8, 40])
def test_a_rail_that_is_slow_on_one_node_is_still_found(n):
    run = search(Cluster(names(n), slow_rails={"node2": 3}, local_ranks=8, noise=0.02))
    assert [(c.part, c.nodes, c.local_ranks) for c in run.verdict.culprits] == [("rail", ("node2",), (3,))]


@pytest.mark.parametrize("n", [1, 2, 4, 64])
def test_a_rank_that_computes_slowly_is_named_after_a_repetition(n):
    slow = {("node1", 3): 0.4}
    run = search(Cluster(names(n), slow_compute=slow, local_ranks=8, noise=0.02))
    (culprit,) = run.verdict.culprits
    assert (culprit.part, culprit.nodes, culprit.local_ranks) == ("rank", ("node1",), (3,))
    assert culprit.certain == (n > 1), "a node alone may show the job's own configuration"
    assert culprit.sentence.startswith("local rank 3 of node1 does its matrix multiplication at ")
    assert "(rounds 1, 2 and 3)" in culprit.sentence
    assert {e.ratio for e in culprit.evidence} == {None}, "the collective was not slow"
    told = [said for e in culprit.evidence for said in e.said]
    assert len(told) == 3
    assert all(text.startswith("node1: local rank 3: matrix multiplication at ") for text in told), told


def test_ranks_on_different_devices_are_not_compared():
    state = start(names(2))
    for _ in range(4):
        now = next_round(state)
        if not isinstance(now, Round):
            break
        speeds = {"node1": Compute("node1", 0, 0.01, 0.01, "H200"), "node2": Compute("node2", 0, 0.08, 0.02, "L4")}
        state = take(state, now, [
            Result(group=i, ended="passed", seconds=1.0, compute=tuple(speeds[n] for n in g.nodes if len(g.nodes) == 1))
            for i, g in enumerate(now.groups)
        ])  # fmt: skip
    assert next_round(state).kind == "healthy"


@pytest.mark.parametrize(
    ("device", "slow", "named"),
    [
        ("gloo", {"matmul"}, False),
        ("gloo", {"copy"}, False),
        ("gloo", {"matmul", "copy"}, True),
        ("L4", {"copy"}, True),
    ],
)
def test_a_cpu_is_named_if_both_its_products_and_its_copies_are_slow(device, slow, named):
    state = start(names(4))
    while isinstance(now := next_round(state), Round):
        results = []
        for number, group in enumerate(now.groups):
            shares = {work: 0.2 if group.nodes == ("node1",) and work in slow else 1.0 for work in ("matmul", "copy")}
            work = (Compute(group.nodes[0], 0, 0.01 / shares["matmul"], 0.002 / shares["copy"], device),)
            results.append(
                Result(group=number, ended="passed", seconds=0.01, compute=work if len(group.nodes) == 1 else ())
            )
        state = take(state, now, results)
    assert [culprit.nodes for culprit in now.culprits] == ([("node1",)] if named else [])


BUSY_CPUS = {"alone": (0.8, 0.8), "healthy": (0.2, 0.4), "slow": (0.014, 0.1)}
"""Gloo between nodes that share two busy cores, one of them limited to 100 Mbit/s: the usual figure in GB/s, and the
standard deviation of its logarithm."""


@pytest.mark.parametrize("slow", ["node3", None])
def test_on_busy_cpus_a_slow_node_is_found_and_no_other_is_named(slow):
    found = 0
    for seed in range(100):
        random, state = Random(seed), start(names(4), settings=settings_for("gloo"))
        while isinstance(now := next_round(state), Round):
            kinds = ["alone" if len(g.nodes) == 1 else "slow" if slow in g.nodes else "healthy" for g in now.groups]
            speeds = [BUSY_CPUS[kind][0] * exp(random.gauss(0, BUSY_CPUS[kind][1])) for kind in kinds]
            results = [Result(group=i, ended="passed", busbw_GBps=speed) for i, speed in enumerate(speeds)]
            state = take(state, now, results)
        assert {n for c in now.culprits for n in c.nodes} <= {slow}, (seed, now.sentence)
        assert now.undecided == (), (seed, now.sentence)
        found += bool(now.culprits)
    assert found >= 95 if slow else found == 0


def _pairs(speeds):
    return [
        Trial(1, tuple(f"node{n}" for n in pair), "pair", "passed", "passed", speed=speed) for pair, speed in speeds
    ]


def test_a_figure_of_a_slow_node_that_noise_lifts_above_the_bound_is_slow_too():
    slow, lifted = [("34", 13.9), ("23", 19.5), ("34", 14.2)], [("13", 30.5)]
    others = [("12", 211.0), ("14", 146.0), ("24", 76.0), ("12", 262.0)]
    judged = mark_slow(_pairs([*slow, *lifted, *others]), (), together=True, slow_share=0.35)
    assert [t.outcome for t in judged] == ["slow"] * 3 + ["passed"] * 5
    assert [t.outcome for t in settled(judged, 0.35)] == ["slow"] * 4 + ["passed"] * 4


@pytest.mark.parametrize(
    "speeds",
    [
        {"12": 210.0, "34": 13.9, "23": 190.0, "14": 146.0, "13": 30.5, "24": 75.7},
        {"12": 210.0, "34": 13.9, "23": 19.5, "14": 146.0, "13": 105.0, "24": 75.7},
    ],
    ids=["slow with one node only", "as fast as others with one node"],
)
def test_other_figures_stay_as_they_are_judged(speeds):
    judged = mark_slow(_pairs(speeds.items()), (), together=True, slow_share=0.35)
    assert settled(judged, 0.35) == judged


def test_unlike_groups_are_not_compared():
    now = Round(1, tuple(NodeGroup((f"a{i}", f"b{i}"), "pair") for i in range(6)))
    results = [Result(group=i, ended="passed", busbw_GBps=[40.0, 8.0][i % 2], like="ab"[i % 2]) for i in range(6)]
    assert {t.outcome for t in mark_slow(trials_of(now, results), ())} == {"passed"}
    alike = [Result(group=i, ended="passed", busbw_GBps=8.0 if i == 0 else 40.0) for i in range(6)]
    assert [t.outcome for t in mark_slow(trials_of(now, alike), ())] == ["slow", *["passed"] * 5]


def test_a_node_that_reports_a_failure_is_not_blamed_for_it():
    """In every failing pair the good node complains, as in practice: the bad one is silent."""
    state = start(names(8))
    while isinstance(now := next_round(state), Round):
        results = []
        for i, group in enumerate(now.groups):
            bad = "node5" in group.nodes and len(group.nodes) > 1
            said = tuple(f"{n}: timeout in all_reduce" for n in group.nodes if n != "node5") if bad else ()
            results.append(Result(group=i, ended="hung" if bad else "passed", said=said))
        state = take(state, now, results)
    assert convicted(now) == ("node5",)
    assert not any(said.startswith("node5") for e in now.culprits[0].evidence for said in e.said)


@pytest.mark.parametrize(("too_good", "certain"), [(2.1, False), (5.1, False), (12.0, True)])
def test_one_lucky_figure_of_two_nodes_excludes_no_node(too_good, certain):
    """The other one was measured once, and may have been several times too good by chance, but not ten times."""
    state = start(["node1", "node2"])
    while isinstance(now := next_round(state), Round):
        results = []
        for number, group in enumerate(now.groups):
            seconds = 0.01 / too_good if group.nodes == ("node1",) else 0.01
            work = tuple(Compute(node, 0, seconds, 0.002, "nccl") for node in group.nodes if len(group.nodes) == 1)
            results.append(Result(group=number, ended="passed", seconds=0.01, compute=work))
        state = take(state, now, results)
    (culprit,) = now.culprits
    assert (culprit.part, culprit.nodes, culprit.certain) == ("rank", ("node2",), certain)
