"""What a follower does: report, do what the leader sends, exit with the common verdict."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from distcheck.collectives.plan import Task
from distcheck.launch.local.tasks import tasks_for
from distcheck.rollcall.brief import brief
from distcheck.rollcall.handshake import Connection
from distcheck.rollcall.protocol import (
    Abort,
    AskNode,
    Bye,
    Halt,
    Here,
    LastCall,
    NodeReport,
    Ready,
    Roster,
    RunReport,
    Start,
    StartTrial,
    StoreAt,
    Trouble,
)
from distcheck.rollcall.wire import ProtocolError
from distcheck.run import peer_round, ras, storage, trials
from distcheck.run.join import put_up_signpost
from distcheck.run.progress import StageView, tell
from distcheck.run.request import NEVER_MET, WITH_OTHERS, RunResult
from distcheck.selection.placement import TABLES

if TYPE_CHECKING:
    from distcheck.run.context import Session


class LeaderLostError(Exception):
    """The leader was lost before the verdict; the record holds what this process knows."""


async def follow(run: Session) -> RunResult:
    """Follow the leader until it says goodbye.

    Raises:
        LeaderLostError: the leader was lost before the verdict; the record notes it.
    """
    connection = run.connection
    if connection is None:
        raise RuntimeError("a follower needs a connection to the leader")
    try:
        return await _follow(run, connection)
    except (EOFError, OSError, ProtocolError) as error:
        how = str(error) or "closed by the other side"
        storage.clean_up_after(run, connection.welcome)
        if connection.welcome.of_node:
            run.record.skip(WITH_OTHERS, NEVER_MET)
            raise LeaderLostError from error
        await run.keep_own_runs()
        run.record.note(leader_lost=f"connection to {connection.leader_address} lost: {how}")
        run.record.skip(run.asked.looks, f"connection to rank 0 lost: {how}")
        raise LeaderLostError from error


async def _follow(run: Session, connection: Connection) -> RunResult:
    doors = await peer_round.open_doors(run, connection.local_address) if "peers" in run.asked.looks else ()
    await storage.compare(run, connection.welcome)
    report = run.record.report(doors)
    connection.say(report if connection.welcome.of_node else brief(report))
    await put_up_signpost(run, connection)
    run.progress.begin("", lambda: StageView(run.record.process.stage if run.record.process else "", "rank 0 leads"))
    importing = asyncio.create_task(_say_when_ready(run, connection))
    measuring: asyncio.Task[None] | None = None
    aborted, halted = asyncio.Event(), asyncio.Event()
    trial: asyncio.Task[None] | None = None
    try:
        while True:
            match word := await connection.hear():
                case AskNode():
                    connection.say(NodeReport(report.node))
                case Roster():
                    run.record.begin("peers")
                    connection.say(await peer_round.take_part(run, word, run.remaining(), [connection.leader_address]))
                case Start() if measuring is None:
                    run.record.begin("collectives")
                    measuring = asyncio.create_task(_measure(run, connection, word, aborted))
                case Abort():
                    aborted.set()
                case StartTrial() if set(word.parts) == run.record.ranks_of(run.uid):
                    run.record.begin("isolation")
                    halted.set()
                    if trial is not None:
                        await trial
                    halted = asyncio.Event()
                    trial = asyncio.create_task(_try(run, connection, word, halted))
                case Halt():
                    halted.set()
                case LastCall():
                    connection.say(Here())
                case Bye():
                    connection.writer.close()  # the leader waits for it
                    await asyncio.sleep(0)  # lets the loop close it before this process ends
                    run.record.begin("done")
                    _show_end(run, word, connection.welcome.rank)
                    return RunResult(run.record.job(), word.exit_code, reported=False)
    finally:
        await _cancel(importing, measuring, trial)


def _show_end(run: Session, end: Bye, rank: int) -> None:
    """Print how the run ended and where the report is, if the user may not see the output of that process.

    By hand each process may have a terminal of its own, in Kubernetes each has a log of its own, and under a torchrun
    that no other launcher started each node has. srun and mpirun show the output of all processes together, thousands
    of times the same line.
    """
    place, node, environ = run.request.placements[0], run.record.node, run.request.environ
    apart = place.launcher in {"by hand", "kubernetes"}
    if place.launcher == "torchrun" and place.local_rank == 0 and node is not None and node.name != end.node:
        started = any(environ.get(table.marker) for table in TABLES if table.launcher != "torchrun")
        apart = end.exit_code != 0 and not started
    if apart and end.headline:
        run.progress.close()
        tell(f"{end.headline}; report: rank {rank}, node {end.node}, process {end.pid}")


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    for task in filter(None, tasks):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _say_when_ready(run: Session, connection: Connection) -> None:
    """Send Ready when torch is imported: no trial can run before."""
    if run.local is not None:
        await asyncio.shield(run.local.imported)
    connection.say(Ready())


async def _try(run: Session, connection: Connection, trial: StartTrial, halted: asyncio.Event) -> None:
    """Take part in a trial and send its report."""
    connection.say(
        await trials.take_part(
            run, trial, connection.leader_address, halted, lambda port: connection.say(StoreAt(trial.number, port))
        )
    )


async def _measure(run: Session, connection: Connection, start: Start, aborted: asyncio.Event) -> None:
    """Run the collectives on this process's ranks and send their report."""
    local = run.local
    if local is None:
        node = run.record.node.name if run.record.node else "?"
        connection.say(Trouble(f"{node} runs distcheck {run.asked.command}, which does not measure"))
        connection.say(RunReport({}, ()))
        return
    seconds = min(start.seconds, run.remaining(2.0))
    imported, loads, counters = await local.wait_imported(seconds, aborted), None, None
    if start.store is None:
        # A slow import that could still finish in time is no fault.
        late = imported and not local.imported.done() and start.seconds > 0
        connection.say(local.report(error="the run was ended while torch was being imported" if late else imported))
        return
    if imported:
        connection.say(Trouble(f"{run.record.node.name if run.record.node else '?'}: {imported}"))
    else:
        store = (start.store[0] or connection.leader_address, start.store[1])
        template = Task(plan=start.plan, rank=0, world_size=start.world_size, local_rank=0, store=store)
        tasks = tasks_for(local.placements, template, store=store, gpus=run.cuda_ordinals(start.plan.backend))
        with ras.addresses(start.plan.backend, run.record.ranks_of(run.uid)) as ports:
            async with run.watching_gpus(start.plan.backend) as watch:
                await local.measure(
                    ras.addressed(tasks, ports),
                    seconds=min(start.seconds, run.remaining(2.0)),
                    aborted=aborted,
                    on_trouble=lambda reason: connection.say(Trouble(reason)),
                )
        _, counters = await asyncio.gather(local.look_closer(), run.adapter_counters())
        loads = watch.answer
    connection.say(msgspec.structs.replace(local.report(error=imported), gpus=loads, counters=counters))
