"""Who is tested with whom: neighbours first, then every suspect with a node that has passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

from distcheck.isolation.attribution import REPEATS, TIMES, WITNESSES, Attribution, Edge, Tally
from distcheck.isolation.round import PAIRED, Group, Purpose, Round
from distcheck.isolation.state import State, by_name
from distcheck.isolation.together import Together

ROUNDS = 4
"""Of pairs, as long as there are enough good nodes to test the suspects with."""
FURTHER_ROUNDS = 8
"""At most, where suspects had to wait for good nodes."""
LAST_ROUNDS = 2
"""After the groups, at most, where suspects met one part of the nodes only."""
CUT = 2
"""Failing pairs, no two of the same node, that all cross the same two sides."""
CLEAR_CUT = 3
"""So many that suspects are from then on tested with nodes of their own side only."""
SMALL = 8
"""Up to so many nodes, two bad ones may be all of a side, and are tested with each other before they are convicted."""
FEW = 3
"""Of so few nodes every two are tested: no median tells which pair is slow."""


class Pairs(NamedTuple):
    """What pairs to test, and who has to wait for a good partner."""

    groups: list[Group]
    waiting: tuple[str, ...] = ()


def next_pairs(state: State, known: Tally, found: Attribution, joined: Together) -> Pairs:
    """Return the pairs of the next round, none when pairs tell no more."""
    done = _rounds(state)
    if not done:
        return Pairs(_neighbours(list(known.order)))
    if len(known.order) < 2 or not _time(done):
        odd = len(known.order) % 2  # one node began a round late
        return Pairs(_strangers(known, found, time=len(done) < ROUNDS + odd))
    groups, waiting = _confirming(known, found, joined, last=len(done) == ROUNDS - 1)
    groups = groups or _strangers(known, found, time=True)
    busy = {n for g in groups for n in g.nodes}.union(found.never, waiting)
    random = Random(f"{state.seed} {len(done)}")  # noqa: S311 - the same partners on every run
    idle = [n for n in known.order if n not in busy]
    spare = _controls(known, idle, random, far=len(done) == 1)
    if len(known.order) <= FEW:
        spare = [g for a, b in combinations(idle, 2) if _unmet(known, g := _pair(known, a, b, "pair"))][:1] or spare
    covers = any(_unmet(known, g) for g in spare) and (len(done) == 1 or len(known.order) <= FEW)
    return Pairs([*groups, *spare] if groups or covers else [], waiting)


def within_sides(state: State, parts: Sequence[tuple[Tally, Attribution]], joined: Together) -> Pairs:
    """Return the pairs that decide about the suspects of each side, with partners of the same side."""
    done = _rounds(state)
    if not _time(done):
        return Pairs([])
    both = [_confirming(known, found, joined, last=len(done) == ROUNDS - 1) for known, found in parts]
    return Pairs([g for groups, _ in both for g in groups], tuple(n for _, waiting in both for n in waiting))


def elsewhere(parts: Sequence[tuple[Tally, Attribution]], joined: Together) -> list[Group]:
    """Pair who failed with one part of the nodes only with a node of another: if they pass, it is of that part."""
    free = [n for known, found in parts for n in known.order if known.passed[n] and n not in found.flaky]
    groups: list[Group] = []
    for node in (n for _, found in parts for n in found.never if found.convicted(n) and joined.apart(n)):
        met = joined.beside(node)
        partner = next((n for n in free if n in joined.part and n not in met), None)
        if partner is not None:
            free.remove(partner)
            first, second = sorted((node, partner), key=by_name)
            groups.append(Group((first, second), "confirming"))
    return groups


def _rounds(state: State) -> list[Round]:
    return [r for r, _ in state.rounds if any(g.purpose in PAIRED for g in r.groups)]


def _time(done: Sequence[Round]) -> bool:
    return len(done) < ROUNDS + min(FURTHER_ROUNDS, sum(bool(r.waiting) for r in done))


def _neighbours(nodes: Sequence[str]) -> list[Group]:
    return [Group((a, b), "pair") for a, b in zip(nodes[::2], nodes[1::2], strict=False)]


def _pair(known: Tally, a: str, b: str, purpose: Purpose) -> Group:
    first, second = sorted((a, b), key=known.order.__getitem__)
    return Group((first, second), purpose)


def _unmet(known: Tally, group: Group) -> bool:
    return group.nodes[1] not in known.met[group.nodes[0]]


def _confirming(
    known: Tally, found: Attribution, joined: Together, *, last: bool
) -> tuple[list[Group], tuple[str, ...]]:
    """Return the pairs that decide about suspects, and the suspects that have to wait."""
    touched = {n for edge in found.left for n in edge} | set(found.flaky) | set(found.sometimes_slow)
    clean = [n for n in known.order if known.passed[n] and n not in touched]
    reference = frozenset(clean)
    suspects = [n for n in found.never if _open(known, found, n, reference)]
    suspects += [n for n in known.order if n in touched and _wants_reference(known, found, n, reference, last=last)]
    untested = [n for n in known.order if not known.tests[n]]
    half = len(clean) // 2
    free = deque(sorted(clean[half:] + clean[:half], key=lambda n: -known.passed[n]))
    groups: list[Group] = []
    unserved: list[str] = []
    for node in (*suspects, *untested):
        again = _all_met(known, node, reference)
        partner = _first(free, known.met[node] | joined.beside(node), again=False)
        partner = partner or _first(free, known.met[node], again=again)
        if partner is None:
            unserved.append(node)
        else:
            groups.append(_pair(known, node, partner, "confirming"))
    busy = {n for g in groups for n in g.nodes} | set(unserved)
    for a, b in _to_repeat(known, found, reference, last=last):
        if a not in busy and b not in busy:
            groups.append(Group((a, b), "confirming"))
            busy |= {a, b}
    groups += _among_suspects(known, unserved)
    return groups, tuple(unserved)


def _all_met(known: Tally, node: str, reference: frozenset[str]) -> bool:
    others = len(reference) - (node in reference)
    return len(known.met[node]) >= others and reference - {node} <= known.met[node]


def _open(known: Tally, found: Attribution, node: str, reference: frozenset[str]) -> bool:
    """Whether another test would tell more about a node that never passed."""
    bad, beside = known.bad[node], found.never[node]
    witnesses = len({t.other(node) for t in beside})
    slow = not any(t.hard for t in bad)
    if witnesses >= WITNESSES and len(beside if slow else bad) >= REPEATS:
        return False
    if not _all_met(known, node, reference):
        return True
    if slow and witnesses:
        return len(beside) < REPEATS
    if witnesses >= WITNESSES:
        return False
    others = len(known.order) - 1
    return len(known.met[node]) < others or (others == 1 and len(bad) < TIMES)


def _wants_reference(known: Tally, found: Attribution, node: str, reference: frozenset[str], *, last: bool) -> bool:
    """Whether a node that passed and failed shall meet another good one, rather than the same one again."""
    if _all_met(known, node, reference) or known.tests[node] >= ROUNDS:
        return False
    if node in found.flaky or node in found.sometimes_slow:
        return True
    met_badly = {(t.nodes[0], t.nodes[1]) for t in known.bad[node]} & found.left.keys()
    if all(len(found.left[edge]) >= TIMES for edge in met_badly):
        return False
    return known.passed[node] < _passes(last=last) or len(met_badly) > 1


def _passes(*, last: bool) -> int:
    """Return how often a node shall have passed with others before a pair of its is repeated."""
    return 1 if last else 2


def _to_repeat(known: Tally, found: Attribution, reference: frozenset[str], *, last: bool) -> list[Edge]:
    """Return the pairs to be tried once more: each of them works with others, and only this failure is left."""
    return [
        edge
        for edge, tests in found.left.items()
        if len(tests) < TIMES
        and all(known.passed[n] >= _passes(last=last) or _all_met(known, n, reference) or not reference for n in edge)
    ]


def _first(free: deque[str], met: set[str], *, again: bool) -> str | None:
    """Take the first good node that was not met yet, or any where all were."""
    for i, candidate in enumerate(free):
        if again or candidate not in met:
            del free[i]
            return candidate
    return None


def _strangers(known: Tally, found: Attribution, *, time: bool) -> list[Group]:
    """Pair those that work with nobody else, where they are few: if they work with each other, they are on a side."""
    convicted = [n for n in found.never if found.convicted(n)]
    small = len(known.order) <= SMALL
    if len(convicted) > SMALL or not (small or time):
        return []
    return [g for g in _among_suspects(known, convicted) if _unmet(known, g)]


def _among_suspects(known: Tally, unserved: Sequence[str]) -> list[Group]:
    """Pair those for whom no good node is left: two of them that pass are good nodes won."""
    groups: list[Group] = []
    rest = deque(unserved)
    while rest:
        node = rest.popleft()
        repeat = len(known.order) == 2
        partner = _first(rest, known.met[node], again=repeat)
        if partner is not None:
            groups.append(_pair(known, node, partner, "confirming"))
    return groups


def _controls(known: Tally, idle: Sequence[str], random: Random, *, far: bool) -> list[Group]:
    """Pair the good nodes anew: it covers more links, and shows what is normal in this round."""
    rest = list(idle)
    if not far:
        random.shuffle(rest)
    half = (len(rest) + 1) // 2
    first, second = rest[:half], deque(rest[half:])
    groups: list[Group] = []
    for node in first:
        partner = _first(second, known.met[node], again=False) or _first(second, set(), again=True)
        if partner is not None:
            groups.append(_pair(known, node, partner, "pair"))
    return groups
