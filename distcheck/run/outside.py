"""A run from outside the job: starts probes on its nodes and judges their facts."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.base import legible
from distcheck.facts.errors import UsageError
from distcheck.facts.job import Job, LeftOut
from distcheck.facts.quantities import count
from distcheck.launch.remote import engine, mpi, slurm, ssh
from distcheck.launch.remote.assignment import Assignment
from distcheck.launch.remote.collector import Homecoming
from distcheck.launch.remote.engine import Wish
from distcheck.launch.remote.spec import Command, Outside
from distcheck.probe.environment import redacted
from distcheck.rollcall.seal import make_token
from distcheck.rules.diagnose import judge
from distcheck.run.interrupts import INTERRUPT_SECONDS, caught
from distcheck.run.progress import Progress, StageView
from distcheck.run.record import now
from distcheck.run.request import Publish, Request, RunResult

if TYPE_CHECKING:
    from distcheck.rules.diagnose import Diagnosis
    from distcheck.rules.finding import Finding
    from distcheck.run.watchdog import Watchdog

_ENGINES: dict[str, Any] = {"ssh": ssh, "slurm": slurm, "mpi": mpi}
_START_UP_SECONDS = 3.0
"""Kept back from the probes' --timeout, to start them and to receive their facts."""
_SHORTEST_ROUND_SECONDS = 2 * _START_UP_SECONDS
_LAST_WORDS_SECONDS = 1.0
"""Between the stop signal to the probes and their end."""
_NAMED = 4
"""Most nodes that the live line names."""
_LINGER_SECONDS = 3.0
"""How long a probe may stay after the leader has sent the whole job."""


def run_outside(request: Request, launch: Outside, publish: Publish, dog: Watchdog) -> RunResult:
    """Run a preflight through probes; if --need allows, repeat it without the bad nodes."""
    start = _Start(request, dog)
    with caught(start.interrupt):
        job = start.past(start.round(launch))
        diagnosis = judge(job)
        spare = _left_out(job, diagnosis, launch)
        if spare and not start.interrupted and start.deadline - time.monotonic() < _SHORTEST_ROUND_SECONDS:
            start.say("too little time is left to check the other nodes without the bad ones; raise --timeout")
        elif spare and not start.interrupted:
            start.say(f"excluding {', '.join(s.name for s in spare)}; checking the other nodes")
            past = job.history
            job = start.round(launch.without(tuple(s.name for s in spare)))
            job = msgspec.structs.replace(job, left_out=spare, history=past)
            diagnosis = judge(job)
        code = publish(job, diagnosis, diagnosis.verdict.exit_code)
        start.remember(job, diagnosis)
        return RunResult(job, code, reported=True)


