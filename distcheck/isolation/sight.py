"""What pairs have told so far, put together: by node, by part, and by side where two sides are seen."""

from __future__ import annotations

import msgspec

from distcheck.isolation.attribution import Attribution, Tally, attribute, cut, tally
from distcheck.isolation.state import State
from distcheck.isolation.together import Together, together

Side = tuple[Tally, Attribution]


class Sight(msgspec.Struct, frozen=True):
    """The tests of pairs and what explains them."""

    known: Tally
    """Of all nodes that can be partners."""
    found: Attribution
    joined: Together
    sides: tuple[Side, ...]
    """Of all nodes, or of each of two sides, what its own nodes showed among themselves."""


def see(state: State, aside: frozenset[str], least: int) -> Sight:
    """Explain the tests of pairs; of two sides, where so many failures between nodes of their own show these."""
    known = tally(state, aside)
    found = attribute(known)
    sides = cut(known, found, least)
    tallies = [tally(state, aside.union(other)) for other in reversed(sides)] if sides is not None else []
    split = tuple((its, attribute(its)) for its in tallies)
    return Sight(known, found, together(state, aside), split or ((known, found),))
