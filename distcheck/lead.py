"""What rank 0's process does: it gathers everybody's facts, decides stage by stage, and speaks the one verdict."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from distcheck.collectives.plan import Plan, Task, Timing
from distcheck.facts import Collectives, Job, Measurement, Missing, TorchBuild
from distcheck.launch.local import LocalRanks, tasks_for
from distcheck.preflight import Outcome, judge
from distcheck.rollcall import protocol
from distcheck.rollcall.peers import PeerListener, try_peers
from distcheck.rollcall.protocol import (
    Abort,
    Bye,
    PeerDoor,
    PeerReport,
    Roster,
    RunReport,
    Seen,
    Start,
    VerdictRound,
)
from distcheck.rollcall.server import Server

if TYPE_CHECKING:
    from distcheck.session import Session

_AWAITED_AFTER_SECONDS = 10.0
_LATECOMER_SECONDS = 0.5
_SEEN_SECONDS = 3.0
_ABORT_GRACE_SECONDS = 1.0
"""Between the first sign of trouble and the end for all: time for others to say what they saw."""
_REPORT_RESERVE_SECONDS = 3.0


async def lead(run: Session) -> Outcome:
    """Lead the run to its end."""
    server = run.server
    if server is not None:
        await _gather(run, server)
    run.record.met = True
    run.record.looked |= set(run.asked.looks) - {"peers", "collectives"}
    if "peers" in run.asked.looks:
        if server is not None and server.guests:
            await _peer_round(run, server)
        run.record.looked.add("peers")
    if "collectives" in run.asked.looks:
        stop = _reason_to_stop(run.record.job(look for look in run.asked.looks if look in run.record.looked))
        if stop:
            run.record.skip(("collectives",), stop)
        else:
            await _collectives(run)
    return await _conclude(run)


async def _gather(run: Session, server: Server) -> None:
    """Wait for the ranks that are not here, for --join-timeout at most; say after 10 s who is awaited."""
    loop = asyncio.get_running_loop()
    patience = run.join_seconds()
    until = loop.time() + patience

    async def remind() -> None:
        await asyncio.sleep(_AWAITED_AFTER_SECONDS)
        left = max(0.0, until - loop.time())
        run.say(f"waiting for ranks {', '.join(map(str, server.missing[:20]))}; the roll call closes in {left:.0f} s")

    reminder = asyncio.ensure_future(remind())
    try:
        if not await server.wait_for_all(patience / 2):
            server.admit_strangers = True
            await server.wait_for_all(max(0.0, until - loop.time()))
        if run.request.placements[0].launcher == "by hand" and server.guests:
            # People start processes one by one: a rank that is there twice should be seen, not left at a shut door.
            await asyncio.sleep(min(_LATECOMER_SECONDS, run.remaining(_REPORT_RESERVE_SECONDS)))
    finally:
        reminder.cancel()
    run.record.take_reports(g.report for g in server.guests.values())
    for guest in server.guests.values():
        run.deadline = min(run.deadline, guest.leaves_at)


async def _peer_round(run: Session, server: Server) -> None:
    """Let everybody try everybody's door."""
    run.record.note(stage="peers")
    run.record.set_stage_of_guests("peers", server.guests)
    listener = run.peer_listener = PeerListener()
    first = next(iter(server.guests.values()))
    await listener.open(protocol.plain_address(first.writer.get_extra_info("sockname")[0]))
    doors = [PeerDoor(run.uid, listener.address, listener.port)]
    doors += [PeerDoor(g.uid, *g.report.peer_door) for g in server.guests.values() if g.report.peer_door]
    roster = Roster(secrets.token_hex(8), tuple(doors), run.request.connect_seconds)
    listener.expect(roster.nonce)
    server.say_to_all(roster)
    own = await try_peers(run.uid, roster)
    heard = await server.hear_all(
        PeerReport, min(2 * run.request.connect_seconds + 2, run.remaining(_REPORT_RESERVE_SECONDS))
    )
    run.record.peers = own + tuple(t for report in heard.values() for t in report.trials)


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
    return ""


def choose_backend(job: Job) -> tuple[str, str]:
    """Return the backend and why: what was asked for, else NCCL where there are GPUs and Gloo where there are none."""
    if job.asked.backend != "auto":
        return job.asked.backend, "--backend"
    amd = any(n.accelerator == "amd" and isinstance(n.torch, TorchBuild) and n.torch.hip for n in job.nodes)
    if amd or any(n.accelerator == "nvidia" for n in job.nodes):
        return "nccl", "there are GPUs"
    return "gloo", "there are no GPUs"