class _Start:
    """The state of a launch."""

    def __init__(self, request: Request, dog: Watchdog) -> None:
        self.request, self._dog = request, dog
        self.deadline = request.start + request.asked.timeout_seconds
        self.interrupted: signal.Signals | None = None
        self._interrupted_at = 0.0
        self._nobody_else_at = 0.0
        self.progress = Progress(lambda: self.deadline, quiet=request.quiet)

    def say(self, text: str) -> None:
        """Print a line that stays to stderr."""
        self.progress.say(text)

    def interrupt(self, signum: signal.Signals) -> None:
        """End the run with what is known."""
        if self.interrupted is None:
            self.interrupted, self._interrupted_at = signum, time.monotonic()
            self._dog.hasten(INTERRUPT_SECONDS, 128 + signum)

    def past(self, job: Job) -> Job:
        """Return the job with what earlier runs found on its nodes."""
        if not self.request.history or self.interrupted:
            return job
        from distcheck.run import history

        return asyncio.run(history.read(self.request.history, job, max(1.0, self.deadline - time.monotonic())))

    def remember(self, job: Job, diagnosis: Diagnosis) -> None:
        """Add the run to the history of its nodes."""
        if self.request.history and not self.interrupted:
            from distcheck.run import history

            left = max(1.0, self.deadline - time.monotonic())
            asyncio.run(history.add(self.request.history, job, diagnosis, left))

    def round(self, launch: Outside) -> Job:
        """Start the probes once and return the job from the facts that they sent."""
        request, module = self.request, _ENGINES[launch.engine]
        token = request.environ.get("DISTCHECK_TOKEN") or make_token()
        if launch.engine == "ssh":
            launch = launch._replace(environment={"DISTCHECK_TOKEN": token, **launch.environment})
        commands: tuple[Command, ...] = tuple(module.commands(launch, self._assignment(launch)))
        home = Homecoming(launch, module.WORDS, self.say, live=self.progress.live)
        self._nobody_else_at = 0.0
        self.progress.begin(
            f"launch: starting distcheck on {count(len(launch.hosts), 'node')} through {launch.engine}",
            partial(_view, home),
        )
        try:
            engine.run(
                commands,
                home,
                lambda: self._wish(home),
                connect_seconds=request.connect_seconds + 2,
                environment={"DISTCHECK_TOKEN": token, **launch.environment},
            )
        except OSError as error:
            raise UsageError(f"{commands[0].key} could not be started: {error}") from error
        finally:
            self.progress.close()
        ended = ""
        if self.interrupted:
            ended = f"the run was ended by {self.interrupted.name}"
        elif time.monotonic() >= self.deadline:
            ended = f"the run was ended by --timeout of {request.asked.timeout_seconds:g} s"
        seconds = time.monotonic() - request.start
        job = home.job(request.asked, _shown(commands[0]), seconds, ended=ended, interrupted=self.interrupted or 0)
        launched = job.launched and msgspec.structs.replace(
            job.launched, stated=request.launch and legible(request.launch)
        )
        return msgspec.structs.replace(job, at=now(), host=os.uname().nodename, launched=launched)

    def _assignment(self, launch: Outside) -> Assignment:
        request = self.request
        left = self.deadline - time.monotonic() - _START_UP_SECONDS
        # The first probes wait for those that start last.
        starting = engine.last_start_seconds(len(launch.hosts)) if launch.engine == "ssh" else 0.0
        looks = tuple(look for look in request.asked.looks if look != "launch")
        asked = msgspec.structs.replace(
            request.asked,
            looks=looks,
            timeout_seconds=max(1.0, left),
            join_timeout_seconds=request.asked.join_timeout_seconds + starting,
        )
        return Assignment(
            asked=asked,
            ranks_by_task=launch.ranks_by_host if launch.multiplies else (),
            master_addr=launch.master_addr,
            master_port=launch.master_port,
            connect_seconds=request.connect_seconds,
            iterations=request.iterations,
            time_limit_seconds=request.time_limit_seconds,
        )

    def _wish(self, home: Homecoming) -> Wish:
        self.progress.draw()
        now = time.monotonic()
        stop_at = self.deadline - _LAST_WORDS_SECONDS
        if self.interrupted:
            stop_at = min(stop_at, self._interrupted_at)
        if home.concluded_at is not None:
            stop_at = min(stop_at, home.concluded_at + _LINGER_SECONDS)
        if now >= stop_at:
            home.note_stopped()
            return "end" if now >= stop_at + _LAST_WORDS_SECONDS else "stop"
        if not home.nobody_else:
            return "go on"
        self._nobody_else_at = self._nobody_else_at or now
        return "close" if now >= self._nobody_else_at + self.request.connect_seconds else "go on"


def _view(home: Homecoming) -> StageView:
    """Return what the leader is doing, and the nodes that sent no facts yet."""
    silent = home.silent
    more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
    return StageView(
        "launch",
        home.stage,
        done=len(home.launch.hosts) - len(silent),
        of=len(home.launch.hosts),
        unit="nodes",
        awaited=", ".join(silent[:_NAMED]) + more,
        why="no facts yet",
    )


def _shown(command: Command) -> tuple[str, ...]:
    """Return a command for display: without its assignment, secrets redacted."""
    return redacted((command.argv or tuple(shlex.split(command.line)))[:-1])


def _left_out(job: Job, diagnosis: Diagnosis, launch: Outside) -> tuple[LeftOut, ...]:
    """Return the bad nodes if the remaining nodes are good and suffice for --need, else none."""
    need, launched = job.asked.need, job.launched
    errors = [f for f in diagnosis.findings if f.severity == "error" and not f.observed]
    if need is None or launched is None or not errors or any(f.scope not in {"node", "gpu"} for f in errors):
        return ()
    host_of = {rank: host for host, ranks in launch.ranks_by_name().items() for rank in ranks}
    named = {job.node_of(r).name: host_of[r.placement.rank] for r in job.ranks if r.placement.rank in host_of}
    bad: dict[str, list[tuple[str, Finding]]] = {}
    for finding in errors:
        for node in finding.nodes:
            host = named.get(node, node)
            if host in launch.hosts:
                bad.setdefault(host, []).append((node, finding))
    if not bad or len(launch.hosts) - len(bad) < need:
        return ()
    return tuple(
        LeftOut(
            name=host,
            rules=tuple(dict.fromkeys(finding.rule for _, finding in why)),
            words=why[0][1].message,
            confirmed=any(finding.confirmed for _, finding in why),
            node=why[0][0],
        )
        for host, why in bad.items()
    )
