"""How well bad nodes are found on simulated clusters, against two ways of testing everybody in two rounds of pairs.

``python tests/benchmarks/isolation_accuracy.py [--write] [--trials N]`` prints a JSON list

Searches run as real ones do, with their settings and to their end, by the scheduler that drives these, and only what a
test of a group gives is simulated. ``--write`` puts the table into docs/reliability.md.

The other sides see the same clusters, with the same faults:

- *dlrover* does what dlrover's network check does (NetworkCheckRendezvousManager in its rdzv_manager.py): all nodes in
  adjacent pairs, then the fastest with the slowest; a node is bad if its group failed both times, slow if its better
  time is above twice the median, and of three nodes or fewer nothing is said.
- *everybody twice* tests all nodes in adjacent pairs, then each with its neighbour on the other side; a node is bad if
  its group failed both times, slow if both groups had less than 0.8 of their round's median speed: below that share a
  group is slow for distcheck.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from distcheck.isolation.round import PAIRED, NodeGroup
from distcheck.run.garbage import THRESHOLDS

sys.path.insert(0, str(Path(__file__).parents[1]))
from isolation.simulator import Cluster, convicted, link, measured, names, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FAILED_SECONDS = 3600.0
"""What dlrover counts for a failure."""
NOISE = 0.03
SIZES = (4, 8, 16, 64, 256, 1024, 4096, 12_500)
FEWER_TRIALS = {256: 4, 1024: 20, 4096: 50, 12_500: 100}
"""Of such sizes, by which factor."""
SLOW_SHARE = 0.8
FEWEST_OF_DLROVER = 4


class Outcome(NamedTuple):
    """Of one trial: the nodes that were blamed, the rounds of pairs and the tests of pairs."""

    blamed: frozenset[str]
    rounds: int
    tests: int


class Score(NamedTuple):
    """Of many trials."""

    exact: float
    """The share in which the blamed nodes are exactly the bad ones."""
    missed: float
    """Bad nodes that were not blamed, per trial."""
    innocent: float
    """Good nodes that were blamed, per trial."""
    rounds: int
    """At most."""
    tests: float
    """Per trial."""


def ours(cluster: Cluster, seed: int) -> Outcome:
    run = search(cluster, seed)
    blamed = frozenset(convicted(run.verdict, certain=False))
    tests = sum(g.purpose in PAIRED for r in run.rounds for g in r.groups)
    return Outcome(blamed, run.pair_rounds, tests)


def dlrover(cluster: Cluster, seed: int) -> Outcome:
    random = Random(f"world {seed}")
    nodes = list(cluster.nodes)
    if len(nodes) < FEWEST_OF_DLROVER:
        return Outcome(frozenset(), 0, 0)
    half = len(nodes) // 2
    first = _seconds(cluster, _adjacent(nodes), random)
    if not _at_fault(first):
        return Outcome(frozenset(), 1, half)
    by_speed = sorted(nodes, key=lambda n: first[n])
    pairs = [[by_speed[i], by_speed[-1 - i]] for i in range(half)]
    if len(nodes) % 2:
        pairs[-1].append(by_speed[half])
    second = _seconds(cluster, pairs, random)
    return Outcome(_at_fault({n: min(first[n], second[n]) for n in nodes}), 2, 2 * half)


def _at_fault(seconds: dict[str, float]) -> frozenset[str]:
    usual = median(seconds.values())
    return frozenset(n for n, took in seconds.items() if took >= FAILED_SECONDS or took > 2 * usual)


def everybody_twice(cluster: Cluster, seed: int) -> Outcome:
    random = Random(f"world {seed}")
    nodes = list(cluster.nodes)
    bad = set(nodes)
    for order in (nodes, [*nodes[1:], nodes[0]]):
        seconds = _seconds(cluster, _adjacent(order), random)
        passed = [took for took in seconds.values() if took < FAILED_SECONDS]
        most = median(passed) / SLOW_SHARE if passed else 0.0
        bad &= {n for n, took in seconds.items() if took > most}
    return Outcome(frozenset(bad), 2, 2 * (len(nodes) // 2))


SIDES: dict[str, tuple[str, Callable[[Cluster, int], Outcome]]] = {
    "ours": ("distcheck", ours),
    "dlrover": ("dlrover's two rounds", dlrover),
    "twice": ("everybody twice", everybody_twice),
}


def _adjacent(nodes: list[str]) -> list[list[str]]:
    pairs = [nodes[i : i + 2] for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs[-1].append(nodes[-1])
    return pairs


def _seconds(cluster: Cluster, groups: Iterable[list[str]], random: Random) -> dict[str, float]:
    """Return how long each node's group took in the other sides' test.

    That test runs the ranks' own work and a collective over all rails, so its time shows the slowest of both.
    """
    seconds: dict[str, float] = {}
    for i, nodes in enumerate(groups):
        result = measured(cluster, i, NodeGroup(tuple(nodes), "pair"), random)
        passed = result.ended == "passed" and result.seconds and all(r.ended == "passed" for r in result.rails)
        took = (result.seconds or 0.0) / _slowest(cluster, nodes) if passed else FAILED_SECONDS
        seconds.update(dict.fromkeys(nodes, took))
    return seconds


def _slowest(cluster: Cluster, nodes: list[str]) -> float:
    """Return the least share of its speed that a rank's own work or a rail of these nodes has."""
    work = [share for (node, _), share in cluster.slow_compute.items() if node in nodes]
    rails = [SLOW_RAIL for n in nodes if n in cluster.slow_rails]
    return min([*work, *rails], default=1.0)


