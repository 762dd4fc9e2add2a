"""The culprits and suspects of a search, each with its evidence and a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from distcheck.facts.isolation import CulpritFacts, GroupTest, Suspects
from distcheck.isolation import words
from distcheck.isolation.alone import Alone
from distcheck.isolation.attribution import TIMES, Attribution
from distcheck.isolation.larger import Boundary
from distcheck.isolation.round import WORST_FIRST, Outcome, Trial
from distcheck.isolation.sight import Sight
from distcheck.isolation.tally import Edge, Tally
from distcheck.isolation.together import SMALL, WITNESSES

CERTAIN_PARTNERS = 3
"""Partners with which a flaky node must fail before it is certain."""
CERTAIN_SLOW = 3
"""Slow tests before a slow node is certain."""
ENOUGH_RANKS = 4
"""Ranks on each of two nodes: this many cannot all be too fast by chance."""
BEYOND_CHANCE = 0.15
"""With two nodes, the other's single figure may by chance be several times too good; below this, slow is certain."""
_MOST_SAID = 4


def evidence(tests: Iterable[Trial]) -> tuple[GroupTest, ...]:
    """Return the tests as evidence; the speed of a test that was not slow is none."""
    return tuple(
        GroupTest(t.round, t.nodes, t.purpose, t.outcome, t.ratio if t.outcome == "slow" else None, t.said[:_MOST_SAID])
        for t in tests
    )


def worst(tests: Iterable[Trial]) -> Outcome:
    """Return the worst outcome of these tests."""
    outcomes = {t.outcome for t in tests}
    return next((w for w in WORST_FIRST if w in outcomes), "failed")


def rails(tests: Sequence[Trial]) -> tuple[int, ...]:
    """Return the rails that are bad in all of these tests while other rails are good."""
    common = set.intersection(*(set(t.rails) for t in tests)) if tests else set()
    return tuple(sorted(common))


def of_alone(node: str, its: Alone, *, of_two: bool = False) -> CulpritFacts:
    """Return a node that is bad alone, or its ranks whose own work is slow."""
    if not its.hard and its.slow_ranks:
        return _slow_ranks(node, its, of_two=of_two)
    bad = its.hard or its.slow
    passed = sum(not t.bad for t in its.runs) if its.hard else 0
    sentence = (
        f"{node} {words.DID[worst(bad)]} alone, without any other node{words.share(bad)}: "
        f"{words.score(passed, passed + len(bad))} {words.rounds(bad)}"
    )
    return CulpritFacts(
        part="node", nodes=(node,), local_ranks=(), fault=worst(bad),
        certain=len(bad) > 1 and (bool(its.hard) or not of_two or _beyond_chance(t.ratio for t in bad)),
        evidence=evidence(bad), sentence=sentence,
    )  # fmt: skip


def _beyond_chance(ratios: Iterable[float | None]) -> bool:
    return all(ratio is not None and ratio < BEYOND_CHANCE for ratio in ratios)


def _slow_ranks(node: str, its: Alone, *, of_two: bool) -> CulpritFacts:
    shown = tuple(t for t in its.runs if t.slow_ranks)
    at = tuple(dict.fromkeys(s.local_rank for s in its.slow_ranks))
    work = words.names(list(dict.fromkeys(words.WORK[s.work] for s in its.slow_ranks)))
    sentence = (
        f"{words.ranks(at, 'local rank')}{node} does its {work} at {min(s.ratio for s in its.slow_ranks):.0%} "
        f"of the speed of the others {words.rounds(shown)}"
    )
    return CulpritFacts(
        part="rank", nodes=(node,), local_ranks=at, fault="slow",
        certain=not of_two or len({c.local_rank for c in its.runs[-1].compute}) >= ENOUGH_RANKS
        or _beyond_chance(s.ratio for s in its.slow_ranks),
        evidence=evidence(replace(t, said=(_slowest(t, at),)) for t in shown), sentence=sentence,
    )  # fmt: skip


def _slowest(test: Trial, local_ranks: Sequence[int]) -> str:
    """Return the slowest own work of these ranks in a test, whose outcome is that of its collective."""
    slowest = min((s for s in test.slow_ranks if s.local_rank in local_ranks), key=lambda s: s.ratio)
    work = f"{words.WORK[slowest.work]} at {slowest.ratio:.0%} of the others"
    return f"{slowest.node}: local rank {slowest.local_rank}: {work}"


def of_pairs(seen: Sight) -> list[CulpritFacts]:
    """Return the nodes and rails that fail with several nodes that work with others."""
    never = [_node(n, seen.known, tests) for n, tests in seen.found.never.items() if seen.found.convicted(n)]
    return never + [_node(n, known, tests) for known, found in seen.sides for n, tests in found.flaky.items()]


