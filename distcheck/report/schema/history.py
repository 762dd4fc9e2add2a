"""The document of `distcheck report --history`."""

from __future__ import annotations

from typing import Literal

from distcheck.report.schema.part import Part


class LastFailure(Part, frozen=True):
    """The last run that found a node confirmed bad."""

    time: str
    """In ISO 8601, UTC."""
    rules: tuple[str, ...]


class NodeHistory(Part, frozen=True):
    """How often runs found a node confirmed bad."""

    node: str
    runs: int
    failed: int
    first: str
    """When the first run in the history ended."""
    last: str
    last_failure: LastFailure | None
    rules: dict[str, int]
    """In how many runs each rule found the node confirmed bad."""


class WouldRow(Part, frozen=True):
    """A rule for which nodes would have been excluded, and were not, because it was only observed."""

    rule: str
    nodes: tuple[str, ...]
    times: int
    """Runs, counted on each node."""
    share: float
    """Of all runs of all nodes."""


class HistoryDocument(Part, frozen=True):
    """What `distcheck report --history` prints with ``--format json``."""

    schema: Literal[1]
    distcheck: str
    history: str
    """The directory."""
    nodes: tuple[NodeHistory, ...]
    """Those that failed most often first."""
    lines: int
    unreadable: int
    """Lines that are torn, or are not lines of a history."""
    newer: int
    """Lines of a newer schema, which this version does not read."""
    unread: tuple[str, ...]
    """Files that were not read, each with the reason."""
    would: tuple[WouldRow, ...] = ()
    """The most frequent first."""
