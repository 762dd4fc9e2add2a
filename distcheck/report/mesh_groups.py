"""Rows of the report for the groups of a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distcheck.collectives.dimensions import inside
from distcheck.collectives.plan import bus_factor, label
from distcheck.facts.groups import GroupFigure, with_groups
from distcheck.facts.job import Collectives, Job
from distcheck.report.schema.figures import GroupRow
from distcheck.report.schema.part import part_of


def group_rows(job: Job) -> Iterator[GroupRow]:
    """Yield a row for each dimension and operation that was measured in the groups of a mesh."""
    ran = job.collectives
    if not isinstance(ran, Collectives):
        return
    for figure, groups in with_groups(ran.mesh, ran.groups, len(job.ranks)):
        name = label(inside(figure.op, figure.dimension), figure.dtype)
        wrong = [rank.run.wrong[name] for rank in job.ranks if rank.run is not None and name in rank.run.wrong]
        yield _row(figure, groups, sum(wrong) if wrong else None)


def _row(figure: GroupFigure, groups: Sequence[range], wrong: int | None) -> GroupRow:
    factor = bus_factor(figure.op, len(groups[0])) or 1.0

    def busbw(seconds: float | None) -> float | None:
        return figure.bytes / seconds / 1e9 * factor if seconds else None

    alone, first = figure.alone_seconds, next(iter(figure.seconds), None)
    known = [(seconds, ranks) for seconds, ranks in zip(figure.seconds, groups, strict=False) if seconds is not None]
    slowest = max(known, key=lambda pair: pair[0])[1] if len(known) > 1 else ()
    return part_of(
        GroupRow,
        figure,
        groups=len(groups),
        ranks=len(groups[0]),
        alone_busbw_GBps=busbw(alone),
        busbw_GBps=tuple(map(busbw, figure.seconds)),
        share_of_alone=alone / first if alone and first else None,
        slowest=tuple(slowest),
        wrong=wrong,
    )


def middle(row: GroupRow) -> float | None:
    """Return the median of the groups' bus bandwidths."""
    from statistics import median  # imports fractions and random, which a report without figures does not need

    known = [speed for speed in row.busbw_GBps if speed is not None]
    return median(known) if known else None


def lowest(row: GroupRow) -> float | None:
    """Return the bus bandwidth of the slowest group."""
    return min((speed for speed in row.busbw_GBps if speed is not None), default=None)
