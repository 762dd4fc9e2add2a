"""Looks at the jobs of this node: two samples of every rank, some seconds apart."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from distcheck.facts.base import Missing, legible
from distcheck.facts.hang import HangNode, Helper, Moment, RankProcess, RunningJob, Unanswered
from distcheck.probe import host, process
from distcheck.probe.hang import dumps, gpus, members, native, ranks, sample, sockets, stacks
from distcheck.probe.hang.calls import system_call
from distcheck.probe.hang.processes import Process, ProcessTable
from distcheck.probe.kernel_files import integer

_DUMP_SECONDS = 3.0
_MOST_HELPERS = 4
_SYS_PTRACE = 1 << 19  # linux/capability.h
_SERVERS = re.compile(r"/multiprocessing/(managers|pool)\.py$")
_PYTHON = re.compile(r"(^|/)python[\d.]*$")


class Wanted(NamedTuple):
    """What to look at."""

    seconds: float
    """Between the two samples."""
    only: tuple[int, ...] = ()
    """The processes of --pid; empty for all."""
    stacks: bool = True
    native_seconds: float = 0.0
    """How long reading native functions may take; 0: they are not read."""


class _Once(NamedTuple):
    """A sample of all ranks of the node."""

    table: ProcessTable
    moments: Mapping[int, Moment]
    spawned: Mapping[int, int]
    below: Mapping[int, tuple[Process, ...]]
    busy: Mapping[int, float]
    """Of each process below a rank."""


def look(wanted: Wanted, pause: Callable[[float], None] = time.sleep) -> list[RunningJob]:
    """Return the jobs of this node, each with two samples; one without ranks says why there is none."""
    program = stacks.sampler() if wanted.stacks else Missing(reason="")
    table = ProcessTable()
    jobs = ranks.jobs(table, wanted.only)
    node = _node(table, os.environ, program, found=bool(jobs))
    if not jobs:
        return [RunningJob(name="", nodes=(node,), stacks=wanted.stacks)]
    pids = [member.pid for job in jobs for member in job.members]
    numbering = frozenset(m.pid for job in jobs for m in job.members if m.numbered == "order")
    first = _once(table, pids, program, numbering)
    jobs = [_ranks_only(job, first) for job in jobs if wanted.only or _is_distributed(job, first)]
    if not jobs:
        return [RunningJob(name="", nodes=(node,), stacks=wanted.stacks)]
    pids = [member.pid for job in jobs for member in job.members]
    amd = any(map(table.has_hip, pids))
    watching = gpus.watch(wanted.seconds, amd=amd) if any(map(table.has_cuda, pids)) else None
    pause(wanted.seconds)
    last = _once(ProcessTable(), pids, program, frozenset())
    found = [_hang(job, node, first, last, program, stacks_wanted=wanted.stacks) for job in jobs]
    seen = None if watching is None else gpus.seen(watching)
    if wanted.native_seconds and isinstance(program, str):
        found = [native.added(job, program, wanted.native_seconds) for job in found]
    return [legible(job if seen is None else gpus.added(job, seen, table)) for job in found]


def _once(table: ProcessTable, pids: Collection[int], program: str | Missing, numbering: frozenset[int]) -> _Once:
    own = set(pids)
    below = {pid: tuple(p for p in table.below(pid) if p.pid not in own) for pid in pids}
    moments = {pid: sample.moment(table, pid, tuple(p.pid for p in below[pid])) for pid in pids}
    busy = {p.pid: sample.busy_seconds(p.pid) for those in below.values() for p in those}
    spawned: dict[int, int] = {}
    if isinstance(program, str):
        alive = [pid for pid in pids if moments[pid].state not in "ZX"]
        for pid, dump in stacks.dumps(program, alive, _DUMP_SECONDS, numbering).items():
            moments[pid] = msgspec.structs.replace(moments[pid], threads=dump.threads)
            if dump.spawned is not None:
                spawned[pid] = dump.spawned
    return _Once(table, moments, spawned, below, busy)


def _is_distributed(job: members.Running, first: _Once) -> bool:
    """Return whether children of multiprocessing are ranks; other programs with torch have children too."""
    if job.launcher != "spawn":
        return True
    pids = [member.pid for member in job.members]
    threads = [t for pid in pids for t in (first.moments[pid].threads,) if isinstance(t, tuple)]
    frames = (frame.file for each in threads for thread in each for frame in thread.frames)
    known = any(pid in first.spawned or members.communicates(first.table, pid) for pid in pids)
    return known or any("torch/distributed/" in file for file in frames)


def _ranks_only(job: members.Running, first: _Once) -> members.Running:
    """Return a job without the managers and pools of multiprocessing, which are children beside its ranks."""
    if job.launcher != "spawn":
        return job
    spawned = [m for m in job.members if m.pid in first.spawned]
    kept = spawned or [m for m in job.members if not _serves(first.moments[m.pid])]
    others = [m.pid for m in job.members if m not in kept]
    return job._replace(
        members=tuple(m._replace(rank=n, local_rank=n) for n, m in enumerate(kept)) if others else job.members,
        world_size=job.world_size and job.world_size - len(others),
        ranks_per_node=job.ranks_per_node and job.ranks_per_node - len(others),
    )


def _serves(moment: Moment) -> bool:
    threads = moment.threads if isinstance(moment.threads, tuple) else ()
    return any(_SERVERS.search(frame.file) for thread in threads if thread.main for frame in thread.frames)


def _hang(
    job: members.Running, node: HangNode, first: _Once, last: _Once, program: str | Missing, *, stacks_wanted: bool
) -> RunningJob:
    return RunningJob(
        name=job.name,
        world_size=job.world_size,
        ranks_per_node=job.ranks_per_node,
        local=job.local,
        launcher=job.launcher,
        nodes=(msgspec.structs.replace(node, ended=job.ended),),
        ranks=tuple(_rank(member, node.name, first, last, program) for member in job.members),
        stacks=stacks_wanted,
    )


def _rank(member: members.Member, node: str, first: _Once, last: _Once, program: str | Missing) -> RankProcess:
    pid, number = member.pid, first.spawned.get(member.pid, member.rank)
    return RankProcess(
        rank=number,
        node=node,
        pid=pid,
        program=_program(first.table.command(pid)),
        local_rank=member.local_rank if member.rank == number else number,
        numbered="spawn" if pid in first.spawned else member.numbered,
        meets=member.meets,
        moments=(first.moments[pid], last.moments[pid]),
        helpers=_helpers(pid, first, last, program),
        unanswered=tuple(Unanswered(c.local, c.remote, c.retransmits, c.queued_bytes) for c in sockets.unanswered(pid)),
        torch=first.table.has_torch(pid),
        cuda=first.table.has_cuda(pid),
        dump=dumps.dump_of(last.table, pid, number) if number is not None else None,
    )


def _helpers(pid: int, first: _Once, last: _Once, program: str | Missing) -> tuple[Helper, ...]:
    """Return the processes below a rank that are in both samples, the busiest and youngest first, at most a few."""
    before = {p.pid for p in first.below[pid]}
    both = [p for p in last.below[pid] if p.pid in before and p.state not in "ZX"]
    spent = {p.pid: max(0.0, last.busy[p.pid] - first.busy[p.pid]) for p in both}
    kept = sorted(both, key=lambda p: (-spent[p.pid], -p.started))[:_MOST_HELPERS]
    python = [p.pid for p in kept if p.is_python]
    dumped = stacks.dumps(program, python, _DUMP_SECONDS) if isinstance(program, str) else {}
    return tuple(
        Helper(
            p.pid, process.command_or_name(p.pid)[:200], p.state, sample.kernel_function(p.pid), system_call(p.pid),
            spent[p.pid], dumped[p.pid].threads if p.pid in dumped else None,
        )
        for p in kept
    )  # fmt: skip


def _program(words: tuple[str, ...]) -> str:
    """Return the script or module that a process runs, else its first word."""
    for before, word in pairwise(words):
        if before == "-m":
            return word
        if _PYTHON.search(words[0]) and not word.startswith("-") and before not in {"-c", "-W", "-X"}:
            return os.path.basename(word)  # noqa: PTH119
    return os.path.basename(words[0]) if words else ""  # noqa: PTH119


def _node(table: ProcessTable, environ: Mapping[str, str], program: str | Missing, *, found: bool) -> HangNode:
    import getpass

    root = Path("/")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return HangNode(
        name=host.name_of_node(environ),
        user=user,
        unreadable=ranks.unreadable(table, own_only=found and os.geteuid() != 0)[:64],
        yama=integer(root / "proc/sys/kernel/yama/ptrace_scope"),
        sys_ptrace=bool(process.mask_of("self", "CapEff") & _SYS_PTRACE),
        container=_container(environ),
        sampler=program.reason if isinstance(program, Missing) else "",
    )


def _container(environ: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    return "docker" if Path("/.dockerenv").exists() else ""
