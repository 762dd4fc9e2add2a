"""Measured figures, selected and formatted for the human-readable reports."""

from __future__ import annotations

from distcheck.report.schema.document import Document
from distcheck.report.schema.figures import Bandwidth


def figure(number: float | None, scale: float = 1.0) -> str:
    """Return a measured quantity with three digits or more; n/a for None."""
    if number is None:
        return "n/a"
    number *= scale
    return f"{number:.1f}" if abs(number) >= 100 else f"{number:.2f}" if abs(number) >= 1 else f"{number:#.3g}"


def percent(share: float | None) -> str:
    """Return a share of the expected bandwidth as a percentage: 97%."""
    return "n/a" if share is None else f"{share:.0%}"


def uncertain(row: Bandwidth) -> str:
    """Return the uncertainty of a figure, empty if unknown; ``*`` if its time ran out before it was steady."""
    if row.uncertainty is None:
        return ""
    return f"{row.uncertainty:.1%}{'' if row.ended == 'steady' else '*'}"


def slowest(row: Bandwidth) -> str:
    """Return the slowest rank; outside the world group, its position in the group."""
    if row.ranks < 2 or row.seconds.max is None:
        return "-"
    place = row.seconds.by_rank.index(row.seconds.max)
    return str(place) if row.group == "world" else f"#{place}"


def largest(report: Document) -> list[Bandwidth]:
    """Return the measurement at the largest size of each operation over the whole world."""
    by_op: dict[tuple[str, str], Bandwidth] = {}
    for row in report.bandwidth:
        key = row.op, row.dtype
        if row.group == "world" and (key not in by_op or row.bytes > by_op[key].bytes):
            by_op[key] = row
    return list(by_op.values())
