"""The order of the rounds, and when the search ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec.structs import replace

from distcheck.facts.isolation import Isolation
from distcheck.isolation import alone, larger, pairing, words
from distcheck.isolation.attribution import cut
from distcheck.isolation.conclusion import SHARED, conclude
from distcheck.isolation.figures import FEW_NODES, mark_slow, settled, trials_of
from distcheck.isolation.round import NodeGroup, Result, Round
from distcheck.isolation.sight import Side, Sight, see, split
from distcheck.isolation.state import State
from distcheck.isolation.together import Together


def next_round(state: State) -> Round | Isolation:
    """Return what to test next, or the verdict; the same state always gives the same answer."""
    number = len(state.rounds) + 1
    if not state.rounds and state.nodes:
        return Round(number, tuple(NodeGroup((n,), "alone") for n in state.nodes))
    runs = alone.alone(state)
    again = [NodeGroup((n,), "alone") for n in alone.to_repeat(runs)]
    aside = alone.set_aside(runs)
    if 2 * len(aside) > len(state.nodes) >= SHARED:
        # A fault of most nodes alone is not one node's, and pairs would only show it again.
        return Round(number, tuple(again)) if again else conclude(state, runs)
    seen, pairs = _pairs(state, aside)
    begun = next((r.left for r, _ in state.rounds if r.left), None)
    if begun is None and (pairs or again):
        return Round(number, (*again, *pairs))
    left = begun if begun is not None else _left(seen.sides, seen.joined)
    search = _groups(state, left)
    if search.wanted:
        busy = (n for g in search.wanted for n in g.nodes)
        return Round(number, (*search.wanted, *pairing.beside_groups(seen, busy)), left)
    # Two nodes that had never passed may have passed together meanwhile.
    if pairs and seen.joined.many:
        return Round(number, tuple(pairs), left)
    return conclude(state, runs, seen, search.found)


def so_far(state: State) -> Isolation:
    """Return what is found and undecided if no time is left for another round.

    While two nodes that never passed are not tested with each other, they may form their own side.
    """
    runs = alone.alone(state)
    aside = alone.set_aside(runs)
    if not state.rounds or 2 * len(aside) > len(state.nodes) >= SHARED:
        found = conclude(state, runs)
    else:
        seen, _ = _pairs(state, aside)
        following = next_round(state)
        groups = following.groups if isinstance(following, Round) else ()
        open_still = any(len(g.nodes) > 1 and set(seen.joined.never).issuperset(g.nodes) for g in groups)
        found = conclude(state, runs, seen, open_still=open_still)
    named = [*(c.sentence for c in found.culprits), *(s.sentence for s in found.undecided)][: words.MOST_NAMES]
    return replace(found, kind="ended", sentence="; ".join(["time limit reached", *named]))


def _pairs(state: State, aside: frozenset[str]) -> tuple[Sight, list[NodeGroup]]:
    """Return the results of pairs so far, and the next useful pairs."""
    seen = see(state, aside)
    two = cut(seen.known, seen.found, pairing.CUT)
    pairs = pairing.next_pairs(state, seen) if two is None or two.failing < pairing.CLEAR_CUT else []
    if pairs or two is None:
        return seen, pairs
    seen = split(state, aside, seen, two)
    return seen, pairing.next_pairs(state, seen)


def take(state: State, now: Round, results: Iterable[Result]) -> State:
    """Return the state with the results of a round; a group without a result is untested.

    Raises ValueError for a round out of turn, and for results of groups that it does not have.
    """
    if now.number != len(state.rounds) + 1:
        raise ValueError(f"round {now.number} is out of turn: {len(state.rounds)} are finished")
    new, chosen = trials_of(now, results), state.settings
    if not chosen.alone_speeds:
        new = [replace(test, speed=None) if len(test.nodes) == 1 else test for test in new]
    share, of_work = chosen.slow_share, chosen.slow_work_share
    if len(state.nodes) > FEW_NODES:
        marked = mark_slow(new, state.tests, slow_share=share, slow_work_share=of_work)
        return replace(state, rounds=(*state.rounds, (now, tuple(marked))))
    # Few nodes give few figures, so earlier measurements are judged again together with the new ones.
    marked = mark_slow([*state.tests, *new], (), together=True, slow_share=share, slow_work_share=of_work)
    every = iter(settled(marked, share))
    rounds = [(r, tuple(islice(every, len(r.groups)))) for r, _ in (*state.rounds, (now, ()))]
    return replace(state, rounds=tuple(rounds))


def _left(sides: Sequence[Side], joined: Together) -> tuple[tuple[str, ...], ...]:
    """Return each side's nodes to test in groups: those that work, one end of a bad link."""
    if not joined.parts or any(found.widespread for _, found in sides):
        return ()
    left: list[tuple[str, ...]] = []
    for known, found in sides:
        out = {*joined.never, *found.never, *found.flaky, *found.sometimes_slow}
        for a, b in found.left:
            if not {a, b} & out:
                out.add(b)
        left.append(tuple(n for n in known.order if n not in out))
    return tuple(left)


def _groups(state: State, left: tuple[tuple[str, ...], ...]) -> larger.Search:
    """Return the next tests of groups, without the nodes that have left."""
    present = frozenset(state.nodes)
    parts = [tuple(n for n in part if n in present) for part in left]
    if len(parts) == 2 and all(parts):
        return larger.search(state, (*parts[0], *parts[1]), (parts[0], parts[1]))
    return larger.search(state, [n for part in parts for n in part])
