"""What rank 0's process does: it gathers everybody's facts, decides stage by stage, and speaks the one verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec

from distcheck.collectives.plan import Plan, Task, Timing
from distcheck.collectives.spread import at_least, uncertainty
from distcheck.facts import Collectives, Job, Measurement, RankRun
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.launch.local.tasks import tasks_for
from distcheck.rollcall.protocol import Abort, Bye, Here, LastCall, RunReport, Start
from distcheck.rollcall.server import Server
from distcheck.run import peer_round
from distcheck.run.entry import Outcome, judge
from distcheck.run.stall import Pace

if TYPE_CHECKING:
    from distcheck.run.context import Session

_AWAITED_AFTER_SECONDS = 9.0
_LATECOMER_SECONDS = 0.5
_LAST_CALL_SECONDS = 10.0
"""On a busy host a process may need several to get a CPU; who is dead has closed its connection."""
_GOODBYE_SECONDS = 2.0
_RUN_REPORT_SECONDS = 20.0
"""How much later than rank 0's process another one may be over; they end within one operation of each other."""
_ABORTED_REPORT_SECONDS = 5.0
"""The same for one that was told to end, and only has to say so."""
_IMPORT_WORDS_SECONDS = 5.0
"""How long the others may take to say whether they could import torch, where this process could not."""
_ABORT_GRACE_SECONDS = 1.0
"""Between the first sign of trouble and the end for all: time for others to say what they saw."""
_REPORT_RESERVE_SECONDS = 3.0
_FEWEST_NODES = 2
_HINTS = frozenset({"net-nic-down-or-slow"})
"""What is a warning only, but worth a search: a network that is slow for a moment is not slow in every round."""
_ISOLATION_SECONDS = 10.0
"""With less than that left, a gate does not begin to look for who is bad."""


async def lead(run: Session) -> Outcome:
    """Lead the run to its end."""
    server = run.server
    if server is not None:
        await _gather(run, server)
    run.record.met = True
    run.record.looked |= set(run.asked.looks) - {"peers", "collectives", "isolation"}
    if "peers" in run.asked.looks:
        if server is not None and server.guests:
            await peer_round.hold(run, server)
        run.record.looked.add("peers")
    if run.asked.measures:
        if server is not None:
            _take_note_of_guests(run, server)
        stop = _reason_to_stop(run.record.job(look for look in run.asked.looks if look in run.record.looked))
        if stop:
            run.record.skip(("collectives", "isolation"), stop)
        else:
            if "collectives" in run.asked.looks:
                await _collectives(run)
            if "isolation" in run.asked.looks or (run.asked.command == "gate" and _is_bad(run)):
                await _isolate(run)
    return await _conclude(run)


async def _gather(run: Session, server: Server) -> None:
    """Wait for the ranks that are not here, for --join-timeout at most; say before 10 s are over who is awaited."""
    loop = asyncio.get_running_loop()
    patience = run.join_seconds()
    until = loop.time() + patience

    async def remind() -> None:
        await asyncio.sleep(_AWAITED_AFTER_SECONDS)
        left = max(0.0, until - loop.time())
        ranks = ", ".join(map(str, server.missing(20)))
        run.say(f"waiting for ranks {ranks}; the roll call closes in {left:.0f} s")

    reminder = asyncio.ensure_future(remind())
    try:
        if not await server.wait_for_all(patience / 2, _REPORT_RESERVE_SECONDS):
            server.admit_strangers = True
            await server.wait_for_all(max(0.0, until - loop.time()), _REPORT_RESERVE_SECONDS)
        if run.request.placements[0].launcher == "by hand" and server.guests:
            # People start processes one by one: a rank that is there twice should be seen, not left at a shut door.
            await asyncio.sleep(min(_LATECOMER_SECONDS, run.remaining(_REPORT_RESERVE_SECONDS)))
    finally:
        reminder.cancel()
    run.record.take_reports(g.report for g in server.guests.values())
    run.record.note_arrivals({uid: guest.arrived_at for uid, guest in server.guests.items()}, server.opened_at)
    binds = [g.report.process.bind for g in server.guests.values() if 0 in g.ranks]
    if any(bind is not None and bind.outcome == "bound" for bind in binds):
        run.record.forget_refusals()  # we stood in for rank 0 until it came
    for guest in server.guests.values():
        run.deadline = min(run.deadline, guest.leaves_at)


