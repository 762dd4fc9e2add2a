"""What came of the search for a bad node, link, rail or slow rank."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Rank, Seconds

Fault = Literal["failed", "wrong", "hung", "slow", "passed", "untested"]


class GroupTest(Facts, frozen=True):
    """The collectives once more, among these nodes alone."""

    round: Count
    nodes: tuple[str, ...]
    purpose: str
    """alone, pair, confirming, group, half, again, across."""
    outcome: Fault
    ratio: Amount | None = None
    """Of a slow one: its speed as a share of what others showed."""
    said: tuple[str, ...] = ()
    """What its ranks said; never a reason to blame those that said it."""


class Culprit(Facts, frozen=True):
    """A node, a rail of a node, a slow rank, or the link between two nodes."""

    part: Literal["node", "rail", "rank", "link"]
    nodes: tuple[str, ...]
    """One, or the two ends of a link."""
    local_ranks: tuple[Rank, ...]
    """The rails, or the slow ranks."""
    fault: Fault
    """The worst that was seen."""
    passed: Count
    tests: Count
    """How many tests it took part in that tell of it, and how many of these passed: both above 0 is flaky."""
    certain: bool
    evidence: tuple[GroupTest, ...]
    sentence: str


class Sides(Facts, frozen=True):
    """Two sides that each work by themselves and not together."""

    sides: tuple[tuple[str, ...], tuple[str, ...]]
    cause: str
    """boundary, scale, flaky, link, or group: the search ended before it could tell."""


class Suspects(Facts, frozen=True):
    """Nodes of which one, or the way between them, did not work, and nothing tells which."""

    nodes: tuple[str, ...]
    evidence: tuple[GroupTest, ...]
    sentence: str


class Isolation(Facts, frozen=True):
    """The end of a search."""

    kind: Literal["healthy", "found", "undecided", "boundary", "shared", "unmeasured", "ended"]
    """shared: most nodes show the same; unmeasured: no test came to an end; ended: the time was over."""
    sentence: str
    culprits: tuple[Culprit, ...] = ()
    boundaries: tuple[Sides, ...] = ()
    undecided: tuple[Suspects, ...] = ()
    untested: tuple[str, ...] = ()
    widespread: bool = False
    """Whether failures are spread over so many pairs that the network is likelier than any node."""
    rounds: Count = 0
    seconds: Seconds = 0.0
