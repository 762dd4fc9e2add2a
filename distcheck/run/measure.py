"""How the leader runs the collectives on all ranks and joins their results."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, median

import msgspec

from distcheck.collectives.dimensions import measured
from distcheck.collectives.plan import GroupTiming, Plan, Task, Timing
from distcheck.collectives.spread import at_least, uncertainty
from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.nccl import Ras
from distcheck.facts.quantities import count, duration
from distcheck.facts.rank import RankRun
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.launch.local.tasks import tasks_for
from distcheck.rollcall.protocol import Abort, RunReport, Start
from distcheck.rollcall.server import Server
from distcheck.run import ras, waiting
from distcheck.run.context import Session
from distcheck.run.group_figures import figures
from distcheck.run.stall import Pace, before_a_search, before_repeats, in_sweep

REPORT_RESERVE_SECONDS = 3.0
FEWEST_NODES = 2
ISOLATION_SECONDS = 10.0
"""With less time left, a gate does not start a search for the bad node."""
REPEAT_SECONDS = 6.0
"""With less time left, a failed case is not repeated."""
_RUN_REPORT_SECONDS = 20.0
"""How long after rank 0's process another one may end; they end within one operation of each other."""
_ABORTED_REPORT_SECONDS = 5.0
"""The same for a process that was told to end and only has to report."""
_IMPORT_WORDS_SECONDS = 5.0
"""If this process cannot import torch: the time for the others to report whether they can."""
_ABORT_GRACE_SECONDS = 1.0
"""Between the first failure and the end for all: time for the others to report what they saw."""


async def collectives(run: Session, job: Job) -> None:
    """Run the collectives on all ranks of the job as it is known, and record the measurements."""
    run.record.begin("collectives", run.record.followers)
    plan = run.plan(job.backend)
    aborted = asyncio.Event()
    ended: list[str] = []
    loop = asyncio.get_running_loop()

    def abort() -> None:
        if run.server is not None:
            run.server.say_to_all(Abort(), run.record.followers)
        aborted.set()

    def trouble(text: str) -> None:
        if not ended:
            ended.append(text)
            loop.call_later(_ABORT_GRACE_SECONDS, abort)

    local = run.local
    if local is None:
        raise RuntimeError("rank 0's process started no ranks")
    shown = _show(run, local, plan, job.world_size or 1)
    pace = Pace(shown.step)
    local.on_step, local.on_first_burst = pace.step, shown.burst
    if run.server is not None:
        run.server.on_trouble = trouble
    error = await local.wait_imported(run.remaining(REPORT_RESERVE_SECONDS), aborted)
    if error:
        await _hear_who_could_begin(run, plan, local.report(error=error), error)
        return
    with ras.addresses(plan.backend, run.record.ranks_of(run.uid)) as ports:
        question = ras.RasQuestion(run, local, ports)
        watching = [asyncio.create_task(_watch(run, job, plan, question, pace, trouble))]
        if plan.backend == "nccl":
            watching.append(asyncio.create_task(question.before_the_end(pace, REPORT_RESERVE_SECONDS)))
        try:
            reports = await _run_ranks(run, local, plan, aborted, trouble, pace, ports)
        finally:
            for task in watching:
                task.cancel()
    if run.server is not None:
        run.server.on_trouble = lambda _reason: None
    if not ended and any(r.outcome != "done" for report in reports.values() for r in report.runs.values()):
        ended.append("time limit reached")
    _keep(run, plan, reports, ended[0] if ended else "", question.answer)
    run.record.looked |= {"collectives", "training"}


def _show(run: Session, local: LocalRanks, plan: Plan, ranks: int) -> waiting.FigureCount:
    """Show the collectives; return what is to be told of their figures."""
    of = in_sweep(plan) + len([*measured(plan.mesh)])
    progress = waiting.FigureCount(of, time.monotonic, partial(run.progress.draw, now=True))
    followers = [run.server.followers[uid] for uid in run.record.followers] if run.server is not None else []
    run.progress.begin(
        f"collectives: {count(ranks, 'rank')} with {plan.backend}, {count(progress.of, 'figure')}, "
        f"{duration(run.remaining())} at most",
        partial(waiting.measuring, local, followers, time.monotonic(), progress),
    )
    return progress


