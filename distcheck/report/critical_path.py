"""The critical path: how long each stage of the run took, and the process that it waited for longest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from distcheck.facts.rank import Role, Stage
from distcheck.report.schema.document import PathStep

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import ProcessFacts

LAUNCH = "launch"
"""The stage of a run from outside that no probe sees: their start, and the way home of the facts."""
_NOTICED_SECONDS = 0.05
"""A process that is less behind the others is not named: they were done together."""
_STAGES: tuple[str, ...] = get_args(Stage)


def critical_path(job: Job) -> tuple[PathStep, ...]:
    """Return the stages in order, on the leader's clock; their seconds add up to those of the run.

    Empty if no leader noted when it began its stages.
    """
    leader = _leader(job)
    if leader is None:
        return ()
    began = sorted(leader.began_seconds.items(), key=lambda item: (item[1], _STAGES.index(item[0])))
    whole = max(job.seconds, began[-1][1])
    # A run from outside began before its leader did, and ended after it.
    ends = [at for _, at in began[1:]] + [began[-1][1] if job.launched else whole]
    steps = [(stage, at, end) for (stage, at), end in zip(began, ends, strict=True)]
    found = [_step(job, stage, at, end) for stage, at, end in steps if end > at or stage != "done"]
    if job.launched:
        found.insert(
            0, PathStep(LAUNCH, _between(began[-1][1], whole), (), (), "start of the probes and their reports")
        )
    return tuple(found)


def _leader(job: Job) -> ProcessFacts | None:
    leaders = (process for process in job.processes if process.role is Role.LEADER and process.began_seconds)
    alone = job.processes if len(job.processes) == 1 and job.processes[0].began_seconds else ()
    return next(leaders, None) or next(iter(alone), None)


def _step(job: Job, stage: Stage, at: float, end: float) -> PathStep:
    uid, why = next(_awaited(job, stage), ("", ""))
    if not uid:
        return PathStep(stage, _between(at, end), (), (), "")
    ranks = tuple(sorted(r.placement.rank for r in job.ranks if r.process == uid and r.placement.rank is not None))
    nodes = tuple(job.node_names[process.node] for process in job.processes if process.uid == uid)
    return PathStep(stage, _between(at, end), ranks, nodes, why)


def _between(at: float, end: float) -> float:
    """Return a duration in hundredths such that durations that follow each other add up."""
    return round(round(end, 2) - round(at, 2), 2)


def _awaited(job: Job, stage: Stage) -> Iterator[tuple[str, str]]:
    """Yield the process that a stage waited for, and why; nothing if all were done together."""
    if stage == "meeting":
        came = {p.uid: p.arrived_seconds for p in job.processes if p.arrived_seconds is not None}
        if came and (late := max(came.values())) >= _NOTICED_SECONDS:
            yield max(came, key=came.__getitem__), f"joined {late:.2f} s after the first process"
    for wait in job.waits:
        if wait.stage == stage and wait.seconds >= _NOTICED_SECONDS:
            how = "did not answer" if wait.silent else f"done {wait.seconds:.2f} s after the others"
            yield wait.process, how + _start_up(job, wait.process, stage)
    if stage == "collectives":
        took = {r.process: r.run.import_seconds for r in job.ranks if r.run and r.run.import_seconds is not None}
        if took:
            slow = max(took, key=took.__getitem__)
            yield slow, _start_up(job, slow, stage).removeprefix("; ")


def _start_up(job: Job, uid: str, stage: Stage) -> str:
    """Return how long a process's slowest rank took for the steps before the first figure."""
    runs = [r.run for r in job.ranks if r.process == uid and r.run is not None] if stage == "collectives" else []
    imports = [run.import_seconds for run in runs if run.import_seconds is not None]
    joins = [run.joined_seconds for run in runs if run.joined_seconds is not None]
    parts = [f"import of torch {max(imports):.2f} s"] if imports else []
    parts += [f"process group {max(joins):.2f} s"] if joins else []
    return f"; {', '.join(parts)}" if parts else ""
