"""The results of pairs so far: by node, by part, and by side if there are two sides."""

from __future__ import annotations

import msgspec

from distcheck.isolation.attribution import Attribution, Tally, attribute, cut, tally
from distcheck.isolation.state import State
from distcheck.isolation.together import Together, together

Side = tuple[Tally, Attribution]


class Sight(msgspec.Struct, frozen=True):
    """The tests of pairs and their explanation."""

    known: Tally
    """The tests of all nodes that can be partners."""
    found: Attribution
    joined: Together
    sides: tuple[Side, ...]
    """The tests within all nodes, or within each of two sides."""


def see(state: State, aside: frozenset[str], least: int) -> Sight:
    """Return the tests of pairs, explained.

    They are split by side if `least` failing pairs without a common node show two sides.
    """
    known = tally(state, aside)
    found = attribute(known)
    sides = cut(known, found, least)
    tallies = [tally(state, aside.union(other)) for other in reversed(sides)] if sides is not None else []
    split = tuple((its, attribute(its)) for its in tallies)
    return Sight(known, found, together(state, aside), split or ((known, found),))
