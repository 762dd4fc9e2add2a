"""The expected bandwidth in a report, and its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.collectives.plan import label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts.job import Job
    from distcheck.report.schema.figures import Bandwidth


def any_expected(measured: Iterable[Bandwidth]) -> bool:
    """Return whether any row has an expected bandwidth."""
    return any(row.expected_GBps.value is not None for row in measured)


def percent(share: float | None) -> str:
    """Return a share of the expected bandwidth as a percentage: 97%."""
    return "n/a" if share is None else f"{share:.0%}"


def provenance(job: Job, measured: Iterable[Bandwidth]) -> list[str]:
    """Return one line per source: its operations, and what smaller sizes expect."""
    baseline = job.asked.baseline
    operations: dict[str, dict[str, set[float]]] = {}
    for row in measured:
        if row.expected_GBps.value is not None:
            of = operations.setdefault(row.expected_GBps.source, {}).setdefault(label(row.op, row.dtype), set())
            of.add(row.expected_GBps.value)
    lines = []
    for source, values in operations.items():
        each = "; each size as in that run"
        if baseline is None or source != baseline.file:
            each = "; smaller sizes: the usual share of it" if any(len(v) > 1 for v in values.values()) else ""
        lines.append(f"expected for {' and '.join(values)}: {source}{each}")
    return lines
