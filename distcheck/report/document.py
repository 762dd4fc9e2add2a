"""Makes the report's data of a judged job; `schema` describes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from distcheck.collectives.plan import bus_factor, label
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import ProcessFacts
from distcheck.report.critical_path import critical_path
from distcheck.report.devices import device_rows
from distcheck.report.gpus import RankGpu, gpus_of, gpus_without_ranks
from distcheck.report.harmless import storable
from distcheck.report.headline import headline
from distcheck.report.mesh_groups import group_rows
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.document import (
    Document,
    Exclude,
    Found,
    PolicyRow,
    RankRow,
    Status,
    Unlooked,
    World,
    Would,
)
from distcheck.report.schema.figures import NO_EXPECTATION, Bandwidth, Expected, Model, Seconds
from distcheck.report.schema.mesh import GroupPlace, MeshRow
from distcheck.report.schema.part import part_of
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, NotChecked, excluded_nodes, spared_nodes
from distcheck.rules.wording import grouped

if TYPE_CHECKING:
    from distcheck.expectation.judge import Expectation
    from distcheck.report.schema.hang import HangAnswer
    from distcheck.report.schema.training import TrainingRow

Places = dict[str, GroupPlace] | None


def document(job: Job, diagnosis: Diagnosis) -> Document:
    """Return the report of a judged job."""
    excluded = excluded_nodes(diagnosis.findings)
    measured = _bandwidth(job)
    mesh, places = _mesh(job)
    return Document(
        schema=1,
        distcheck=job.distcheck,
        command=job.asked.command,
        verdict=diagnosis.verdict.name,
        exit_code=diagnosis.verdict.exit_code,
        headline=headline(job, diagnosis),
        seconds=job.seconds,
        world=_world(job),
        findings=tuple(part_of(Found, f, evidence=storable(f.evidence)) for f in diagnosis.findings),
        not_checked=tuple(part_of(Unlooked, unlooked) for unlooked in diagnosis.not_checked),
        ranks=_rows(job, diagnosis, places) if job.hang is None else _hang_ranks(job),
        missing_ranks=job.missing_ranks if job.hang is None else _missing(job),
        bandwidth=measured,
        exclude=Exclude(fold_nodes(excluded), excluded),
        models=tuple(_models(measured)),
        gpus=tuple(gpus_without_ranks(job)),
        devices=tuple(device_rows(job)),
        mesh=mesh,
        groups=tuple(group_rows(job)),
        training=_training(job),
        hang=_hang(job),
        critical_path=critical_path(job),
        at=job.at,
        host=job.host,
        command_line=job.asked.line,
        policy=_policy(job),
        would=_would(diagnosis),
    )


def _policy(job: Job) -> PolicyRow | None:
    policy = job.asked.policy
    return None if policy is None else part_of(PolicyRow, policy, mode=job.asked.mode_of())


def _would(diagnosis: Diagnosis) -> Would | None:
    would = diagnosis.would
    return None if would is None else Would(would.name, would.exit_code, spared_nodes(diagnosis.findings))


def _training(job: Job) -> tuple[TrainingRow, ...]:
    if "training" not in job.asked.looks:
        return ()
    from distcheck.report.training import training_rows  # only with --step

    return tuple(training_rows(job))


def _hang(job: Job) -> HangAnswer | None:
    if job.hang is None:
        return None
    from distcheck.report.hang import hang_answer  # only for `distcheck hang`

    return hang_answer(job)


def _hang_ranks(job: Job) -> tuple[RankRow, ...]:
    from distcheck.report.hang import rank_statuses  # likewise

    return rank_statuses(job)


def _missing(job: Job) -> tuple[int, ...]:
    from distcheck.rules.hang.judging import answer_of  # likewise

    return answer_of(job).missing


def _mesh(job: Job) -> tuple[MeshRow | None, Callable[[int | None], Places]]:
    """Return the row of the mesh, and a function that returns a rank's groups in it."""
    if job.asked.mesh is None:
        return None, lambda _rank: None
    from distcheck.report.mesh import group_places, mesh_row  # only needed with --mesh
    from distcheck.rules.job.mesh import mesh_of

    return mesh_row(job), partial(group_places, mesh_of(job))


def _world(job: Job) -> World:
    if job.hang is not None:
        nodes = {node.name for node in job.hang.nodes}
        ranks = job.hang.world_size or len(job.hang.ranks)
        return World(ranks, len(nodes), job.hang.launcher or "none", "auto", None, None)
    launchers = Counter(rank.placement.launcher for rank in job.ranks)
    ran = job.collectives if isinstance(job.collectives, Collectives) else None
    commonest = max(sorted(launchers), key=launchers.__getitem__, default="none")
    builds = {process.installed.torch for process in job.processes}
    installed = sorted({build.version for build in builds if isinstance(build, TorchBuild)})
    return World(
        ranks=job.world_size if job.world_size and job.world_size > 0 else len(job.ranks),
        nodes=len(job.nodes),
        launcher=job.launched.engine if job.launched else "distcheck" if job.asked.started_here else commonest,
        backend=_backend(job, ran.backend if ran else job.asked.backend),
        torch=(ran.torch if ran and len(installed) < 2 else "") or ", ".join(installed) or None,
        nccl=(ran.nccl if ran else "") or None,
    )


def _backend(job: Job, kind: str) -> str:
    """Return a backend's name, with the class behind it where that has another name: nccl (NCCL2), own (Gloo)."""
    ran = {rank.run.implementation.removeprefix("ProcessGroup") for rank in job.ranks if rank.run}
    others = " and ".join(sorted(each for each in ran if each and each.lower() != kind))
    return (job.asked.backend_name or kind) + (f" ({others})" if others else "")


