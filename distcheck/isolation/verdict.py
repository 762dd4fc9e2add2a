"""The verdict of a search: culprits with evidence, undecided nodes, one sentence."""

from __future__ import annotations

from typing import Literal

import msgspec

from distcheck.isolation.larger import Boundary
from distcheck.isolation.round import MemberReport, Outcome, Purpose

Kind = Literal["healthy", "found", "undecided", "boundary", "shared", "unmeasured"]
"""shared: most nodes show the same, so no node is to blame; unmeasured: no test finished."""
Part = Literal["node", "rail", "rank", "link"]


class Evidence(msgspec.Struct, frozen=True):
    """One test: its round, its nodes and its outcome."""

    round: int
    nodes: tuple[str, ...]
    purpose: Purpose
    outcome: Outcome
    ratio: float | None = None
    """If slow: its speed as a share of the others'."""
    said: tuple[MemberReport, ...] = ()


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A node, a rail of a node, a slow rank, or the link between two nodes."""

    part: Part
    nodes: tuple[str, ...]
    """One node, or the two ends of a link."""
    local_ranks: tuple[int, ...] = ()
    """The rails, or the slow ranks."""
    fault: Outcome
    """The worst outcome: wrong, hung, failed, slow."""
    passed: int
    """How many of the tests that count for it passed."""
    certain: bool
    evidence: tuple[Evidence, ...]
    sentence: str

    @property
    def flaky(self) -> bool:
        """Whether it also passed."""
        return self.passed > 0

    @property
    def by_others(self) -> bool:
        """Whether it is convicted by tests with other nodes, not by tests alone."""
        return self.part != "link" and any(len(e.nodes) > 1 for e in self.evidence)


class Suspect(msgspec.Struct, frozen=True):
    """Nodes one of which, or the path between them, is at fault; it is unknown which."""

    nodes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    sentence: str


class SearchVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search."""

    kind: Kind
    culprits: tuple[Culprit, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    undecided: tuple[Suspect, ...] = ()
    untested: tuple[str, ...] = ()
    """Present nodes without a finished test."""
    only_alone: tuple[str, ...] = ()
    """Nodes that passed alone and had no partner to be tested with."""
    missing: dict[str, str] = {}
    largest_passed: int = 0
    """The most nodes that passed together."""
    rounds: int = 0
    sentence: str