async def _hear_who_could_begin(run: Session, plan: Plan, own: RunReport, error: str) -> None:
    """Record that this process's ranks could not start, and which other ranks could not."""
    reports = {run.uid: own}
    if run.server is not None:
        followers = run.record.followers
        seconds = min(_IMPORT_WORDS_SECONDS, run.remaining(REPORT_RESERVE_SECONDS))
        run.server.on_trouble = lambda _reason: None
        run.server.say_to_all(Start(plan, seconds, run.record.world_size, None), followers)
        reports |= await run.server.hear_all(RunReport, max(1.0, seconds + 1), followers)
    _keep(run, plan, reports, error)
    run.record.looked |= {"collectives", "training"}


async def _watch(
    run: Session, job: Job, plan: Plan, question: ras.RasQuestion, pace: Pace, trouble: Callable[[str], None]
) -> None:
    """Call `trouble` when the collectives hang, if time is needed afterwards to find the cause."""
    from distcheck.run import repeat

    searches = run.asked.command == "gate" and len(job.nodes) >= FEWEST_NODES
    if not searches and not repeat.settings(job, plan.backend, job.node_names.values()):
        return
    with contextlib.suppress(asyncio.TimeoutError):  # an import of torch that takes long is no hang
        await asyncio.wait_for(_all_ready(run), run.remaining(REPORT_RESERVE_SECONDS) / 2)
    left = run.remaining(REPORT_RESERVE_SECONDS)
    patience = before_a_search(max(left, 2 * ISOLATION_SECONDS)) if searches else before_repeats(plan, left)
    await question.at_a_hang(pace, plan, patience, trouble)


async def _all_ready(run: Session) -> None:
    """Wait until every follower has imported torch, or has left."""
    if run.server is not None:
        for uid in run.record.followers:
            await run.server.followers[uid].ready.wait()


def _keep(
    run: Session,
    plan: Plan,
    reports: Mapping[str, RunReport],
    ended: str,
    said: Ras | Missing | None = None,
) -> None:
    """Record what the ranks measured and how they ended."""
    for uid, report in reports.items():
        run.record.take_runs(report.runs, uid)
        run.record.take_loads(report.gpus, uid)
        run.record.take_counters(report.counters, uid)
    software = next((r.software for r in reports.values() if r.software), None)
    first = run.local.first_figure if run.local else None
    run.record.collectives = Collectives(
        backend=plan.backend,
        torch=software.torch if software else "",
        nccl=software.nccl if software else "",
        measurements=_joined(run, reports),
        first_figure_seconds=round(first - run.request.start, 3) if first else None,
        ended=ended,
        mesh=plan.mesh,
        groups=figures(plan.mesh, _group_timings(run, reports)),
        ras=said if any(r.outcome == "stalled" for report in reports.values() for r in report.runs.values()) else None,
    )


def keep_measured(run: Session, reason: str) -> None:
    """Record what this process measured before the run was cut short.

    The other processes' figures are lost.
    """
    if run.local is None or run.record.process is None or run.record.process.stage != "collectives":
        return
    _keep(run, run.plan(run.record.job().backend), {run.uid: run.local.report()}, reason)


