"""How well bad nodes are found on simulated clusters, against testing everybody in pairs twice.

``python tests/benchmarks/isolation_accuracy.py [--json | --write] [--trials N]``

Searches run as real ones do, with their settings and to their end, by the scheduler that drives these, and only what a
test of a group gives is simulated. ``--write`` puts the table into docs/reliability.md.

The other side is what dlrover's network check does: all nodes in adjacent pairs, then the fastest with the slowest; a
node is bad when its group failed both times, slow when its better time is above twice the median, and of three nodes
or fewer nothing is said. Both sides see the same clusters, with the same faults.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import tabulate

from distcheck.isolation.round import PAIRED, NodeGroup

sys.path.insert(0, str(Path(__file__).parents[1]))
from isolation.simulator import Cluster, link, measured, names, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FAILED_SECONDS = 3600.0
NOISE = 0.03
SIZES = (4, 16, 64, 256, 1024, 12_500)
FEWER_TRIALS = {1024: 10, 12_500: 50}
"""Of such sizes, by which factor."""


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


def ours(cluster: Cluster, seed: int) -> Outcome:
    run = search(cluster, seed)
    blamed = frozenset(run.verdict.bad_nodes(certain=False))
    tests = sum(g.purpose in PAIRED for r in run.rounds for g in r.groups)
    return Outcome(blamed, run.pair_rounds, tests)


def everybody_twice(cluster: Cluster, seed: int) -> Outcome:
    random = Random(f"world {seed}")
    nodes = list(cluster.nodes)
    if len(nodes) <= 3:
        return Outcome(frozenset(), 0, 0)
    first = _timed(cluster, _adjacent(nodes), random)
    by_speed = sorted(nodes, key=lambda n: first[n])
    half = len(nodes) // 2
    pairs = [[by_speed[i], by_speed[-1 - i]] for i in range(half)]
    if len(nodes) % 2:
        pairs[-1].append(by_speed[half])
    second = _timed(cluster, pairs, random)
    best = {n: min(first[n], second[n]) for n in nodes}
    usual = median(best.values())
    return Outcome(frozenset(n for n in nodes if best[n] > 2 * usual), 2, 2 * half)


def _adjacent(nodes: list[str]) -> list[list[str]]:
    pairs = [nodes[i : i + 2] for i in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs[-1].append(nodes[-1])
    return pairs


def _timed(cluster: Cluster, groups: Iterable[list[str]], random: Random) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for i, nodes in enumerate(groups):
        result = measured(cluster, i, NodeGroup(tuple(nodes), "pair"), random)
        took = result.seconds if result.ended == "passed" and result.seconds else FAILED_SECONDS
        seconds.update(dict.fromkeys(nodes, took))
    return seconds


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


def two_sides(n: int, random: Random) -> tuple[Cluster, set[str]]:
    return Cluster(names(n), side=frozenset(names(n)[: n // 2]), noise=NOISE), set()


def sides_anywhere(n: int, random: Random) -> tuple[Cluster, set[str]]:
    """Two sides of any size from two nodes on, whose names tell nothing; no node is bad."""
    return Cluster(names(n), side=frozenset(random.sample(names(n), random.randint(2, n // 2))), noise=NOISE), set()


def three_sides(n: int, random: Random) -> tuple[Cluster, set[str]]:
    part = {node: random.randrange(3) for node in names(n)} | dict(zip(names(n), [0, 0, 1, 1, 2, 2], strict=False))
    return Cluster(names(n), part=part, noise=NOISE), set()


KINDS: dict[str, Callable[[int, Random], tuple[Cluster, set[str]]]] = {
    "one bad node": bad_nodes(0.0),
    "10% bad nodes": bad_nodes(0.10),
    "29% bad nodes": bad_nodes(0.29),
    "2% flaky nodes, passing 30%": flaky_nodes,
    "5% nodes at 0.4 of the speed": slow_nodes(0.4),
    "5% nodes at 0.6 of the speed": slow_nodes(0.6),
    "1% bad links": bad_links,
    "two sides cut off from one another": two_sides,
    "two sides of any names and sizes": sides_anywhere,
    "three sides of any names": three_sides,
}


def scores(kind: str, n: int, trials: int) -> tuple[Score, Score]:
    """Return the score of distcheck and of the other side over the same clusters."""
    found: tuple[list[tuple[Outcome, set[str]]], list[tuple[Outcome, set[str]]]] = ([], [])
    for seed in range(trials):
        cluster, truth = KINDS[kind](n, Random(f"{kind} {n} {seed}"))
        found[0].append((ours(cluster, seed), truth))
        found[1].append((everybody_twice(cluster, seed), truth))
    return _score(found[0]), _score(found[1])


def _score(found: list[tuple[Outcome, set[str]]]) -> Score:
    return Score(
        fmean(o.blamed == truth for o, truth in found),
        fmean(len(truth - o.blamed) for o, truth in found),
        fmean(len(o.blamed - truth) for o, truth in found),
        max(o.rounds for o, _ in found),
        fmean(o.tests for o, _ in found),
    )


def row(kind: str, n: int, trials: int) -> dict[str, Any]:
    mine, theirs = scores(kind, n, trials)
    return {"kind": kind, "nodes": n, "trials": trials, "ours": mine._asdict(), "theirs": theirs._asdict()}


def measure(trials: int, only: str = "") -> list[dict[str, Any]]:
    """Return a row for each kind and size, measured by a process on every core; the largest first."""
    wanted = [(kind, n, max(1, trials // FEWER_TRIALS.get(n, 1))) for kind in KINDS if only in kind for n in SIZES]
    with ProcessPoolExecutor() as pool:
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
        for side, name in (("ours", "distcheck"), ("theirs", "everybody twice")):
            shares = " | ".join(f"{100 * r[side]['exact']:.3g} %" for r in its)
            lines.append(f"| {kind if side == 'ours' else ''} | {name} | {shares} |")
        rounds = " | ".join(str(r["ours"]["rounds"]) for r in its)
        lines.append(f"| | rounds of pairs, at most | {rounds} |")
    trials = ", ".join(f"{r['trials']} of {r['nodes']:,}" for r in rows if r["kind"] == rows[0]["kind"])
    innocent = [sum(r[side]["innocent"] * r["trials"] for r in rows) for side in ("ours", "theirs")]
    total = sum(r["trials"] for r in rows)
    named = f"distcheck named {innocent[0]:.0f} good nodes, testing everybody twice {innocent[1]:,.0f}"
    return [*lines, "", f"Clusters of each kind: {trials} nodes. In all {total:,} clusters {named}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--trials", type=int, default=100, help="of each row; fewer of the large clusters")
    parser.add_argument("--only", default="", help="the kinds that contain this")
    chosen = parser.parse_args()
    rows = measure(chosen.trials, "" if chosen.write else chosen.only)
    if chosen.json:
        print(json.dumps(rows))
        return
    if chosen.write:
        sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
        tables = import_module("measured")
        covers = ["distcheck/isolation/*.py", "tests/isolation/simulator.py", "tests/benchmarks/isolation_accuracy.py"]
        command = "python tests/benchmarks/isolation_accuracy.py --write"
        tables.put("docs/reliability.md", "isolation accuracy", page(rows), covers=covers, command=command)
        return
    columns = ["exact", "missed", "innocent", "rounds", "tests"]
    table = [[r["kind"], r["nodes"], *(r[side][c] for side in ("ours", "theirs") for c in columns)] for r in rows]
    print(tabulate.tabulate(table, ["kind", "nodes", *columns, *(f"theirs: {c}" for c in columns)], floatfmt=".3g"))


if __name__ == "__main__":
    main()
