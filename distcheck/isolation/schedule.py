"""The order of the rounds, and when there is nothing more to learn."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from . import alone, groups, pairing
from .attribution import TIMES, Attribution, Edge, Tally, attribute, cut, tally
from .conclusion import conclude
from .figures import FEW_NODES, judge, tests_of
from .round import Group, Result, Round, Test
from .state import State
from .verdict import Verdict


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
    pairs, waiting = pairing.next_pairs(state, aside)
    if pairs or again:
        return Round(number, (*again, *pairs), waiting)
    known = tally(state, aside)
    found = attribute(known)
    search = _groups(state, known, found)
    if search.wanted:
        return Round(number, search.wanted)
    return conclude(state, runs, known, found, search.found)


def take(state: State, results: Iterable[Result]) -> State:
    """Remember what came of the round that `next_round` gave; a group without a result is untested.

    Raises ValueError for results of groups that the round does not have.
    """
    now = next_round(state)
    if not isinstance(now, Round):
        raise ValueError("the search is over: there is no round whose results to take")  # noqa: TRY004
    new, floor = tests_of(now, results), state.settings.floor_GBps
    if len(state.nodes) <= FEW_NODES:
        old = [(r, list(tests)) for r, tests in state.rounds]
        every = judge([*(t for _, tests in old for t in tests), *new], (), floor)
        rounds: list[tuple[Round, tuple[Test, ...]]] = []
        for r, tests in [*old, (now, new)]:
            rounds.append((r, tuple(every[: len(tests)])))
            del every[: len(tests)]
        return msgspec.structs.replace(state, rounds=tuple(rounds))
    return msgspec.structs.replace(
        state, rounds=(*state.rounds, (now, tuple(judge(new, list(state.tests), floor))))
    )


def most_rounds(nodes: int) -> int:
    """Return the bound on the rounds of a whole search."""
    return 1 + alone.MOST_RUNS + pairing.ROUNDS + pairing.FURTHER_ROUNDS + groups.most_rounds(nodes)
