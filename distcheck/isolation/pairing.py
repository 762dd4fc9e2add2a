"""Chooses the pairs: neighbours, then suspects with working nodes, then with each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random

from distcheck.isolation.attribution import REPEATS, TIMES, Attribution
from distcheck.isolation.figures import ENOUGH, too_few
from distcheck.isolation.round import GROUPED, PAIRED, NodeGroup, Purpose
from distcheck.isolation.sight import Sight
from distcheck.isolation.state import State
from distcheck.isolation.tally import Edge, Tally
from distcheck.isolation.together import SMALL, WITNESSES, Together

ROUNDS = 4
"""Rounds of pairs, unless many nodes do not work with the others."""
FURTHER_ROUNDS = 8
"""The most further rounds, if many nodes do not."""
MEETINGS, MORE_MEETINGS = 2, SMALL - 1
"""How many others that never passed each such node is tested with; more if there are many."""
CUT = 2
"""Failing pairs without a common node that all cross the same two sides."""
CLEAR_CUT = 3
"""From this many on, suspects are tested only with nodes of their own side."""
FEW = 3
"""Up to this many nodes every pair is tested: no median shows which pair is slow."""


def next_pairs(state: State, seen: Sight) -> list[NodeGroup]:
    """Return the pairs of the next round; none if further pairs add nothing."""
    known, joined = seen.known, seen.joined
    done = rounds_of_pairs(state)
    if not done:
        return [_pair(known, a, b, "pair") for a, b in _adjacent(list(known.order))]
    unsure = FEW < len(known.order) <= SMALL and done < ENOUGH and too_few(state.tests, state.settings.slow_share)
    if len(known.order) < 2 or (done >= ROUNDS + FURTHER_ROUNDS * joined.many and not unsure):
        return []
    deciding = _deciding(seen, last=done == ROUNDS - 1, late=done >= ROUNDS)
    taken = {n for g in deciding for n in g.nodes}
    strangers = _strangers(known, [n for n in joined.never if n not in taken])
    if not deciding and not any(_wants_stranger(known, joined, n) for g in strangers for n in g.nodes):
        strangers = []
    groups = [*deciding, *strangers]
    busy = {n for g in groups for n in g.nodes}.union(joined.never)
    idle = [n for n in known.order if n not in busy]
    spare: list[NodeGroup] = []
    for side, _ in seen.sides:
        random = Random(f"{state.seed} {done}")  # noqa: S311 - the same partners on every run
        spare += _controls(known, joined, [n for n in idle if n in side.order], random, far=done == 1)
    few = len(known.order) <= FEW
    if few:
        spare = [g for a, b in combinations(idle, 2) if _unmet(known, g := _pair(known, a, b, "pair"))][:1] or spare
    covers = unsure or ((done == 1 or few) and any(_unmet(known, g) for g in spare))
    return [*groups, *spare] if groups or covers else []


def beside_groups(seen: Sight, busy: Iterable[str]) -> list[NodeGroup]:
    """Return pairs of nodes that never passed, to test beside larger groups at no extra round.

    They are paired with each other and with the nodes of small parts, which are not in these groups. A node that passed
    only with a node that has left is in these groups although it counts as never passed.
    """
    known, joined = seen.known, seen.joined
    taken = frozenset(busy)
    rest = deque(n for n in joined.never if n not in taken)
    groups: list[NodeGroup] = []
    for node in [n for n in joined.part if n not in taken]:
        partner = _take(rest, (p for p in rest if joined.part[node] not in joined.met(p)))
        groups += [_pair(known, node, partner, "confirming")] if partner is not None else []
    return [*groups, *_strangers(known, tuple(rest))]


def rounds_of_pairs(state: State) -> int:
    """Return how many rounds tested pairs and no larger groups."""
    purposes = ({g.purpose for g in r.groups} for r, _ in state.rounds)
    return sum(not p.isdisjoint(PAIRED) and p.isdisjoint(GROUPED) for p in purposes)


def _adjacent(nodes: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip(nodes[::2], nodes[1::2], strict=False)


def _pair(known: Tally, a: str, b: str, purpose: Purpose) -> NodeGroup:
    first, second = sorted((a, b), key=known.order.__getitem__)
    return NodeGroup((first, second), purpose)


def _unmet(known: Tally, group: NodeGroup) -> bool:
    return group.nodes[1] not in known.met[group.nodes[0]]


def _deciding(seen: Sight, *, last: bool, late: bool) -> list[NodeGroup]:
    """Return pairs of a suspect with a working node, and the pairs to repeat."""
    known, joined = seen.known, seen.joined
    if len(known.order) == TIMES == len(joined.never):
        return [NodeGroup(tuple(known.order), "confirming")] if known.tests(joined.never[0]) < TIMES else []
    touched = {n for _, its in seen.sides for n in _touched(its)}
    clean = [n for n in known.order if known.passed[n] and n not in touched]
    reference = frozenset(clean)
    half = len(clean) // 2
    free = deque(sorted(clean[half:] + clean[:half], key=lambda n: -known.passed[n]))
    cleared = {joined.part[n] for n in clean}
    doubtful = deque(n for n in known.order if n in touched and joined.part[n] not in cleared)
    groups: list[NodeGroup] = []
    for node in sorted(joined.never, key=lambda n: not known.tests(n)):
        again = _all_met(known, node, reference)
        if _wants_reference(seen, node, again=again):
            met, partner = joined.met(node), None
            if len(met) < len(joined.parts):
                partner = _take(doubtful, (p for p in doubtful if joined.part[p] not in met))
                partner = partner or _take(free, (p for p in free if joined.part[p] not in met))
            partner = partner or _take(free, (p for p in free if again or p not in known.met[node]))
            groups += [_pair(known, node, partner, "confirming")] if partner is not None else []
    for side, its in () if late else seen.sides:
        here = reference & side.order.keys()
        busy = {n for g in groups for n in g.nodes}
        for node in side.order:
            if node in touched and node not in busy and _to_be_cleared(side, its, node, here, last=last):
                partner = _take(free, (p for p in free if p in here and p not in side.met[node]))
                groups += [_pair(known, node, partner, "confirming")] if partner is not None else []
        busy = {n for g in groups for n in g.nodes}
        for a, b in _to_repeat(side, its, here, last=last):
            if a not in busy and b not in busy:
                groups.append(NodeGroup((a, b), "confirming"))
                busy |= {a, b}
    return groups


def _touched(found: Attribution) -> set[str]:
    """Return the nodes that both passed and failed."""
    return {n for edge in found.left for n in edge} | set(found.flaky) | set(found.sometimes_slow)


def _all_met(known: Tally, node: str, reference: frozenset[str]) -> bool:
    others = len(reference) - (node in reference)
    return len(known.met[node]) >= others and reference - {node} <= known.met[node]


def _wants_reference(seen: Sight, node: str, *, again: bool) -> bool:
    """Whether a node that never passed needs another test with a working node."""
    known, joined = seen.known, seen.joined
    beside = seen.found.never.get(node, ())
    bad = known.bad.get(node, [])
    if len({t.other(node) for t in beside}) < WITNESSES:
        return not again
    if not any(t.hard for t in bad) and len(beside) < REPEATS:
        return True
    if len(joined.strangers(node)) < joined.meetings and _wants_stranger(known, joined, node):
        return False
    return not again and (len(bad) < REPEATS or node not in joined.settled)


def _wants_stranger(known: Tally, joined: Together, node: str) -> bool:
    """Whether to test a node that never passed with another one: they may form their own side."""
    others = len(joined.never) - 1
    most = others if not joined.parts else min(others, MORE_MEETINGS if joined.many else MEETINGS)
    return node not in joined.part and len(known.met[node].difference(joined.part)) < most


def _strangers(known: Tally, nodes: Sequence[str]) -> list[NodeGroup]:
    """Return new pairs of nodes that never passed: every pair if few, else the least tested."""
    if len(nodes) <= SMALL:
        # A round-robin tournament, with one empty place for an odd number of nodes.
        places = len(nodes) - 1 + len(nodes) % 2
        turns = [[(a, b) for a, b in _turn(nodes, i) if b not in known.met[a]] for i in range(places)]
        return [_pair(known, a, b, "confirming") for a, b in max(turns, key=len, default=[])]
    never = frozenset(nodes)
    rest = deque(sorted(nodes, key=lambda n: len(known.met[n] & never)))
    groups: list[NodeGroup] = []
    while rest:
        node = rest.popleft()
        partner = _take(rest, (p for p in rest if p not in known.met[node]))
        if partner is not None:
            groups.append(_pair(known, node, partner, "confirming"))
    return groups


def _turn(nodes: Sequence[str], number: int) -> Iterable[Edge]:
    """Yield the pairs of one round of a tournament in which every two meet once.

    Source: https://en.wikipedia.org/wiki/Round-robin_tournament
    """
    moving = nodes if len(nodes) % 2 else nodes[:-1]
    places = len(moving)
    if len(nodes) > places:
        yield moving[number], nodes[-1]
    for i in range(1, (places + 1) // 2):
        yield moving[(number + i) % places], moving[(number - i) % places]


def _to_be_cleared(known: Tally, found: Attribution, node: str, reference: frozenset[str], *, last: bool) -> bool:
    """Whether to test a node that passed and failed with another good one, not the same one."""
    if _all_met(known, node, reference) or known.tests(node) >= ROUNDS:
        return False
    if node in found.flaky or node in found.sometimes_slow:
        return True
    met_badly = {(t.nodes[0], t.nodes[1]) for t in known.bad.get(node, ())} & found.left.keys()
    if all(len(found.left[edge]) >= TIMES for edge in met_badly):
        return False
    return known.passed[node] < _passes(last=last) or len(met_badly) > 1


def _passes(*, last: bool) -> int:
    """Return how often a node must pass with others before its failing pair is repeated."""
    return 1 if last else 2


def _to_repeat(known: Tally, found: Attribution, reference: frozenset[str], *, last: bool) -> list[Edge]:
    """Return the pairs to repeat: both nodes work with others, their failure is unexplained."""
    return [
        edge
        for edge, tests in found.left.items()
        if len(tests) < TIMES
        and all(known.passed[n] >= _passes(last=last) or _all_met(known, n, reference) or not reference for n in edge)
    ]


def _take(free: deque[str], fitting: Iterable[str]) -> str | None:
    """Remove and return the first fitting node from `free`; None if there is none."""
    found = next(iter(fitting), None)
    if found is not None:
        free.remove(found)
    return found


def _controls(known: Tally, joined: Together, idle: Sequence[str], random: Random, *, far: bool) -> list[NodeGroup]:
    """Return new pairs of good nodes, as this round's reference.

    They also cover more links and join parts.
    """
    groups: list[NodeGroup] = []
    rest = list(idle)
    if not far:
        if joined.never:
            groups, rest = _joining(known, joined, rest)
        random.shuffle(rest)
    half = (len(rest) + 1) // 2
    first, second = rest[:half], deque(rest[half:])
    for node in first:
        partner = _take(second, (p for p in second if p not in known.met[node])) or _take(second, second)
        if partner is not None:
            groups.append(_pair(known, node, partner, "pair"))
    return groups


def _joining(known: Tally, joined: Together, idle: Sequence[str]) -> tuple[list[NodeGroup], list[str]]:
    """Return pairs that join all parts if they pass, and the nodes left over."""
    by_part: dict[int, list[str]] = {}
    for node in idle:
        by_part.setdefault(joined.part[node], []).append(node)
    groups: list[NodeGroup] = []
    reached: deque[str] = deque()
    # Parts with the most idle nodes first: a part with one node cannot lead on to another part.
    for number, nodes in sorted(by_part.items(), key=lambda its: -len(its[1])):
        # The first part, by far the largest as a rule, has no part before it to be joined to.
        beyond = set[int]().union(*map(joined.met, joined.parts[number])) if reached else set[int]()
        partner = _take(reached, (p for p in reached if joined.part[p] not in beyond))
        if partner is not None:
            groups.append(_pair(known, partner, nodes[0], "pair"))
        reached.extend(nodes[partner is not None :])
    return groups, list(reached)