def _take_note_of_guests(run: Session, server: Server) -> None:
    """Take the facts of those who came late (a rank may be there twice) and note who is gone already."""
    run.record.take_late_reports(g.report for g in server.guests.values())
    for uid, guest in server.guests.items():
        if guest.gone:
            run.record.note_lost(uid, "its connection was closed")


def _reason_to_stop(job: Job) -> str:
    """Return why the collectives would mean nothing on this job, '' when they may run."""
    diagnosis = judge(job)
    errors = tuple(dict.fromkeys(f.rule for f in diagnosis.findings if f.severity == "error"))
    if errors:
        return f"not run because of {', '.join(errors)}"
    unseen = tuple(dict.fromkeys(n.rule for n in diagnosis.not_checked if n.required))
    if unseen:
        return f"not run because {', '.join(unseen)} could not be checked"
    # The rules may have been left out by --select or --ignore; the ranks would wait for each other all the same.
    if job.missing_ranks or len(job.ranks) != job.world_size:
        return "not run because the ranks that are here are not the ranks of the world"
    if any(p.lost for p in job.processes):
        return "not run because a process of the job was lost"
    return ""


def choose_backend(job: Job) -> tuple[str, str]:
    """Return the backend and why: what was asked for, else NCCL where there are GPUs and Gloo where there are none."""
    if job.asked.backend != "auto":
        return job.asked.backend, "--backend"
    return job.made_for, "there are GPUs" if job.made_for == "nccl" else "there are no GPUs"


async def _collectives(run: Session) -> None:
    """Run the collectives on all ranks and record what they measured."""
    run.record.note(stage="collectives")
    if run.server is not None:
        run.record.set_stage_of_guests("collectives", run.record.guests)
    job = run.record.job()
    backend, reason = choose_backend(job)
    plan = run.plan(backend)
    aborted = asyncio.Event()
    ended: list[str] = []
    loop = asyncio.get_running_loop()

    def abort() -> None:
        if run.server is not None:
            run.server.say_to_all(Abort(ended[0] if ended else ""), run.record.guests)
        aborted.set()

    def trouble(text: str) -> None:
        if not ended:
            ended.append(text)
            loop.call_later(_ABORT_GRACE_SECONDS, abort)

    local = run.local
    if local is None:
        raise RuntimeError("rank 0's process has no rank")
    run.watcher.begin(len(plan.operations) * len(plan.dtypes) * len(plan.sizes_bytes))
    pace = Pace(run.watcher.step)
    local.on_step = pace.step
    if run.server is not None:
        run.server.on_trouble = trouble
    error = await local.wait_imported(run.remaining(_REPORT_RESERVE_SECONDS), aborted)
    if error:
        await _hear_who_could_begin(run, plan, reason, local.report(error=error), error)
        return
    watching = None
    if _may_search(run):
        half = run.remaining(_REPORT_RESERVE_SECONDS) / 2
        watching = asyncio.create_task(pace.watch(plan, trouble, max(half, _ISOLATION_SECONDS)))
    try:
        reports = await _measure(run, local, plan, aborted, trouble, pace)
    finally:
        if watching is not None:
            watching.cancel()
    if run.server is not None:
        run.server.on_trouble = lambda _reason: None
    if not ended and any(r.outcome != "done" for report in reports.values() for r in report.runs.values()):
        ended.append("the time for it was over")
    _keep(run, plan, reason, reports, ended[0] if ended else "")
    run.record.looked.add("collectives")