def _node(node: str, known: Tally, shown: tuple[Trial, ...]) -> CulpritFacts:
    partners, fault, at = _with(node, shown), worst(shown), rails(shown)
    passed = known.passed[node]
    # Among few nodes, passing with one and failing with three may also be a boundary.
    enough = len(partners) >= CERTAIN_PARTNERS and len(known.order) > SMALL if passed else len(partners) >= WITNESSES
    certain = enough and (fault != "slow" or len(shown) >= CERTAIN_SLOW)
    sentence = (
        f"{words.ranks(at, 'rail')}{node} {words.DID[fault]} with {words.names(partners)}, which work with others"
        f"{words.share(shown)}: {words.score(passed, passed + len(shown))} {words.rounds(shown)}"
        f"{'' if certain else '; or the paths to them'}"
    )
    return CulpritFacts(
        part="rail" if at else "node", nodes=(node,), local_ranks=at, fault=fault,
        certain=certain, evidence=evidence(shown), sentence=sentence,
    )  # fmt: skip


def of_links(seen: Sight) -> list[CulpritFacts]:
    """Return the links that failed twice while both ends work with others."""
    return [_link(edge, tests, its) for _, its in seen.sides for edge, tests in its.left.items() if _persistent(tests)]


def _persistent(tests: Sequence[Trial]) -> bool:
    return len(tests) >= TIMES and all(t.bad for t in tests)


def _link(edge: Edge, bad: Sequence[Trial], found: Attribution) -> CulpritFacts:
    at = rails(bad)
    sentence = (
        f"the link between {edge[0]} and {edge[1]} {_on(at)}{words.DID[worst(bad)]}{words.share(bad)}: "
        f"{len(bad)} of {len(bad)} tests {words.rounds(bad)}, and both work with others"
    )
    return CulpritFacts(
        part="link", nodes=edge, local_ranks=at, fault=worst(bad),
        certain=not found.widespread, evidence=evidence(bad), sentence=sentence,
    )  # fmt: skip


def of_group(found: Boundary) -> CulpritFacts:
    """Return the link that the search in groups found."""
    return CulpritFacts(
        part="link", nodes=(*found.sides[0], *found.sides[1]), local_ranks=(), fault=worst(found.tests),
        certain=True, evidence=evidence(found.tests), sentence=words.boundary(found),
    )  # fmt: skip


def suspects(seen: Sight, excused: Sequence[CulpritFacts]) -> list[Suspects]:
    """Return the nodes that may be at fault, with both ends of each of their failures.

    `excused` are those whose failures a partition explains equally well.
    """
    known, found = seen.known, seen.found
    nodes = [n for n in found.never if not found.convicted(n)]
    if len(known.order) == len(nodes) == 2:
        bad = known.bad[nodes[0]]
        return [Suspects(tuple(nodes), evidence(bad), words.two_nodes(nodes, worst(bad), len(bad), rails(bad)))]
    said: list[Suspects] = []
    for group in _linked(nodes, known):
        tests = list(dict.fromkeys(t for n in group for t in known.bad[n]))
        others = sorted({n for t in tests for n in t.nodes}.difference(group), key=known.order.__getitem__)
        said.append(Suspects((*group, *others), evidence(tests), words.never_passed(group, others)))
    if excused:
        own = dict.fromkeys(c.nodes[0] for c in excused)
        ends = {n for c in excused for e in c.evidence for n in e.nodes}
        others = [n for n in known.order if n in ends and n not in own]
        tests_of = tuple(dict.fromkeys(e for c in excused for e in c.evidence))
        said.append(Suspects((*own, *others), tests_of, words.other_side(list(own), others)))
    return said


def _linked(nodes: Sequence[str], known: Tally) -> Iterable[list[str]]:
    """Yield groups of nodes that failed with each other, directly or through others, in order."""
    left = set(nodes)
    for first in nodes:
        group = [first] if first in left else []
        left.discard(first)
        for node in group:
            linked = {t.other(node) for t in known.bad[node]} & left
            left -= linked
            group += linked
        if group:
            yield sorted(group, key=known.order.__getitem__)


def flaky_suspects(seen: Sight) -> list[Suspects]:
    """Return pairs that failed sometimes, and nodes that were slow with some partners only."""
    said: list[Suspects] = []
    for known, found in seen.sides:
        for edge, tests in found.left.items():
            bad = [t for t in tests if t.bad]
            if any(t.hard for t in bad) and not _persistent(tests):
                a, b = edge
                now_and_then = f"now and then (passed {len(tests) - len(bad)} of {len(tests)})"
                sentence = (
                    f"{a} with {b} {_on(rails(bad))}{words.DID[worst(bad)]} {now_and_then}, and both work with "
                    f"others: {a}, {b} or the path between them"
                )
                said.append(Suspects(edge, evidence(bad), sentence))
        for node in found.sometimes_slow:
            bad = [t for t in known.bad[node] if t.outcome == "slow"]
            partners = _with(node, bad)
            sentence = (
                f"{node} is slow with {words.names(partners)} and not with others{words.share(bad)}: "
                f"passed {known.passed[node]} of {known.tests(node)}; it, or the paths to them"
            )
            said.append(Suspects((node, *partners), evidence(bad), sentence))
    return said


def _with(node: str, tests: Iterable[Trial]) -> list[str]:
    return list(dict.fromkeys(t.other(node) for t in tests))


def _on(at: Sequence[int]) -> str:
    return f"on {words.ranks(at, 'rail').removesuffix(' of ')} " if at else ""