def _some(nodes: list[str], share: float, random: Random) -> list[str]:
    return random.sample(nodes, max(1, int(len(nodes) * share)))


def bad_nodes(share: float) -> Callable[[int, Random], tuple[Cluster, set[str]]]:
    def make(n: int, random: Random) -> tuple[Cluster, set[str]]:
        ill = _some(names(n), share, random)
        return Cluster(names(n), bad=dict.fromkeys(ill, 0.0), noise=NOISE), set(ill)

    return make


def flaky_nodes(n: int, random: Random) -> tuple[Cluster, set[str]]:
    ill = _some(names(n), 0.02, random)
    return Cluster(names(n), bad=dict.fromkeys(ill, 0.3), noise=NOISE), set(ill)


def slow_nodes(speed: float) -> Callable[[int, Random], tuple[Cluster, set[str]]]:
    def make(n: int, random: Random) -> tuple[Cluster, set[str]]:
        ill = _some(names(n), 0.05, random)
        return Cluster(names(n), slow=dict.fromkeys(ill, speed), noise=NOISE), set(ill)

    return make


def bad_links(n: int, random: Random) -> tuple[Cluster, set[str]]:
    """Links between neighbours, which the first round meets; no node is bad."""
    ends = random.sample(range(0, n, 2), max(1, n // 100))
    pairs = frozenset(link(names(n)[i], names(n)[i + 1]) for i in ends)
    return Cluster(names(n), links=pairs, noise=NOISE), set()


def bad_alone(n: int, random: Random) -> tuple[Cluster, set[str]]:
    ill = _some(names(n), 0.02, random)
    return Cluster(names(n), bad_alone=dict.fromkeys(ill, 0.0), noise=NOISE), set(ill)


def slow_device(n: int, random: Random) -> tuple[Cluster, set[str]]:
    """One rank of some nodes computes at half of its speed."""
    ill = _some(names(n), 0.02, random)
    slow = {(node, random.randrange(RANKS)): 0.4 for node in ill}
    return Cluster(names(n), slow_compute=slow, local_ranks=RANKS, noise=NOISE), set(ill)


def bad_rail(n: int, random: Random) -> tuple[Cluster, set[str]]:
    ill = _some(names(n), 0.02, random)
    return Cluster(names(n), rails={i: random.randrange(RANKS) for i in ill}, local_ranks=RANKS, noise=NOISE), set(ill)


def slow_rail(n: int, random: Random) -> tuple[Cluster, set[str]]:
    ill = _some(names(n), 0.02, random)
    slow = {node: random.randrange(RANKS) for node in ill}
    return Cluster(names(n), slow_rails=slow, local_ranks=RANKS, noise=NOISE), set(ill)


def slow_links(n: int, random: Random) -> tuple[Cluster, set[str]]:
    ends = random.sample(range(0, n, 2), max(1, n // 100))
    slow = {link(names(n)[i], names(n)[i + 1]): 0.3 for i in ends}
    return Cluster(names(n), slow_links=slow, noise=NOISE), set()


def only_the_whole(n: int, _random: Random) -> tuple[Cluster, set[str]]:
    """Groups of more than half of the nodes fail; no node is bad."""
    return Cluster(names(n), largest=n // 2, noise=NOISE), set()


def two_sides(n: int, random: Random) -> tuple[Cluster, set[str]]:
    return Cluster(names(n), side=frozenset(names(n)[: n // 2]), noise=NOISE), set()


def sides_anywhere(n: int, random: Random) -> tuple[Cluster, set[str]]:
    """Two sides of any size from two nodes on, whose names tell nothing; no node is bad."""
    return Cluster(names(n), side=frozenset(random.sample(names(n), random.randint(2, n // 2))), noise=NOISE), set()


def three_sides(n: int, random: Random) -> tuple[Cluster, set[str]]:
    part = {node: random.randrange(3) for node in names(n)} | dict(zip(names(n), [0, 0, 1, 1, 2, 2], strict=False))
    return Cluster(names(n), part=part, noise=NOISE), set()


RANKS = 8
"""On each node, where ranks or their rails count."""
SLOW_RAIL = 0.4
"""Of its speed, as the simulator has it."""

KINDS: dict[str, Callable[[int, Random], tuple[Cluster, set[str]]]] = {
    "one bad node": bad_nodes(0.0),
    "10% bad nodes": bad_nodes(0.10),
    "29% bad nodes": bad_nodes(0.29),
    "2% flaky nodes, passing 30%": flaky_nodes,
    "5% nodes at 0.4 of the speed": slow_nodes(0.4),
    "5% nodes at 0.6 of the speed": slow_nodes(0.6),
    "2% nodes bad alone": bad_alone,
    "2% nodes with a device at 0.4 of the speed": slow_device,
    "2% nodes with a bad rail": bad_rail,
    "2% nodes with a rail at 0.4 of the speed": slow_rail,
    "1% bad links": bad_links,
    "1% links at 0.3 of the speed": slow_links,
    "only groups of more than half fail": only_the_whole,
    "two sides cut off from one another": two_sides,
    "two sides of any names and sizes": sides_anywhere,
    "three sides of any names": three_sides,
}


def scores(kind: str, n: int, trials: int) -> dict[str, Score]:
    """Return the score of each side over the same clusters."""
    found: dict[str, list[tuple[Outcome, set[str]]]] = {side: [] for side in SIDES}
    for seed in range(trials):
        cluster, truth = KINDS[kind](n, Random(f"{kind} {n} {seed}"))
        for side, (_, test) in SIDES.items():
            found[side].append((test(cluster, seed), truth))
    return {side: _score(its) for side, its in found.items()}


def _score(found: list[tuple[Outcome, set[str]]]) -> Score:
    return Score(
        fmean(o.blamed == truth for o, truth in found),
        fmean(len(truth - o.blamed) for o, truth in found),
        fmean(len(o.blamed - truth) for o, truth in found),
        max(o.rounds for o, _ in found),
        fmean(o.tests for o, _ in found),
    )


def row(kind: str, n: int, trials: int) -> dict[str, Any]:
    its = {side: score._asdict() for side, score in scores(kind, n, trials).items()}
    return {"kind": kind, "nodes": n, "trials": trials, **its}


def measure(trials: int, only: str = "", sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Return a row for each kind and size, measured by a process on every core; the largest first.

    The processes search for garbage as rarely as distcheck's own.
    """
    wanted = [(kind, n, max(1, trials // FEWER_TRIALS.get(n, 1))) for kind in KINDS if only in kind for n in sizes]
    with ProcessPoolExecutor(initializer=gc.set_threshold, initargs=THRESHOLDS) as pool:
        rows = {w: pool.submit(row, *w) for w in sorted(wanted, key=lambda its: -its[1])}
        return [rows[w].result() for w in wanted]


def page(rows: list[dict[str, Any]]) -> list[str]:
    """Write the rows as the table of docs/reliability.md, with what holds for all of them."""
    lines = [
        "| fault | side | " + " | ".join(f"{n:,} nodes" for n in SIZES) + " |",
        "|---|---|" + "---|" * len(SIZES),
    ]
    for kind in KINDS:
        its = [r for r in rows if r["kind"] == kind]
        for side, (name, _) in SIDES.items():
            shares = " | ".join(f"{100 * r[side]['exact']:.3g} %" for r in its)
            lines.append(f"| {kind if side == 'ours' else ''} | {name} | {shares} |")
        lines.append("| | rounds of pairs, at most | " + " | ".join(str(r["ours"]["rounds"]) for r in its) + " |")
        each = (f"{2 * r['ours']['tests'] / r['nodes']:.1f}" for r in its)
        lines.append(f"| | tests of pairs, each node | {' | '.join(each)} |")
    trials = ", ".join(f"{r['trials']} of {r['nodes']:,}" for r in rows if r["kind"] == rows[0]["kind"])
    innocent = {side: sum(r[side]["innocent"] * r["trials"] for r in rows) for side in SIDES}
    named = ", ".join(f"{SIDES[side][0]} {number:,.0f}" for side, number in innocent.items())
    total = sum(r["trials"] for r in rows)
    measured_on = f"Clusters of each kind: {trials} nodes. The other sides test each node twice, in two rounds at most."
    return [*lines, "", f"{measured_on} Good nodes named in all {total:,} clusters: {named}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--trials", type=int, default=100, help="of each row; fewer of the large clusters")
    parser.add_argument("--only", default="", help="the kinds that contain this")
    parser.add_argument("--nodes", type=int, nargs="*", default=SIZES, help="the sizes of the clusters")
    chosen = parser.parse_args()
    rows = measure(chosen.trials) if chosen.write else measure(chosen.trials, chosen.only, chosen.nodes)
    if chosen.write:
        sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
        tables = import_module("measured")
        command = "python tests/benchmarks/isolation_accuracy.py --write"
        tables.put("docs/reliability.md", "isolation accuracy", page(rows), command=command)
        return
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