async def _hear_who_could_begin(run: Session, plan: Plan, reason: str, own: RunReport, error: str) -> None:
    """Record that this process's ranks could not begin, and which of the others' could not either."""
    reports = {run.uid: own}
    if run.server is not None:
        guests = run.record.guests
        seconds = min(_IMPORT_WORDS_SECONDS, run.remaining(_REPORT_RESERVE_SECONDS))
        run.server.on_trouble = lambda _reason: None
        run.server.say_to_all(Start(plan, seconds, run.record.job().world_size or 1, None), guests)
        reports |= await run.server.hear_all(RunReport, max(1.0, seconds + 1), guests)
    _keep(run, plan, reason, reports, error)
    run.record.looked.add("collectives")


def _may_search(run: Session) -> bool:
    """Whether a search for who is bad may follow."""
    return run.asked.command == "gate" and len(run.record.job().nodes) >= _FEWEST_NODES


def _is_bad(run: Session) -> bool:
    """Whether the collectives failed, hung, were wrong or slow, and there are time and nodes to find out by whom."""
    job = run.record.job()
    if not isinstance(job.collectives, Collectives) or len(job.nodes) < _FEWEST_NODES:
        return False
    if run.remaining(_REPORT_RESERVE_SECONDS) < _ISOLATION_SECONDS:
        return False
    found = judge(job).findings
    errors = [f for f in found if f.severity == "error"]
    if any(f.scope in {"job", "rank", "system"} for f in errors):
        return False  # it is known what is wrong, and that no node is
    return any(f.rule in _HINTS for f in found) or any(f.rule.startswith(("collective-", "perf-below")) for f in errors)


async def _isolate(run: Session) -> None:
    """Find out which node, link or rank is bad, and record it."""
    from distcheck.run import search

    job = run.record.job()
    backend, _ = choose_backend(job)
    run.record.note(stage="isolation")
    if run.server is not None:
        run.record.set_stage_of_guests("isolation", run.record.guests)
    if "isolation" not in run.asked.looks:
        run.record.asked = msgspec.structs.replace(run.record.asked, looks=(*run.asked.looks, "isolation"))
    run.record.isolation = await search.search(run, run.server, backend)
    run.record.looked.add("isolation")


def _keep(run: Session, plan: Plan, reason: str, reports: Mapping[str, RunReport], ended: str) -> None:
    """Record what the ranks measured and how they ended."""
    for uid, report in reports.items():
        run.record.take_runs(report.runs, uid)
        run.record.take_loads(report.gpus, uid)
    software = next((r.software for r in reports.values() if r.software), None)
    first = run.local.first_figure if run.local else None
    run.record.collectives = Collectives(
        backend=plan.backend,
        backend_reason=reason,
        torch=software.torch if software else "",
        nccl=software.nccl if software else "",
        measurements=_measurements(run, reports),
        first_figure_seconds=round(first - run.request.start, 3) if first else None,
        ended=ended,
    )


def keep_measured(run: Session, reason: str) -> None:
    """Record what was measured until the run was cut short; that of other processes is lost with them."""
    if run.local is None or run.record.process is None or run.record.process.stage != "collectives":
        return
    backend, why = choose_backend(run.record.job())
    _keep(run, run.plan(backend), why, {run.uid: run.local.report()}, reason)