async def _collectives(run: Session) -> None:
    """Run the collectives on all ranks and record what they measured."""
    run.record.note(stage="collectives")
    if run.server is not None:
        run.record.set_stage_of_guests("collectives", run.server.guests)
    job = run.record.job()
    backend, reason = choose_backend(job)
    plan = run.plan(backend)
    aborted = asyncio.Event()
    ended: list[str] = []
    loop = asyncio.get_running_loop()

    def abort() -> None:
        if run.server is not None:
            run.server.say_to_all(Abort(ended[0] if ended else ""))
        aborted.set()

    def trouble(text: str) -> None:
        if not ended:
            ended.append(text)
            loop.call_later(_ABORT_GRACE_SECONDS, abort)

    local = run.local
    if local is None:
        raise RuntimeError("rank 0's process has no rank")
    if run.server is not None:
        run.server.on_trouble = trouble
    error = await local.wait_imported(run.remaining(_REPORT_RESERVE_SECONDS), aborted)
    if error:
        run.record.collectives = Missing(reason=error)
        return
    reports = await _measure(run, local, plan, aborted, trouble, job.world_size or 1)
    if run.server is not None:
        run.server.on_trouble = lambda _reason: None
    if not ended and any(r.outcome != "done" for report in reports.values() for r in report.runs.values()):
        ended.append("the time for it was over")
    _keep(run, plan, reason, reports, ended[0] if ended else "")
    run.record.looked.add("collectives")


def _keep(run: Session, plan: Plan, reason: str, reports: Mapping[str, RunReport], ended: str) -> None:
    """Record what the ranks measured and how they ended."""
    for uid, report in reports.items():
        run.record.take_runs(report.runs, uid)
    software = next((r.software for r in reports.values() if r.software), None)
    first = run.local.first_figure if run.local else None
    run.record.collectives = Collectives(
        backend=plan.backend,
        backend_reason=reason,
        torch=software.torch if software else "",
        nccl=software.nccl if software else "",
        measurements=_measurements(plan, reports, run.record.job().world_size or 1),
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
    world_size: int,
) -> dict[str, RunReport]:
    """Open the store on rank 0, start everybody, and gather what they say; silent guests are left out."""
    seconds = run.remaining(_REPORT_RESERVE_SECONDS)
    template = Task(plan=plan, rank=0, world_size=world_size, local_rank=0, store=None)
    gpus = run.cuda_ordinals(plan.backend)
    tasks = tasks_for(local.placements, template, store=None, gpus=gpus)
    port = await local.open_store(tasks, seconds)
    if port is None:
        return {run.uid: local.report()}
    others = tasks_for(local.placements, template, store=("127.0.0.1", port), gpus=gpus)
    if run.server is not None:
        run.server.say_to_all(Start(plan, seconds, world_size, ("", port)))
    await local.measure(
        others,
        seconds=run.remaining(_REPORT_RESERVE_SECONDS),
        aborted=aborted,
        on_trouble=trouble,
    )
    reports = {run.uid: local.report()}
    if run.server is not None:
        if run.remaining(_REPORT_RESERVE_SECONDS) == 0:
            run.server.say_to_all(Abort("the time is over"))
        reports |= await run.server.hear_all(RunReport, max(1.0, run.remaining(_REPORT_RESERVE_SECONDS - 1)))
    return reports


def _measurements(plan: Plan, reports: Mapping[str, RunReport], world_size: int) -> tuple[Measurement, ...]:
    """Join the ranks' timings; a size that not all ranks finished is left out."""
    by_size: dict[tuple[str, int], dict[int, Timing]] = {}
    for report in reports.values():
        for rank, timing in report.timings:
            by_size.setdefault((timing.op, timing.bytes), {})[rank] = timing
    return tuple(
        Measurement(
            op=op,
            bytes=size,
            dtype=plan.dtype,
            iterations=timings[0].iterations,
            seconds_by_rank=tuple(timings[rank].seconds for rank in range(world_size)),
        )
        for (op, size), timings in by_size.items()
        if len(timings) == world_size
    )


async def _conclude(run: Session) -> Outcome:
    """Judge, free the ports, publish, and let everybody leave with the same code."""
    if run.server is not None:
        await run.server.close_doors()
        # Whoever came after the roll was complete is in the report too: it may be a rank that is there twice.
        run.record.take_late_reports(g.report for g in run.server.guests.values())
        run.record.set_stage_of_guests("done", (u for u, g in run.server.guests.items() if not g.gone))
    run.record.note(stage="done")
    job = run.record.job()
    diagnosis = judge(job)
    code = run.publish(job, diagnosis, diagnosis.verdict.exit_code)
    await dismiss(run, code)
    return Outcome(job, diagnosis, code, reported=True)


async def dismiss(run: Session, code: int) -> None:
    """Hold the verdict round; nobody is waited for longer than three seconds."""
    server = run.server
    if server is None:
        return
    await server.close_doors()
    server.say_to_all(VerdictRound(code, ""))
    await server.hear_all(Seen, _SEEN_SECONDS)
    server.say_to_all(Bye())
    for guest in server.guests.values():
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(guest.writer.drain(), 1.0)
