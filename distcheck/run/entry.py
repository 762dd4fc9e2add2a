"""The entry to a run: from outside the job, with other processes, or alone."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.network import Attempt, Bind, Resolution
from distcheck.facts.placement import NOBODY_TO_MEET
from distcheck.facts.rank import Role
from distcheck.probe import environment, host, network
from distcheck.probe.own import process_facts, rank_facts
from distcheck.run.record import Record
from distcheck.run.request import WITH_OTHERS, Publish, Request, RunResult
from distcheck.run.watchdog import GRACE_SECONDS, armed, when_late


def run(request: Request, publish: Publish) -> RunResult:
    """Run a preflight to its end and return its result."""
    with armed(request.start + request.asked.timeout_seconds + GRACE_SECONDS, when_late(request.asked)) as dog:
        if request.ended is not None:
            return _end(request, *request.ended, publish)
        if request.outside is not None:
            from distcheck.run.outside import run_outside

            return run_outside(request, request.outside, publish, dog)
        lone = request.speaks_for_all or not request.meets
        looks_further = not {"gpu", "peers", "storage"}.isdisjoint(request.asked.looks)
        if not lone or request.starts_ranks or looks_further:
            from distcheck.run.driver import run_to_end

            return run_to_end(request, publish, dog)
        return _run_alone(request, publish)


def _run_alone(request: Request, publish: Publish) -> RunResult:
    """Check what needs no other process, without the cost of starting asyncio."""
    from distcheck.rules.diagnose import judge  # followers do not load rules

    record = Record(request)
    agent = request.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    own = _try_own_master(request, agent=agent) if request.meets else None
    reached = own is None or any(a.outcome == "met" for a in own.attempts)
    record.node = host.collect(request.environ, addresses=not reached, policy=request.asked.policy)
    record.process = process_facts(record.uid, record.node, request.environ, request.placements)
    if own is not None:
        record.note(bind=own.bind, attempts=own.attempts, role=Role.LEADER)
        record.note_resolution(own.resolution)
    record.ranks = tuple(
        rank_facts(record.uid, record.node, p, environment.collect(request.environ)) for p in request.placements
    )
    record.met = request.speaks_for_all
    if not record.met:
        record.skip(WITH_OTHERS, NOBODY_TO_MEET)
    record.begin("done")
    job = record.job()
    diagnosis = judge(job)
    return RunResult(job, publish(job, diagnosis, diagnosis.verdict.exit_code), reported=True)


def _end(request: Request, signum: int, waited: str, publish: Publish) -> RunResult:
    """Report that a signal ended this process before the run."""
    from distcheck.rules.diagnose import judge

    record = Record(request)
    record.node = host.collect(request.environ, addresses=False)
    record.process = process_facts(record.uid, record.node, request.environ, request.placements)
    record.begin("started")
    record.skip(request.asked.looks, f"the run was ended by {waited}")
    job = msgspec.structs.replace(record.job(), interrupted=signum)
    diagnosis = judge(job)
    return RunResult(job, publish(job, diagnosis, diagnosis.verdict.exit_code), reported=True)


class _OwnMaster(NamedTuple):
    resolution: Resolution | Missing
    bind: Bind
    attempts: tuple[Attempt, ...]


def _try_own_master(request: Request, *, agent: bool) -> _OwnMaster:
    """Resolve MASTER_ADDR, bind MASTER_PORT, and check that the address leads to this port."""
    place, seconds = request.placements[0], request.connect_seconds
    resolution = network.resolve_within(place.master_addr or "", request.resolver_seconds)
    sock, bind = network.bind(place.master_port or 0, agent=agent)
    attempts: tuple[Attempt, ...] = ()
    if sock is not None:
        with sock:
            if isinstance(resolution, Resolution):
                attempts = tuple(network.knock_at_own(sock, address, seconds) for address in resolution.addresses)
    return _OwnMaster(resolution, bind, attempts)
