"""`distcheck hang`: looks at running jobs, longer where two samples do not decide, and judges each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from msgspec.structs import replace

from distcheck import __version__
from distcheck.facts.asked import Asked
from distcheck.facts.hang import RunningJob
from distcheck.facts.job import Job
from distcheck.rules.hang.judging import Word, answer, answer_of
from distcheck.run.interrupts import Interruption
from distcheck.run.record import now

if TYPE_CHECKING:
    from distcheck.probe.hang.look import Wanted

Looking = Callable[["Wanted"], list[RunningJob]]
LONGEST_SECONDS = 10.0
"""How long a rank is watched that only sleeps, polls or reads before it counts as hung."""
_SHORTEST = 0.5
"""A shorter look adds nothing."""
_PATIENCE = 3
"""On a machine that is overloaded, taking the samples takes longer than the time between them."""


def watched(asked: Asked, wanted: Wanted, looking: Looking, stop: Interruption, *, at_once: bool = False) -> list[Job]:
    """Look at the jobs that run, and return each as a job of its own; a longer look takes its whole time `at_once`."""
    began = time.monotonic()
    found = {hang.name: hang for hang in looking(wanted._replace(native_seconds=0.0))}
    until = began + min(_PATIENCE * LONGEST_SECONDS, asked.timeout_seconds / 2)
    while not stop.came and (left := _left_seconds(found.values())) > _SHORTEST and time.monotonic() < until:
        again = min(max(wanted.seconds, 2.0), left)
        _add(found, looking(wanted._replace(seconds=left if at_once else again, native_seconds=0.0)))
    if wanted.native_seconds and not stop.came:  # once, because it stops the ranks
        _add(found, looking(wanted._replace(seconds=_SHORTEST)))
    return [_job(asked, hang, time.monotonic() - began, stop.came or 0) for hang in found.values()]


def _add(found: dict[str, RunningJob], later: Iterable[RunningJob]) -> None:
    """Add the samples of a later look."""
    for again in later:
        before = found.get(again.name)
        found[again.name] = joined(before, again) if before is not None else again


def _left_seconds(found: Iterable[RunningJob]) -> float:
    """Return for how much longer to look at the job that needs it most."""
    return max((LONGEST_SECONDS - each.seconds for each in map(answer, found) if each.longer), default=0.0)


def joined(before: RunningJob, after: RunningJob) -> RunningJob:
    """Return a job with the samples of two looks; a rank that is only in the later one has those.

    Of a node that did not answer the later one, what it answered before counts.
    """
    earlier = {(rank.node, rank.pid): rank.moments for rank in before.ranks}
    answered = {node.name: node for node in before.nodes if not node.problem}
    silent = {node.name for node in after.nodes if node.problem}
    nodes = tuple(answered.get(node.name, node) if node.problem else node for node in after.nodes)
    longer = (replace(r, moments=(*earlier.get((r.node, r.pid), ()), *r.moments)) for r in after.ranks)
    return replace(after, nodes=nodes, ranks=(*longer, *(rank for rank in before.ranks if rank.node in silent)))


def _job(asked: Asked, hang: RunningJob, seconds: float, interrupted: int) -> Job:
    return Job(
        distcheck=__version__,
        run=uuid4().hex,
        asked=asked,
        seconds=seconds,
        met=True,
        hang=hang,
        at=now(),
        host=os.uname().nodename,
        interrupted=interrupted,
    )


def changes(look: Callable[[], list[Job]], seconds: float | None, stop: Interruption) -> Iterator[list[Job]]:
    """Yield what is seen each `seconds`, until the answer about a job changes or a signal comes; None: only once."""
    before: dict[str, Word] = {}
    while not stop.came:
        found = look()
        yield found
        words = {job.hang.name: answer_of(job).word for job in found if job.hang}
        if seconds is None or words != (before or words):
            return
        before = words
        stop.pause(seconds)