async def _measure(
    run: Session,
    local: LocalRanks,
    plan: Plan,
    aborted: asyncio.Event,
    trouble: Callable[[str], None],
    pace: Pace,
) -> dict[str, RunReport]:
    """Open the store on a rank of ours, start everybody, and gather what they say; silent guests are left out."""
    seconds, world_size = run.remaining(_REPORT_RESERVE_SECONDS), run.record.job().world_size or 1
    template = Task(plan=plan, rank=0, world_size=world_size, local_rank=0, store=None)
    gpus = run.cuda_ordinals(plan.backend)
    tasks = tasks_for(local.placements, template, store=None, gpus=gpus)
    port = await local.open_store(tasks, seconds, aborted)
    if port is None:
        await local.look_closer()
        return {run.uid: local.report()}
    others = tasks_for(local.placements, template, store=("127.0.0.1", port), gpus=gpus)
    guests = run.record.guests
    if run.server is not None:
        run.server.say_to_all(Start(plan, seconds, world_size, ("", port)), guests)
    async with run.watching_gpus(plan.backend) as watch:
        await local.measure(
            others,
            seconds=run.remaining(_REPORT_RESERVE_SECONDS),
            aborted=aborted,
            on_trouble=trouble,
        )
    await local.look_closer()
    reports = {run.uid: msgspec.structs.replace(local.report(), gpus=watch.answer)}
    if run.server is not None:
        if run.remaining(_REPORT_RESERVE_SECONDS) == 0:
            run.server.say_to_all(Abort("the time is over"), guests)
        most = _ABORTED_REPORT_SECONDS if pace.stands_still else _RUN_REPORT_SECONDS
        patience = min(most, max(1.0, run.remaining(_REPORT_RESERVE_SECONDS - 1)))
        reports |= await run.server.hear_all(RunReport, patience, guests)
        _note_unheard(run, run.server, [uid for uid in guests if uid not in reports], patience)
    return reports


def _note_unheard(run: Session, server: Server, uids: Sequence[str], seconds: float) -> None:
    """Note what is known of the ranks of which nobody said how they ended."""
    gone = RankRun(
        pid=None, step="an unknown step", outcome="died", detail="was lost when the connection to its node closed"
    )
    silent = RankRun(pid=None, step="an unknown step", outcome="stalled", silent_seconds=seconds)
    for uid in uids:
        ended = gone if server.guests[uid].gone else silent
        run.record.take_runs(dict.fromkeys(run.record.ranks_of(uid), ended), uid)
    run.record.note_silent(server, uids, "it did not say in time how its ranks ended")


def _measurements(run: Session, reports: Mapping[str, RunReport]) -> tuple[Measurement, ...]:
    """Join the ranks' timings; a size that not all ranks finished is left out, and what one says of another's rank."""
    world_size = run.record.job().world_size or 1
    by_size: dict[tuple[str, str, int], dict[int, Timing]] = {}
    for uid, report in reports.items():
        own = run.record.ranks_of(uid)
        for rank, timing in report.timings:
            if rank in own:
                by_size.setdefault((timing.op, timing.dtype, timing.bytes), {})[rank] = timing
    complete = ([of[rank] for rank in range(world_size)] for of in by_size.values() if len(of) == world_size)
    return tuple(map(_measurement, complete))


def _measurement(timings: Sequence[Timing]) -> Measurement:
    """Join what all ranks, in their order, measured of one size; they all made the same bursts."""
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


async def _conclude(run: Session) -> Outcome:
    """Free the ports, see who is still there, judge, publish, and let everybody leave with the same code."""
    server = run.server
    if server is not None:
        await server.close_doors()
        _take_note_of_guests(run, server)
        await _call_last(run, server)
        run.record.set_stage_of_guests("done", run.record.guests)
    run.record.note(stage="done")
    job = run.record.job()
    diagnosis = judge(job)
    outcome = run.deliver(job, diagnosis, diagnosis.verdict.exit_code)
    await dismiss(run, outcome.exit_code)
    return outcome


async def _call_last(run: Session, server: Server) -> None:
    """Ask who is still there: a verdict holds for those only who can take it."""
    asked = run.record.guests
    server.say_to_all(LastCall(), asked)
    patience = max(1.0, min(_LAST_CALL_SECONDS, run.remaining(0.5)))
    heard = await server.hear_all(Here, patience, asked)
    silent = f"it did not answer within {patience:.0f} s when the verdict was about to be given"
    run.record.note_silent(server, set(asked) - heard.keys(), silent)


async def dismiss(run: Session, code: int) -> None:
    """Tell everybody to leave with this code; nobody is waited for longer than a moment."""
    server = run.server
    if server is None:
        return
    await server.close_doors()
    server.say_to_all(Bye(code))
    await server.see_off(run.last_moment(_GOODBYE_SECONDS), run.record.guests)
