"""What earlier runs found on the nodes of a job (``--history``), a line of the history, and totals of its lines."""

from __future__ import annotations

from distcheck.facts.base import Amount, Count, Facts, Seconds

SCHEMA = 1
"""The version of a line. Fields can be added without a new number; readers skip lines of a higher one."""
RECENT = 10
"""How many of the last runs of a command on a node count."""
RECENT_DAYS = 30
"""Older failures do not count."""
LATEST = 3
"""How many of the newest values of a figure, this run's included, are compared with the earlier ones."""
FEWEST_EARLIER = 5
"""With fewer earlier values their scatter is unknown."""


class Failure(Facts, frozen=True):
    """A run that found a node confirmed bad."""

    time: Seconds
    """In seconds since 1970 (UTC)."""
    rules: tuple[str, ...]


class RecentRuns(Facts, frozen=True):
    """The last runs of one command on one node; kept only if one of them failed there."""

    node: str
    command: str
    runs: Count
    """How many there were, of the last `RECENT` in `RECENT_DAYS`."""
    failures: tuple[Failure, ...]
    """The oldest first."""


class PastFigure(Facts, frozen=True):
    """The earlier values of a figure that this run may measure again."""

    node: str
    """The node that has them in its history; for a figure of several nodes, rank 0's."""
    name: str
    values: tuple[Amount, ...]
    """The oldest first."""
    versions: str = ""
    """distcheck, torch and NCCL at the last of these values."""


class History(Facts, frozen=True):
    """The history of a job's nodes, as it was before this run."""

    folder: str
    recent: tuple[RecentRuns, ...] = ()
    figures: tuple[PastFigure, ...] = ()
    newer: Count = 0
    """Lines of a newer schema, which this version does not read."""
    unread: tuple[str, ...] = ()
    """Nodes whose file was not read, each with the reason."""


class Noted(Facts, frozen=True, omit_defaults=True):
    """A finding of severity error or warning that named the node."""

    rule: str
    severity: str
    scope: str
    confirmed: bool
    observed: bool = False
    """Whether it was only observed, so that the node was not excluded for it."""


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
        return tuple(dict.fromkeys(f.rule for f in self._bad))

    @property
    def spared(self) -> tuple[str, ...]:
        """Those of them for which the node would have been excluded, and was not: they were only observed."""
        return tuple(dict.fromkeys(f.rule for f in self._bad if f.observed))

    @property
    def _bad(self) -> list[Noted]:
        return [f for f in self.findings if f.severity == "error" and f.scope in {"node", "gpu"} and f.confirmed]

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
    spared: dict[str, Count] = {}
    """In how many of them that was only observed."""


class Totals(Facts, frozen=True):
    """The history of all nodes."""

    nodes: tuple[NodeTotal, ...] = ()
    """Those that failed most often first."""
    lines: Count = 0
    unreadable: Count = 0
    newer: Count = 0
    unread: tuple[str, ...] = ()
    """Files that were not read, each with the reason."""
