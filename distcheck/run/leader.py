"""What the leader does: gather all facts, decide stage by stage, and give the one verdict."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import count, duration
from distcheck.rollcall.protocol import LONGEST_NAME, AskNode, Bye, Here, LastCall, NodeReport
from distcheck.rollcall.server import Server
from distcheck.rules import rules_for
from distcheck.rules.diagnose import judge
from distcheck.run import measure, peer_round, waiting
from distcheck.run.context import Session
from distcheck.run.measure import FEWEST_NODES, ISOLATION_SECONDS, REPEAT_SECONDS, REPORT_RESERVE_SECONDS
from distcheck.run.progress import StageView
from distcheck.run.request import WITH_OTHERS, RunResult

if TYPE_CHECKING:
    from distcheck.rules.finding import Finding

_LATECOMER_SECONDS = 0.5
_LAST_CALL_SECONDS = 10.0
"""On a busy host a live process may wait seconds for a CPU; a dead one has closed its connection."""
_GOODBYE_SECONDS = 2.0
_NODES_SECONDS = 5.0
_HINTS = frozenset({"net-nic-down-or-slow", "perf-group-slow"})
"""Warnings that are worth a search: what is slow for a moment is not slow in every round."""


async def lead(run: Session) -> RunResult:
    """Lead the run to its end and return its result."""
    server = run.server
    if server is not None:
        await _gather(run, server)
    run.record.met = True
    run.record.looked |= set(run.asked.looks) - set(WITH_OTHERS)
    if run.request.history:
        from distcheck.run import history

        past = await history.read(run.request.history, run.record.job(), run.remaining(REPORT_RESERVE_SECONDS))
        run.record.history = past.history
    if "peers" in run.asked.looks:
        if server is not None and server.followers:
            await peer_round.hold(run, server)
        run.record.looked.add("peers")
    if run.asked.measures:
        if server is not None:
            await _take_note_of_followers(run, server)
        await _run_collectives(run)
    return await _conclude(run)


async def _gather(run: Session, server: Server) -> None:
    """Wait for missing ranks, at most --join-timeout; print them before 10 s are over."""
    loop = asyncio.get_running_loop()
    patience = run.join_seconds()
    until = loop.time() + patience
    if not server.complete:
        joined = f"{server.present} of {server.world_size} ranks joined"
        run.progress.begin(
            f"roll call: {joined}, waiting {duration(patience)} at most for the others",
            lambda: waiting.roll_call(server, until),
        )
    with run.reminding(lambda waited: waiting.roll_call_reminder(server, patience - waited)):
        if not await server.wait_for_all(patience / 2, REPORT_RESERVE_SECONDS):
            server.admit_strangers = True
            await server.wait_for_all(max(0.0, until - loop.time()), REPORT_RESERVE_SECONDS)
        if run.request.placements[0].launcher == "by hand" and server.followers:
            # Processes started by hand come one by one: wait for a duplicate rank, so that it is reported.
            await asyncio.sleep(min(_LATECOMER_SECONDS, run.remaining(REPORT_RESERVE_SECONDS)))
    server.forget_restarted()
    run.record.take_reports(f.report for f in server.followers.values())
    run.record.note_arrivals({uid: follower.arrived_at for uid, follower in server.followers.items()}, server.opened_at)
    await _ask_for_nodes(run, server)
    binds = [f.report.process.bind for f in server.followers.values() if 0 in f.ranks]
    if any(bind is not None and bind.outcome == "bound" for bind in binds):
        run.record.forget_refusals()  # this process stood in for rank 0 until rank 0 came
    for follower in server.followers.values():
        run.deadline = min(run.deadline, follower.leaves_at)


async def _ask_for_nodes(run: Session, server: Server) -> None:
    """Ask followers for the facts that brief reports leave out and nobody else has sent."""
    there = frozenset(run.record.followers)
    if uids := [uid for uid in run.record.briefly_told if uid in there]:
        server.say_to_all(AskNode(), uids)
        patience = max(1.0, min(_NODES_SECONDS, run.remaining(REPORT_RESERVE_SECONDS)))
        heard = await server.hear_all(NodeReport, patience, uids)
        run.record.take_nodes({uid: said.node for uid, said in heard.items()})
        silent = f"did not send the facts of its node within {patience:.0f} s"
        run.record.note_silent(server, run.record.briefly_told, silent)


async def _take_note_of_followers(run: Session, server: Server) -> None:
    """Take the facts of late followers and note which followers are gone.

    A late follower may have a rank that is already present.
    """
    run.record.take_late_reports(f.report for f in server.followers.values())
    await _ask_for_nodes(run, server)
    for uid, follower in server.followers.items():
        if follower.gone:
            run.record.note_lost(uid, "connection closed")


def reason_to_stop(job: Job) -> str:
    """Return why the collectives cannot run on this job, '' if they can.

    Only an error stops them, and only an error explains one (`Rule.unless`), so the rules that can only warn are not
    judged before the verdict.
    """
    diagnosis = judge(job, [rule for rule in rules_for(job) if rule.severity == "error"])
    errors = tuple(dict.fromkeys(f.rule for f in diagnosis.findings if f.severity == "error"))
    if errors:
        return f"not run because of {', '.join(errors)}"
    unseen = tuple(dict.fromkeys(n.rule for n in diagnosis.not_checked if n.required))
    if unseen:
        return f"not run because {', '.join(unseen)} could not be checked"
    # --select or --ignore may have left out the rules; the ranks would still wait for each other.
    if job.missing_ranks or len(job.ranks) != job.world_size:
        return "not run because the ranks present do not match WORLD_SIZE"
    if any(p.lost for p in job.processes):
        return "not run because a process of the job was lost"
    return ""


async def _run_collectives(run: Session) -> None:
    """Run the collectives unless an error stops them; if they go wrong, find out why."""
    job = run.record.job(look for look in run.asked.looks if look in run.record.looked)
    if stop := reason_to_stop(job):
        run.record.skip(("collectives", "training", "isolation"), stop)
        return
    job = msgspec.structs.replace(job)  # without what the rules keep in it
    if "collectives" in run.asked.looks:
        await measure.collectives(run, job)
        job = run.record.job()
    enough_time = run.remaining(REPORT_RESERVE_SECONDS) >= ISOLATION_SECONDS
    if "isolation" in run.asked.looks or (run.asked.command == "gate" and enough_time and worth_a_search(job)):
        await _isolate(run, job)
        job = run.record.job()
    await _repeat(run, job)
    if run.asked.command == "gate" and job.backend == "nccl":
        from distcheck.run import nccl_diagnostics

        await nccl_diagnostics.diagnose(run, run.record.job())


def worth_a_search(job: Job) -> bool:
    """Return whether the collectives went wrong and one of several nodes may be the cause."""
    if not isinstance(job.collectives, Collectives) or len(job.nodes) < FEWEST_NODES:
        return False
    # A healthy job ends here, without the seconds that all rules of a large one take.
    if not _hints(judge(job, [rule for rule in rules_for(job) if _is_hint(rule.name)]).findings):
        return False
    found = judge(job).findings
    causes = any(f.severity == "error" and f.scope in {"job", "rank", "system"} for f in found)
    return _hints(found) and not causes  # a cause that is known is not a node


def _hints(findings: Iterable[Finding]) -> bool:
    return any(_is_hint(f.rule) and (f.rule in _HINTS or f.severity == "error") for f in findings)


def _is_hint(rule: str) -> bool:
    return rule in _HINTS or rule.startswith(("collective-", "perf-below"))


async def _isolate(run: Session, job: Job) -> None:
    """Search for the bad node, link or rank, and record the result."""
    from distcheck.run import search

    run.record.begin("isolation", run.record.followers)
    nodes = f"looking for the bad node, link or rank on {count(len(job.nodes), 'node')}"
    run.progress.begin(
        f"isolation: {nodes}, {duration(run.remaining())} at most", lambda: StageView("isolation", nodes)
    )
    if "isolation" not in run.asked.looks:
        run.record.asked = msgspec.structs.replace(run.record.asked, looks=(*run.asked.looks, "isolation"))
    run.record.isolation = await search.search(run, run.server, job.backend)
    run.record.looked.add("isolation")


async def _repeat(run: Session, job: Job) -> None:
    """If a case failed or was slow, repeat it with one setting changed at a time, and record the result."""
    from distcheck.run import repeat

    if run.remaining(REPORT_RESERVE_SECONDS) < REPEAT_SECONDS:
        return
    failed = repeat.worth_repeating(job)
    slow = None if failed else repeat.slow_figure(job)
    if not failed and slow is None:
        return
    # The collectives are recorded; an interrupt must not take a repetition for them.
    run.record.begin("isolation")
    run.record.repeated = await repeat.repeat(run, job.backend, slow)


async def _conclude(run: Session) -> RunResult:
    """Free the ports, check which followers are alive, judge, publish, and end the run."""
    server = run.server
    if server is not None:
        await server.close_doors()
        await _take_note_of_followers(run, server)
        await _call_last(run, server)
    run.record.begin("done", run.record.followers)
    job = run.record.job()
    diagnosis = judge(job)
    outcome = await run.deliver(job, diagnosis, diagnosis.verdict.exit_code)
    await dismiss(run, outcome)
    return outcome


async def _call_last(run: Session, server: Server) -> None:
    """Ask which followers are alive: the verdict covers only processes that receive it."""
    asked = run.record.followers
    since, left = time.monotonic(), [server.followers[uid] for uid in asked]
    run.progress.begin("", lambda: waiting.followers("verdict", left, since, why="no answer yet"))
    server.say_to_all(LastCall(), asked)
    patience = max(1.0, min(_LAST_CALL_SECONDS, run.remaining(0.5)))
    heard = await server.hear_all(Here, patience, asked)
    done = {uid: server.followers[uid].heard_at for uid in heard}
    run.record.note_done("done", {run.uid: since} | done, set(asked) - heard.keys())
    silent = f"no answer within {patience:.0f} s to the last call before the verdict"
    run.record.note_silent(server, set(asked) - heard.keys(), silent)


async def dismiss(run: Session, outcome: RunResult) -> None:
    """Tell all followers how the run ended and where the report is, and wait only briefly for them."""
    server = run.server
    if server is None:
        return
    await server.close_doors()
    node = run.record.node.name if run.record.node else ""
    server.say_to_all(Bye(outcome.exit_code, outcome.headline[:LONGEST_NAME], node[:LONGEST_NAME], os.getpid()))
    await server.wait_until_gone(run.last_moment(_GOODBYE_SECONDS), run.record.followers)