def _rows(job: Job, diagnosis: Diagnosis, places: Callable[[int | None], Places]) -> tuple[RankRow, ...]:
    levels = _levels(diagnosis)
    rows = []
    gpus_on = {node.key: gpus for node, gpus in gpus_of(job.nodes)}
    there = None
    for rank, process, node in job.placed:
        if node is not there:
            there, shown, gpus = node, job.node_names[node.key], gpus_on[node.key]
        where, used = rank.placement, rank.gpu
        gpu = None if used is None else gpus.get(used) or RankGpu(None, used, None, None)
        unfinished = process.stage != "done" or (rank.run is not None and rank.run.outcome != "done")
        level = max(levels.get(where.rank, 0), levels.get(node.name, 0), _LEVELS.index("unknown") * unfinished)
        status = _LEVELS[level]
        row = where.rank, shown, where.local_rank, gpu, _master(process), process.stage, status, places(where.rank)
        rows.append(RankRow(*row))
    if job.missing_ranks:
        from distcheck.rules.job.homes import homes  # imported late: costs start-up time, rarely used

        home = homes(job)
        rows += (RankRow(rank, home.get(rank), None, None, "-", None, "missing") for rank in job.missing_ranks)
    return tuple(sorted(rows, key=lambda row: math.inf if row.rank is None else row.rank))


_LEVELS: tuple[Status, ...] = ("ok", "warning", "unknown", "error")


def _levels(diagnosis: Diagnosis) -> dict[int | str | None, int]:
    """Return how bad the state of each rank is that the diagnosis names, and of each node named without ranks."""
    levels: dict[int | str | None, int] = {}
    outcomes: tuple[Finding | NotChecked, ...] = (*diagnosis.findings, *diagnosis.not_checked)
    for outcome in outcomes:
        if isinstance(outcome, Finding):
            level = 0 if outcome.severity == "info" else _LEVELS.index(outcome.severity)
        else:
            level = _LEVELS.index("unknown") if outcome.required else 0
        for key in outcome.ranks or outcome.nodes:
            levels[key] = max(levels.get(key, 0), level)
    return levels


_BIND_WORDS = {"bound": "listening", "in-use": "in use"}
_ATTEMPT_WORDS = {"met": "reached"}
_BEST_FIRST: tuple[str, ...] = ("met", "agent", "waiting")


def _master(process: ProcessFacts) -> str:
    """Return the result of a process at the master port; of several, the best."""
    if process.bind is not None:
        return _BIND_WORDS.get(process.bind.outcome, process.bind.outcome)
    outcomes = [attempt.outcome for attempt in process.attempts if attempt.door == "master"]
    if not outcomes:
        return "-"
    for outcome in _BEST_FIRST:
        if outcome in outcomes:
            return _ATTEMPT_WORDS.get(outcome, outcome)
    return outcomes[0]


def _bandwidth(job: Job) -> tuple[Bandwidth, ...]:
    if not isinstance(job.collectives, Collectives):
        return ()
    runs = [rank.run for rank in job.ranks if rank.run is not None]
    checked = set().union(*[run.checked for run in runs], *[run.wrong for run in runs])
    wrong: Counter[str] = Counter()
    for run in runs:
        if any(run.wrong.values()):
            wrong.update(run.wrong)
    from distcheck.rules.collectives.bandwidth import expected  # only needed for measurements

    expectations = expected(job)
    return tuple(
        _measured(
            m,
            wrong[name] if (name := label(m.op, m.dtype)) in checked else None,
            expectations.get(name) if m.group == "world" else None,
        )
        for m in job.collectives.measurements
    )


def _models(measured: tuple[Bandwidth, ...]) -> Iterator[Model]:
    """Yield a model of every operation over the whole world with enough sizes; a single rank moves nothing."""
    if not measured:
        return
    from distcheck.collectives.curve import fit

    world = [row for row in measured if row.group == "world" and row.ranks > 1]
    for (op, dtype, ranks), rows in grouped(world, lambda row: (row.op, row.dtype, row.ranks)).items():
        line = fit((row.bytes, row.seconds.mean) for row in rows if row.seconds.mean is not None)
        if line is not None:
            rate, factor = line.bytes_per_second / 1e9, bus_factor(op, ranks)
            yield Model(
                op, dtype, ranks, line.latency_seconds, rate, None if factor is None else rate * factor,
                line.half_bytes, line.error,
            )  # fmt: skip


def _measured(measurement: Measurement, wrong: int | None, expectation: Expectation | None) -> Bandwidth:
    by_rank: tuple[float | None, ...] = measurement.seconds_by_rank
    times: Sequence[float] = measurement.seconds_by_rank
    if not math.isfinite(sum(times)):
        by_rank = tuple(second if math.isfinite(second) else None for second in times)
        times = [second for second in times if math.isfinite(second)]
    mean = math.fsum(times) / len(times) if times else None
    ranks = len(measurement.seconds_by_rank)
    algbw = measurement.bytes / mean / 1e9 if mean else None
    factor = bus_factor(measurement.op, ranks)
    busbw = algbw * factor if algbw is not None and factor is not None else None
    expected = expectation.at(measurement.bytes) if expectation and factor is not None else None
    return part_of(
        Bandwidth,
        measurement,
        ranks=ranks,
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        seconds=Seconds(mean, min(times, default=None), max(times, default=None), by_rank),
        wrong=wrong,
        expected_GBps=Expected(expected, expectation.source if expectation else NO_EXPECTATION),
        share_of_expected=busbw / expected if busbw is not None and expected else None,
    )
