"""What the training steps of --step covered and found: a row for each way to train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from distcheck.facts.training import Training
from distcheck.report.schema.training import RanksBecause, TrainingRow
from distcheck.rules.wording import grouped

if TYPE_CHECKING:
    from distcheck.facts.job import Job


def training_rows(job: Job) -> Iterator[TrainingRow]:
    """Yield a row for each way in which some rank was to train."""
    found = ((way, rank, run) for rank in job.ranks if rank.run for way, run in rank.run.training.items())
    for way, these in grouped(found, lambda one: one[0]).items():
        each = [(rank.placement.rank, run) for _, rank, run in these]
        took = [(rank, training) for rank, training in each if isinstance(training, Training)]
        first = took[0][1] if took else None
        yield TrainingRow(
            way=way,
            dtype=first.dtype if first else None,
            ranks=len(took),
            steps=min((training.steps for _, training in took), default=0),
            due=max((training.due for _, training in took), default=0),
            tensors=len(first.parameters) if first else 0,
            wrong=tuple(
                rank for rank, t in took if rank is not None and (t.wrong_own or t.wrong_average or t.wrong_update)
            ),
            not_taken=_because((rank, t.reason) for rank, t in each if not isinstance(t, Training)),
        )


def _because(reasons: Iterable[tuple[int | None, str]]) -> tuple[RanksBecause, ...]:
    """Return the ranks that have a reason, by reason."""
    known = ((rank, reason) for rank, reason in reasons if reason and rank is not None)
    return tuple(
        RanksBecause(tuple(rank for rank, _ in these), reason)
        for reason, these in grouped(known, lambda pair: pair[1]).items()
    )
