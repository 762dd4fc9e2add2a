"""The results of pairs so far: by node, by part, and by side if there are two sides."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from distcheck.isolation.attribution import Attribution, Cut, attribute
from distcheck.isolation.state import State
from distcheck.isolation.tally import Tally, tally
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


def see(state: State, aside: frozenset[str]) -> Sight:
    """Return the tests of pairs, explained."""
    known = tally(state, aside)
    found = attribute(known)
    return Sight(known, found, together(state, known), ((known, found),))


def split(state: State, aside: frozenset[str], seen: Sight, at: Cut) -> Sight:
    """Return the same with the tests of each side explained by themselves."""
    tallies = [tally(state, aside.union(other)) for other in reversed(at.sides)]
    return replace(seen, sides=tuple((its, attribute(its)) for its in tallies))
