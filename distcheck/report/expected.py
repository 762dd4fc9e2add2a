"""What the report says of the bandwidth that was expected, and where that comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.collectives.plan import label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.report.document import Bandwidth


def any_expected(measured: Iterable[Bandwidth]) -> bool:
    """Tell whether something is expected of any row."""
    return any(row.expected_GBps.value is not None for row in measured)


def percent(share: float | None) -> str:
    """Write a share of what was expected: 97%."""
    return "n/a" if share is None else f"{share:.0%}"


def provenance(measured: Iterable[Bandwidth]) -> list[str]:
    """Say once of each source which operations it is for, and whether smaller sizes are held to less."""
    operations: dict[str, dict[str, set[float]]] = {}
    for row in measured:
        if row.expected_GBps.value is not None:
            of = operations.setdefault(row.expected_GBps.source, {}).setdefault(label(row.op, row.dtype), set())
            of.add(row.expected_GBps.value)
    lines = []
    for source, values in operations.items():
        smaller = "; of smaller sizes the share that is usual there" if any(len(v) > 1 for v in values.values()) else ""
        lines.append(f"expected of {' and '.join(values)}: {source}{smaller}")
    return lines