async def _run_ranks(
    run: Session,
    local: LocalRanks,
    plan: Plan,
    aborted: asyncio.Event,
    trouble: Callable[[str], None],
    pace: Pace,
    ports: Mapping[int, int],
) -> dict[str, RunReport]:
    """Open the store on a rank of ours, start all ranks, and return the reports.

    Silent followers are left out.
    """
    seconds, world_size = run.remaining(REPORT_RESERVE_SECONDS), run.record.world_size
    template = Task(plan=plan, rank=0, world_size=world_size, local_rank=0, store=None)
    gpus = run.cuda_ordinals(plan.backend)
    tasks = ras.addressed(tasks_for(local.placements, template, store=None, gpus=gpus), ports)
    port = await local.open_store(tasks, seconds, aborted)
    if port is None:
        await local.look_closer()
        return {run.uid: local.report()}
    others = ras.addressed(tasks_for(local.placements, template, store=("127.0.0.1", port), gpus=gpus), ports)
    followers = run.record.followers
    if run.server is not None:
        run.server.say_to_all(Start(plan, seconds, world_size, ("", port)), followers)
    async with run.watching_gpus(plan.backend) as watch:
        await local.measure(
            others,
            seconds=run.remaining(REPORT_RESERVE_SECONDS),
            aborted=aborted,
            on_trouble=trouble,
        )
    _, counters = await asyncio.gather(local.look_closer(), run.adapter_counters())
    reports = {run.uid: msgspec.structs.replace(local.report(), gpus=watch.answer, counters=counters)}
    if run.server is not None:
        if run.remaining(REPORT_RESERVE_SECONDS) == 0:
            run.server.say_to_all(Abort(), followers)
        most = _ABORTED_REPORT_SECONDS if pace.stands_still else _RUN_REPORT_SECONDS
        patience = min(most, max(1.0, run.remaining(REPORT_RESERVE_SECONDS - 1)))
        done = {run.uid: time.monotonic()}
        reports |= await run.server.hear_all(RunReport, patience, followers)
        done |= {uid: run.server.followers[uid].heard_at for uid in followers if uid in reports}
        run.record.note_done("collectives", done, [uid for uid in followers if uid not in reports])
        _note_unheard(run, run.server, [uid for uid in followers if uid not in reports], patience)
    return reports


def _note_unheard(run: Session, server: Server, uids: Sequence[str], seconds: float) -> None:
    """Record a run for the ranks whose process did not report how they ended."""
    gone = RankRun(
        pid=None, step="an unknown step", outcome="died", detail="was lost when the connection to its node closed"
    )
    silent = RankRun(pid=None, step="an unknown step", outcome="stalled", silent_seconds=seconds)
    for uid in uids:
        ended = gone if server.followers[uid].gone else silent
        run.record.take_runs(dict.fromkeys(run.record.ranks_of(uid), ended), uid)
    run.record.note_silent(server, uids, "no report in time of how its ranks ended")


def _group_timings(run: Session, reports: Mapping[str, RunReport]) -> Iterator[tuple[int, GroupTiming]]:
    """Yield the ranks' timings in the groups of the mesh, each from the process that reports for the rank."""
    for uid, report in reports.items():
        own = run.record.ranks_of(uid) if report.groups else ()
        yield from (timing for timing in report.groups if timing[0] in own)


def _joined(run: Session, reports: Mapping[str, RunReport]) -> tuple[Measurement, ...]:
    """Join the ranks' timings; leave out sizes that some rank did not finish.

    A process's timings for another process's rank do not count.
    """
    world_size = run.record.world_size
    by_size: dict[tuple[str, str, int], dict[int, Timing]] = {}
    for uid, report in reports.items():
        own = run.record.ranks_of(uid)
        for rank, timing in report.timings:
            if rank in own:
                by_size.setdefault((timing.op, timing.dtype, timing.bytes), {})[rank] = timing
    complete = ([of[rank] for rank in range(world_size)] for of in by_size.values() if len(of) == world_size)
    return tuple(map(_of_size, complete))


def _of_size(timings: Sequence[Timing]) -> Measurement:
    """Join all ranks' timings of one size, in rank order; all ranks ran the same bursts."""
    first = timings[0]
    bursts = [fmean(of_ranks) for of_ranks in zip(*(timing.bursts for timing in timings), strict=False)]
    return Measurement(
        op=first.op,
        bytes=first.bytes,
        dtype=first.dtype,
        iterations=first.iterations,
        seconds_by_rank=tuple(median(timing.bursts) for timing in timings),
        bursts=len(bursts),
        uncertainty=uncertainty(bursts),
        at_least=at_least(bursts),
        ended=first.ended,
    )
