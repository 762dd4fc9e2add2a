"""Drives a run from the start to the verdict and closes everything."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from types import FrameType
from typing import Any

import msgspec

from distcheck.facts.job import Job
from distcheck.facts.placement import NOBODY_TO_MEET
from distcheck.facts.rank import Role
from distcheck.probe import open_files
from distcheck.run import collect, follower, measure
from distcheck.run.agent_end import ending_with_agent
from distcheck.run.context import Session
from distcheck.run.interrupts import INTERRUPT_SECONDS, caught
from distcheck.run.join import arrive
from distcheck.run.progress import StageView
from distcheck.run.request import NEVER_MET, NOBODY_ELSE, WITH_OTHERS, Publish, Request, RunResult
from distcheck.run.watchdog import Watchdog

_CLOSED = "Invalid file descriptor: -1"
"""What selectors say about a closed socket."""
_CLOSE_SECONDS = 2.5
_RULES_SECONDS = 10.0
"""How long before the deadline a process that may have to report alone begins to import the rules."""


def run_to_end(request: Request, publish: Publish, dog: Watchdog) -> RunResult:
    """Run to the end, whatever happens; the result holds everything collected until then."""
    open_files.left()  # asyncio's loop must not be made halfway
    run = Session(request, publish, dog)
    outcome = asyncio.run(_bounded(run))
    return outcome._replace(exit_code=128 + run.interrupted) if run.interrupted else outcome


async def _bounded(run: Session) -> RunResult:
    main = asyncio.ensure_future(_run(run))
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_without_strangers)

    def interrupt(signum: signal.Signals) -> None:
        run.interrupted = run.interrupted or signum
        run.dog.hasten(INTERRUPT_SECONDS, 128 + run.interrupted)
        loop.call_soon_threadsafe(main.cancel)

    def nobody_else(_signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the run is over
            loop.call_soon_threadsafe(_note_complete, run)

    if run.request.on_collected is not None:  # started from outside: the starter knows which processes cannot join
        signal.signal(NOBODY_ELSE, nobody_else)

    def agent_ended() -> None:
        run.orphaned = True
        interrupt(signal.SIGTERM)  # as the agent itself does when it ends its ranks

    with caught(interrupt), ending_with_agent(run.request.environ, agent_ended):
        drawing = asyncio.ensure_future(run.progress.keep_drawing()) if run.progress.live else None
        preparing = loop.call_later(max(run.remaining() / 2, run.remaining() - _RULES_SECONDS), _prepare_to_judge, run)
        try:
            await asyncio.wait({main}, timeout=run.remaining() + 0.5)
            if main.done() and not main.cancelled():
                return main.result()
            cause = run.interrupted.name if run.interrupted else f"--timeout of {run.asked.timeout_seconds:g} s"
            cause = "the end of its torchrun agent" if run.orphaned else cause
            main.cancel()
            await asyncio.wait({main}, timeout=0.5)
            if main.done() and not main.cancelled():
                return main.result()
            return await _cut_short(run, f"the run was ended by {cause}")
        finally:
            preparing.cancel()
            if drawing is not None:
                drawing.cancel()
            await _close(run)


def _prepare_to_judge(run: Session) -> None:
    """Import the rules beside the run.

    Without a leader this process judges when its time is over; a busy machine or a slow file server may take longer to
    import the rules than the watchdog then waits.
    """

    def load(job: Job) -> None:
        with contextlib.suppress(Exception):  # whoever judges meets it again
            from distcheck.rules import rules_for

            rules_for(job)

    with contextlib.suppress(RuntimeError):  # without a free thread they are imported when they judge
        threading.Thread(target=load, args=(run.record.job(),), name="distcheck-rules", daemon=True).start()


def _note_complete(run: Session) -> None:
    run.complete = True
    if run.server is not None:
        run.server.close_roll()


async def _run(run: Session) -> RunResult:
    run.progress.begin("", lambda: StageView("node", "looking at this node"))
    await collect.start_ranks(run)
    await collect.collect(run)
    if not run.request.meets:
        run.record.met = run.request.speaks_for_all
        if run.record.met:
            return await _lead(run)
        run.record.skip(WITH_OTHERS, NOBODY_TO_MEET)
        return await _end_alone(run)
    role = await arrive(run)
    if role is Role.LEADER:
        return await _lead(run)
    if role is Role.FOLLOWER:
        try:
            return await follower.follow(run)
        except follower.LeaderLostError:
            return await _end_alone(run)
    run.record.skip(WITH_OTHERS, NEVER_MET)
    return await _end_alone(run)


async def _lead(run: Session) -> RunResult:
    from distcheck.run.leader import lead  # imports the rules, which followers do not load

    return await lead(run)


async def _cut_short(run: Session, reason: str) -> RunResult:
    """End now with the facts so far; earlier measurements stay valid."""
    if run.outcome is not None:  # the report is out; followers may still wait for its verdict
        await _dismiss(run, run.outcome)
        return run.outcome
    await run.keep_own_runs()
    if run.record.met and run.connection is None:
        measure.keep_measured(run, reason)
        run.record.skip(set(run.asked.looks) - run.record.looked, reason)
    else:
        if run.connection is not None and not run.interrupted:
            seconds = f"{run.asked.timeout_seconds:g}"
            run.record.note(leader_lost=f"no verdict within the --timeout of {seconds} s")
        run.record.skip(run.asked.looks, reason)
    return await _end_alone(run)


async def _end_alone(run: Session) -> RunResult:
    """Publish what this process knows and dismiss its followers, if any."""
    from distcheck.rules.diagnose import judge

    if run.connection is not None:
        run.record.met = False
    elif run.server is not None:
        run.record.take_late_reports(f.report for f in run.server.followers.values())
    job = msgspec.structs.replace(run.record.job(), interrupted=run.interrupted or 0)
    diagnosis = judge(job)
    outcome = await run.deliver(job, diagnosis, diagnosis.verdict.exit_code)
    await _dismiss(run, outcome)
    return outcome


async def _dismiss(run: Session, outcome: RunResult) -> None:
    if run.server is not None:
        from distcheck.run import leader

        await leader.dismiss(run, outcome)


async def _close(run: Session) -> None:
    """Close every endpoint and end every process of ours, each within a short timeout."""
    run.progress.close()
    closing = (
        run.local.close() if run.local else None,
        run.storage.close(_CLOSE_SECONDS / 2) if run.storage else None,
        run.server.close() if run.server else None,
        run.signpost.close() if run.signpost else None,
        run.peer_listener.close() if run.peer_listener else None,
    )
    tasks = [asyncio.ensure_future(c) for c in closing if c is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
    if run.connection is not None:
        run.connection.writer.close()
    open_files.restore_limit(run.file_limit)


def _without_strangers(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore socket errors that others cause, such as too many connections; report the rest.

    Where too many files are open, asyncio serves again a second later, even if the listener is closed by then.
    """
    error = context.get("exception")
    if not (isinstance(error, OSError) or str(error) == _CLOSED):
        loop.default_exception_handler(context)
