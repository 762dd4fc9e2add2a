"""The search for a bad node, link or rank, round by round, as the leader runs it.

All groups of a round are tested at the same time, in newly forked ranks. A group that takes four times as long again as
the first one that passed hangs, and its ranks are killed. A process that does not answer is lost: its node leaves the
search, its last test counts for no node, and the verdict is unknown.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives
from distcheck.facts.members import Members
from distcheck.facts.quantities import count, duration
from distcheck.isolation.schedule import next_round, so_far, take
from distcheck.isolation.state import State, lose, settings_for, start
from distcheck.rules.collectives.groups import slow_operations
from distcheck.run.group_tests import OPERATIONS, GroupTests
from distcheck.run.waiting import followers

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.isolation.round import Round
    from distcheck.rollcall.server import Server
    from distcheck.run.context import Session

_RESERVE_SECONDS = 4.0
"""Kept back from --timeout for the report."""
_FIRST_ON_CPUS_SECONDS, _FIRST_ON_GPUS_SECONDS = 12.0, 30.0
"""Limit for the first group of a round to end, forks and connections included; CUDA restarts in each."""
_IN_ANY_GROUP = {"send_recv": "all_to_all"}
_LEAST_ROUND_SECONDS = 4.0
"""With less time left, no further round starts."""


async def search(run: Session, server: Server | None, backend: str) -> Isolation:
    """Test groups of nodes until the bad ones are known or the time is up; return the result.

    The groups also run what the job's mesh does, because a fault may show in one operation only.
    """
    job = run.record.job()
    members = Members(job)
    operations = searched_with(job)
    missing = {}
    if job.missing_ranks:
        missing = {f"ranks {', '.join(map(str, job.missing_ranks[:8]))}": "no process reported them"}
    state = start(members.by_node, seed=job.world_size or 0, missing=missing, settings=settings_for(backend))
    first = _FIRST_ON_CPUS_SECONDS if backend == "gloo" else _FIRST_ON_GPUS_SECONDS
    state = lose(state, await _without_torch(run, server, members))
    while True:
        step = next_round(state)
        if isinstance(step, Isolation):
            return step
        left = run.remaining(_RESERVE_SECONDS)
        if left < _LEAST_ROUND_SECONDS:
            return so_far(state)
        _show(run, server, _announced(step, state))
        held = GroupTests(run, server, members, backend, step, min(first, left), operations=operations)
        state = lose(take(state, step, await held.hold()), held.lost)
        for trial in state.rounds[-1][1]:
            if trial.bad:
                run.say(f"round {step.number}: {', '.join(trial.nodes)}: {trial.outcome}")


def _show(run: Session, server: Server | None, announced: str) -> None:
    """Show a round, and the processes that it waits for."""
    each = [server.followers[uid] for uid in run.record.followers] if server is not None else []
    view = partial(followers, "isolation", each, time.monotonic(), doing=announced, why="still testing")
    run.progress.begin(f"isolation: {announced}", view)


def searched_with(job: Job) -> tuple[str, ...]:
    """Return the operations of a search, the one whose speed is judged first."""
    ran = job.collectives
    if not isinstance(ran, Collectives):
        return OPERATIONS
    done = [figure.op for figure in ran.groups if not figure.lacks]
    # What a pipeline sends needs two ranks; all_to_all makes the same transfers in a group of any size.
    return tuple(dict.fromkeys(_IN_ANY_GROUP.get(op, op) for op in (*slow_operations(job), *OPERATIONS, *done)))


async def _without_torch(run: Session, server: Server | None, members: Members) -> dict[str, str]:
    """Return the nodes where torch is not imported after half of the remaining time."""
    waiting: dict[asyncio.Future[Any], str] = {}
    for node, here in members.by_node.items():
        for uid in here:
            if uid == run.uid and run.local is not None:
                waiting[asyncio.ensure_future(asyncio.shield(run.local.imported))] = node
            elif server is not None and uid != run.uid:
                waiting[asyncio.ensure_future(server.followers[uid].ready.wait())] = node
    seconds = run.remaining(_RESERVE_SECONDS) / 2
    _, late = await asyncio.wait(waiting, timeout=seconds) if waiting else (None, ())
    for task in late:
        task.cancel()
    return {waiting[task]: f"torch was not imported within {duration(seconds)}" for task in late}


def _announced(step: Round, state: State) -> str:
    purposes = dict.fromkeys(group.purpose for group in step.groups)
    groups = f"{count(len(step.groups), 'group')} on {count(len(state.nodes), 'node')}"
    return f"round {step.number}: {' and '.join(purposes)}, {groups}"
