"""The order of the rounds, and when there is nothing more to learn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec.structs import replace

from distcheck.isolation import alone, groups, pairing
from distcheck.isolation.attribution import Attribution, Tally, attribute, cut, tally
from distcheck.isolation.conclusion import SHARED, conclude
from distcheck.isolation.figures import FEW_NODES, judge, trials_of
from distcheck.isolation.round import PAIRED, Group, Result, Round
from distcheck.isolation.state import State
from distcheck.isolation.together import together
from distcheck.isolation.verdict import Verdict

Part = tuple[Tally, Attribution]


def next_round(state: State) -> Round | Verdict:
    """Return what to test next, or the verdict; the same state always gives the same answer."""
    number = len(state.rounds) + 1
    if not state.rounds and state.nodes:
        return Round(number, tuple(Group((n,), "alone") for n in state.nodes))
    runs = alone.alone(state)
    again = [Group((n,), "alone") for n in alone.to_repeat(runs)]
    aside = alone.set_aside(runs)
    if 2 * len(aside) > len(state.nodes) >= SHARED:
        # What most nodes show by themselves is no matter of one node, and pairs of them would show it again.
        return Round(number, tuple(again)) if again else conclude(state, runs)
    begun = next((r.left for r, _ in state.rounds if r.left), None)
    if begun is not None:
        search = _groups(state, begun)
        if search.wanted:
            return Round(number, search.wanted, left=begun)
        # Groups join parts; who was tried with another part since then is judged by that, in `conclude`.
        at = next(i for i, (r, _) in enumerate(state.rounds) if r.left)
        parts, _ = _parts(replace(state, rounds=state.rounds[:at]), aside)
        late = sum(any(g.purpose in PAIRED for g in r.groups) for r, _ in state.rounds[at:])
        last = pairing.elsewhere(parts, together(state)) if late < pairing.LAST_ROUNDS else []
        return Round(number, tuple(last), left=begun) if last else conclude(state, runs, parts, search.found)
    parts, pairs = _parts(state, aside)
    if pairs.groups or again:
        return Round(number, (*again, *pairs.groups), pairs.waiting)
    left = _left(state, parts)
    search = _groups(state, left)
    if search.wanted:
        return Round(number, search.wanted, left=left)
    return conclude(state, runs, parts, search.found)


def so_far(state: State) -> Verdict:
    """Return what is known where no time is left for another round; what that could still acquit is not certain."""
    runs = alone.alone(state)
    aside = alone.set_aside(runs)
    if not state.rounds or 2 * len(aside) > len(state.nodes) >= SHARED:
        return conclude(state, runs)
    known = conclude(state, runs, _parts(state, aside)[0])
    following = next_round(state)
    groups = following.groups if isinstance(following, Round) else ()
    # Any further pair may join two parts, or show that two suspects work with each other.
    if not any(g.purpose in PAIRED for g in groups):
        return known
    return replace(known, culprits=tuple(replace(c, certain=c.certain and not c.by_others) for c in known.culprits))


def _parts(state: State, aside: frozenset[str]) -> tuple[list[Part], pairing.Pairs]:
    """Return what pairs told, for all nodes or for each of two sides, and which pairs would tell more."""
    known = tally(state, aside)
    found = attribute(known)
    joined = together(state, aside)
    sides = cut(known, found, pairing.CLEAR_CUT)
    if sides is None:
        pairs = pairing.next_pairs(state, known, found, joined)
        sides = None if pairs.groups else cut(known, found, pairing.CUT)
        if sides is None:
            return [(known, found)], pairs
    tallies = [tally(state, aside.union(other)) for other in reversed(sides)]
    parts = [(known, attribute(known)) for known in tallies]
    return parts, pairing.within_sides(state, parts, joined)


def take(state: State, now: Round, results: Iterable[Result]) -> State:
    """Remember what came of a round that `next_round` gave; a group without a result is untested.

    Raises ValueError for a round out of turn, and for results of groups that it does not have.
    """
    if now.number != len(state.rounds) + 1:
        raise ValueError(f"round {now.number} is out of turn: {len(state.rounds)} are finished")
    new, chosen = trials_of(now, results), state.settings
    share, of_work, floor = chosen.slow_share, chosen.slow_work_share, chosen.floor_GBps
    if len(state.nodes) > FEW_NODES:
        judged = judge(new, state.tests, floor, slow_share=share, slow_work_share=of_work)
        return replace(state, rounds=(*state.rounds, (now, tuple(judged))))
    # Few nodes give few figures: what was measured before is judged anew beside what came later.
    every = iter(judge([*state.tests, *new], (), floor, together=True, slow_share=share, slow_work_share=of_work))
    rounds = [(r, tuple(islice(every, len(r.groups)))) for r, _ in (*state.rounds, (now, ()))]
    return replace(state, rounds=tuple(rounds))


def most_rounds(nodes: int) -> int:
    """Return the bound on the rounds of a whole search."""
    pairs = pairing.ROUNDS + pairing.FURTHER_ROUNDS + pairing.SMALL + pairing.LAST_ROUNDS
    return 1 + alone.RUNS + pairs + groups.most_rounds(nodes)


def _left(state: State, parts: list[Part]) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of each part to be tested in groups: all that work in pairs, of a bad link only one end."""
    if not state.settings.groups or not any(any(known.passed.values()) for known, _ in parts):
        return ()
    if any(found.widespread for _, found in parts):
        return ()
    left: list[tuple[str, ...]] = []
    for known, found in parts:
        out = {*found.never, *found.flaky, *found.sometimes_slow}
        for a, b in found.left:
            if not {a, b} & out:
                out.add(b)
        left.append(tuple(n for n in known.order if n not in out))
    return tuple(left)


def _groups(state: State, left: tuple[tuple[str, ...], ...]) -> groups.Search:
    """Go on with groups, without the nodes that have left since."""
    present = frozenset(state.nodes)
    parts = [tuple(n for n in part if n in present) for part in left]
    if len(parts) == 2 and all(parts):
        return groups.search(state, (*parts[0], *parts[1]), (parts[0], parts[1]))
    return groups.search(state, [n for part in parts for n in part])
