"""What earlier runs found on the nodes of a job (``--history``)."""

from __future__ import annotations

from distcheck.facts.base import Amount, Count, Facts, Seconds

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
