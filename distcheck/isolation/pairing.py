"""Who is tested with whom: neighbours first, then every suspect with a node that has passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random

from .attribution import REPEATS, TIMES, WITNESSES, Attribution, Edge, Tally, attribute, cut, tally
from .round import PAIRED, Group, Purpose
from .state import State

ROUNDS = 4
"""Of pairs, as long as there are enough good nodes to test the suspects with."""
FURTHER_ROUNDS = 8
"""At most, where suspects had to wait for good nodes."""
CLEAR_CUT = 3
"""Failing pairs, no two of the same node, that all cross the same two sides: no round of pairs would tell more."""
FEW = 3
"""Of so few nodes every two are tested: no median tells which pair is slow."""


def next_pairs(state: State, without: Iterable[str]) -> tuple[list[Group], tuple[str, ...]]:
    """Return the pairs of the next round, none when pairs tell no more; and the nodes that wait for a good partner."""
    known = tally(state, without)
    if len(known.order) < 2:
        return [], ()
    done = [r for r, _ in state.rounds if any(g.purpose in PAIRED for g in r.groups)]
    if not done:
        return _neighbours(list(known.order)), ()
    short = sum(bool(r.waiting) for r in done)
    if len(done) >= ROUNDS + min(short, FURTHER_ROUNDS):
        return [], ()
    found = attribute(known)
    if len(done) > 1 and cut(known, found, CLEAR_CUT):
        return [], ()
    groups, waiting = _confirming(known, found)
    needed = bool(groups)
    busy = {n for g in groups for n in g.nodes}
    idle = [n for n in known.order if n not in busy and n not in found.never and n not in waiting]
    random = Random(f"{state.seed} {len(done)}")  # noqa: S311 - the same partners on every run
    spare = _controls(known, idle, random, far=len(done) == 1)
    everybody = len(known.order) <= FEW and any(g.nodes not in known.edges for g in spare)
    if needed or everybody or len(done) == 1:
        new = any(g.nodes not in known.edges for g in spare)
        return ([*groups, *spare] if needed or new else []), waiting
    return [], ()


def _neighbours(nodes: Sequence[str]) -> list[Group]:
    return [Group((a, b), "pair") for a, b in zip(nodes[::2], nodes[1::2], strict=False)]


def _pair(known: Tally, a: str, b: str, purpose: Purpose) -> Group:
    first, second = sorted((a, b), key=known.order.__getitem__)
    return Group((first, second), purpose)


def _confirming(known: Tally, found: Attribution) -> tuple[list[Group], tuple[str, ...]]:
    """Return the pairs that decide about suspects, and the suspects that have to wait."""
    touched = {n for edge in found.left for n in edge} | set(found.flaky) | set(found.sometimes_slow)
    clean = [n for n in known.order if known.passed[n] and n not in touched]
    reference = frozenset(clean)
    suspects = [n for n in found.never if _open(known, found, n, reference)]
    suspects += [n for n in known.order if n in touched and _wants_reference(known, found, n, reference)]
    untested = [n for n in known.order if not known.tests[n]]
    half = len(clean) // 2
    free = deque(sorted(clean[half:] + clean[:half], key=lambda n: -known.passed[n]))
    groups: list[Group] = []
    unserved: list[str] = []
    for node in (*suspects, *untested):
        partner = _first(free, known.met[node], again=_all_met(known, node, reference))
        if partner is None:
            unserved.append(node)
        else:
            groups.append(_pair(known, node, partner, "confirming"))
    busy = {n for g in groups for n in g.nodes} | set(unserved)
    for a, b in _to_repeat(known, found, reference):
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
    bad = known.bad[node]
    witnesses = len({t.other(node) for t in found.never[node]})
    slow = not any(t.hard for t in bad)
    if witnesses >= WITNESSES and len(bad) >= REPEATS:
        return False
    if not _all_met(known, node, reference):
        return True
    if slow and witnesses:
        return len(bad) < REPEATS
    if witnesses >= WITNESSES:
        return False
    others = len(known.order) - 1
    return len(known.met[node]) < others or (others == 1 and len(bad) < TIMES)


def _wants_reference(known: Tally, found: Attribution, node: str, reference: frozenset[str]) -> bool:
    """Whether a node that passed and failed shall meet another good one, rather than the same one again."""
    if _all_met(known, node, reference) or known.tests[node] >= ROUNDS:
        return False
    if node in found.flaky or node in found.sometimes_slow:
        return True
    met_badly = {t.nodes for t in known.bad[node]} & found.left.keys()
    if all(len(found.left[edge]) >= TIMES for edge in met_badly):
        return False
    return known.passed[node] < 2 or len(met_badly) > 1


def _to_repeat(known: Tally, found: Attribution, reference: frozenset[str]) -> list[Edge]:
    """Return the pairs to be tried once more: each of them works with others, and only this failure is left."""
    return [
        edge
        for edge, tests in found.left.items()
        if len(tests) < TIMES
        and all(known.passed[n] > 1 or _all_met(known, n, reference) or not reference for n in edge)
    ]


def _first(free: deque[str], met: set[str], *, again: bool) -> str | None:
    """Take the first good node that was not met yet, or any where all were."""
    for i, candidate in enumerate(free):
        if again or candidate not in met:
            del free[i]
            return candidate
    return None


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
