"""A line of the history that each run adds for each node, and the totals of these lines."""

from __future__ import annotations

from distcheck.facts.base import Amount, Count, Facts, Seconds
from distcheck.facts.history import Failure

SCHEMA = 1
"""The version of a line. Fields can be added without a new number; readers skip lines of a higher one."""


class Noted(Facts, frozen=True):
    """A finding of severity error or warning that named the node."""

    rule: str
    severity: str
    scope: str
    confirmed: bool


class PastRun(Facts, frozen=True, omit_defaults=True):
    """One line of the history: what one run found on one node."""

    schema: Count
    node: str
    time: Seconds
    """When the run ended, in seconds since 1970 (UTC)."""
    run: str
    command: str
    verdict: str
    """Of the whole job."""
    findings: tuple[Noted, ...] = ()
    figures: dict[str, Amount] = {}
    """Higher is better. The name says what was measured and under which conditions, so equal names are comparable."""
    distcheck: str = ""
    torch: str = ""
    nccl: str = ""

    @property
    def failures(self) -> tuple[str, ...]:
        """The rules that found this node, or a GPU of it, confirmed bad."""
        bad = (f for f in self.findings if f.severity == "error" and f.scope in {"node", "gpu"} and f.confirmed)
        return tuple(dict.fromkeys(f.rule for f in bad))

    @property
    def versions(self) -> str:
        """The versions of what ran: distcheck 0.1.0, torch 2.8.0, NCCL 2.27.3."""
        found = {"distcheck": self.distcheck, "torch": self.torch, "NCCL": self.nccl}
        return ", ".join(f"{name} {version}" for name, version in found.items() if version)


class NodeTotal(Facts, frozen=True):
    """How often runs found a node confirmed bad, of all runs in its history."""

    node: str
    runs: Count
    failed: Count
    first: Seconds
    """When the first run in the history ended, in seconds since 1970 (UTC)."""
    last: Seconds
    last_failure: Failure | None = None
    rules: dict[str, Count] = {}
    """In how many runs each rule found the node confirmed bad."""


class Totals(Facts, frozen=True):
    """The history of all nodes."""

    nodes: tuple[NodeTotal, ...] = ()
    """Those that failed most often first."""
    lines: Count = 0
    unreadable: Count = 0
    newer: Count = 0
    unread: tuple[str, ...] = ()
    """Files that were not read, each with the reason."""
