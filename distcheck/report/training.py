"""What the training steps of --step covered and found: a row for each way to train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from distcheck.facts.training import Training
from distcheck.report.schema.training import RanksBecause, TrainingRow

if TYPE_CHECKING:
    from distcheck.facts.base import Missing
    from distcheck.facts.job import Job


def training_rows(job: Job) -> Iterator[TrainingRow]:
    """Yield a row for each way in which some rank was to train."""
    ways: dict[str, list[tuple[int | None, Training | Missing]]] = {}
    for rank in job.ranks:
        for way, training in (rank.run.training if rank.run else {}).items():
            ways.setdefault(way, []).append((rank.placement.rank, training))
    for way, each in ways.items():
        took = [(rank, training) for rank, training in each if isinstance(training, Training)]
        first = took[0][1] if took else None
        yield TrainingRow(
            way=way,
            dtype=first.dtype if first else None,
            ranks=len(took),
            steps=min((training.steps for _, training in took), default=0),
            due=max((training.due for _, training in took), default=0),
            tensors=len(first.parameters) if first else 0,
            wrong=tuple(rank for rank, training in took if rank is not None and _is_wrong(training)),
            stopped=_because((rank, training.stopped) for rank, training in took),
            not_taken=_because((rank, t.reason) for rank, t in each if not isinstance(t, Training)),
        )


def _is_wrong(training: Training) -> bool:
    return bool(training.wrong_own or training.wrong_output or training.wrong_average or training.wrong_update)


def _because(reasons: Iterable[tuple[int | None, str]]) -> tuple[RanksBecause, ...]:
    """Return the ranks that have a reason, by reason."""
    ranks: dict[str, list[int]] = {}
    for rank, reason in reasons:
        if reason and rank is not None:
            ranks.setdefault(reason, []).append(rank)
    return tuple(RanksBecause(tuple(found), reason) for reason, found in ranks.items())
