"""The result of the search for a bad node, link, rail or slow rank."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Rank

Fault = Literal["failed", "wrong", "hung", "slow", "passed", "untested"]


class GroupTest(Facts, frozen=True):
    """One more run of the collectives, among these nodes only."""

    round: Count
    nodes: tuple[str, ...]
    purpose: str
    """alone, pair, confirming, group, half, again, across."""
    outcome: Fault
    ratio: Amount | None = None
    """If slow: its speed as a share of the others'."""
    said: tuple[str, ...] = ()
    """What its ranks reported; no reason to blame the ranks that reported it."""


class CulpritFacts(Facts, frozen=True, tag="culprit"):
    """A node, a rail of a node, a slow rank, or the link between two nodes."""

    part: Literal["node", "rail", "rank", "link"]
    nodes: tuple[str, ...]
    """One node, or the two ends of a link."""
    local_ranks: tuple[Rank, ...]
    """The rails, or the slow ranks."""
    fault: Fault
    """The worst outcome."""
    certain: bool
    evidence: tuple[GroupTest, ...]
    sentence: str


class Sides(Facts, frozen=True):
    """Two sides that each work alone but not together."""

    sides: tuple[tuple[str, ...], tuple[str, ...]]
    cause: str
    """boundary, scale or flaky."""


class Suspects(Facts, frozen=True):
    """Nodes one of which, or the path between them, is at fault; it is unknown which."""

    nodes: tuple[str, ...]
    evidence: tuple[GroupTest, ...]
    sentence: str


class Isolation(Facts, frozen=True):
    """The result of a search."""

    kind: Literal["healthy", "found", "undecided", "boundary", "shared", "unmeasured", "ended"]
    """shared: most nodes show the same; unmeasured: no test finished; ended: the time limit was reached."""
    sentence: str
    culprits: tuple[CulpritFacts, ...] = ()
    boundaries: tuple[Sides, ...] = ()
    undecided: tuple[Suspects, ...] = ()
    untested: tuple[str, ...] = ()
    rounds: Count = 0
