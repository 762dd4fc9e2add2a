"""What a search found: who is convicted on what evidence, what could not be decided, and one sentence."""

from __future__ import annotations

from typing import Literal

import msgspec

from distcheck.isolation.groups import Boundary
from distcheck.isolation.round import Outcome, Purpose, Said

Kind = Literal["healthy", "found", "undecided", "boundary", "shared", "unmeasured"]
"""shared: most nodes show the same, so that no node is to blame; unmeasured: no test came to an end."""
Part = Literal["node", "rail", "rank", "link"]


class Evidence(msgspec.Struct, frozen=True):
    """One test: which round, who took part, how it ended."""

    round: int
    nodes: tuple[str, ...]
    purpose: Purpose
    outcome: Outcome
    ratio: float | None = None
    """Of a slow one: its speed as a share of what others showed."""
    said: tuple[Said, ...] = ()


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """A node, a rail of a node, a slow rank, or the link between two nodes."""

    part: Part
    nodes: tuple[str, ...]
    """One, or the two ends of a link."""
    local_ranks: tuple[int, ...] = ()
    """The rails, or the slow ranks."""
    fault: Outcome
    """The worst that was seen: wrong, hung, failed, slow."""
    passed: int
    tests: int
    """How many tests it took part in that tell of it, and how many of these passed: both above 0 is flaky."""
    certain: bool
    evidence: tuple[Evidence, ...]
    sentence: str

    @property
    def flaky(self) -> bool:
        """Whether it also passed."""
        return self.passed > 0

    @property
    def by_others(self) -> bool:
        """Whether it is convicted because of how it did with others, rather than by itself."""
        return self.part != "link" and any(len(e.nodes) > 1 for e in self.evidence)


class Suspect(msgspec.Struct, frozen=True):
    """Nodes of which one, or the way between them, did not work, and nothing tells which."""

    nodes: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    sentence: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a search."""

    kind: Kind
    culprits: tuple[Culprit, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    undecided: tuple[Suspect, ...] = ()
    untested: tuple[str, ...] = ()
    """Nodes that are present and of which no test came to an end."""
    only_alone: tuple[str, ...] = ()
    """Nodes that passed alone and had no other to be tested with."""
    missing: dict[str, str] = {}
    largest_passed: int = 0
    """The most nodes that passed together."""
    widespread: bool = False
    """Whether failures are spread over so many pairs that the network is likelier than any node."""
    rounds: int = 0
    sentence: str

    @property
    def certain(self) -> bool:
        """Whether everything that went wrong is explained by culprits that are certain."""
        gaps = self.undecided or self.boundaries or self.untested or self.only_alone
        return not gaps and all(c.certain for c in self.culprits)

    def bad_nodes(self, *, certain: bool = True) -> tuple[str, ...]:
        """Return the nodes to leave out: convicted themselves, by a rail or by a rank; never for a link."""
        found = (n for c in self.culprits if c.part != "link" and (c.certain or not certain) for n in c.nodes)
        return tuple(dict.fromkeys(found))
