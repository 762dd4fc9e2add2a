"""Looks at the jobs of this node: two samples of every rank, some seconds apart."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from distcheck.facts.base import Missing, legible
from distcheck.facts.hang import HangNode, Helper, Moment, RankProcess, RunningJob, Thread
from distcheck.probe import host, process
from distcheck.probe.hang import dumps, gpus, native, ranks, sample, sockets, stacks
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
    first = _once(table, [rank for job in jobs for rank in job.ranks], program)
    jobs = [_ranks_only(job, first) for job in jobs if wanted.only or _is_distributed(job, first)]
    if not jobs:
        return [RunningJob(name="", nodes=(node,), stacks=wanted.stacks)]
    all_ranks = [rank for job in jobs for rank in job.ranks]
    pids = [rank.pid for rank in all_ranks]
    amd = any(map(table.has_hip, pids))
    watching = gpus.watch(wanted.seconds, amd=amd) if any(map(table.has_cuda, pids)) else None
    pause(wanted.seconds)
    last = _once(ProcessTable(), all_ranks, program, numbering=False)
    found = [
        replace(
            job,
            nodes=(replace(node, ended=job.nodes[0].ended),),
            ranks=tuple(_rank(rank, node.name, first, last, program) for rank in job.ranks),
            stacks=wanted.stacks,
        )
        for job in jobs
    ]
    seen = None if watching is None else gpus.seen(watching)
    if wanted.native_seconds and isinstance(program, str):
        found = [native.added(job, program, wanted.native_seconds) for job in found]
    return [legible(job if seen is None else gpus.added(job, seen, table)) for job in found]


def _once(
    table: ProcessTable, sampled: Collection[RankProcess], program: str | Missing, *, numbering: bool = True
) -> _Once:
    own = {rank.pid for rank in sampled}
    below = {pid: tuple(p for p in table.below(pid) if p.pid not in own) for pid in own}
    moments = {pid: sample.moment(table, pid, tuple(p.pid for p in below[pid])) for pid in own}
    busy = {p.pid: sample.busy_seconds(p.pid) for those in below.values() for p in those}
    spawned: dict[int, int] = {}
    if isinstance(program, str):
        alive = [pid for pid in own if moments[pid].state not in "ZX"]
        numbered = frozenset(rank.pid for rank in sampled if numbering and rank.numbered == "order")
        for pid, dump in stacks.dumps(program, alive, _DUMP_SECONDS, numbered).items():
            moments[pid] = replace(moments[pid], threads=dump.threads)
            if dump.spawned is not None:
                spawned[pid] = dump.spawned
    return _Once(table, moments, spawned, below, busy)


def _is_distributed(job: RunningJob, first: _Once) -> bool:
    """Return whether children of multiprocessing are ranks; other programs with torch have children too."""
    pids = [rank.pid for rank in job.ranks]
    return (
        job.launcher != "spawn"
        or any(pid in first.spawned or first.table.communicates(pid) for pid in pids)
        or any("torch/distributed/" in f.file for pid in pids for t in _threads(first, pid) for f in t.frames)
    )


def _ranks_only(job: RunningJob, first: _Once) -> RunningJob:
    """Return a job without the managers and pools of multiprocessing, which are children beside its ranks."""
    spawned = [rank for rank in job.ranks if rank.pid in first.spawned]
    kept = spawned or [rank for rank in job.ranks if not _serves(first, rank.pid)]
    others = len(job.ranks) - len(kept)
    if job.launcher != "spawn" or not others:
        return job
    return replace(
        job,
        ranks=tuple(replace(rank, rank=n, local_rank=n) for n, rank in enumerate(kept)),
        world_size=job.world_size and job.world_size - others,
        ranks_per_node=job.ranks_per_node and job.ranks_per_node - others,
    )


def _serves(first: _Once, pid: int) -> bool:
    return any(_SERVERS.search(frame.file) for t in _threads(first, pid) if t.main for frame in t.frames)


def _threads(once: _Once, pid: int) -> tuple[Thread, ...]:
    threads = once.moments[pid].threads
    return threads if isinstance(threads, tuple) else ()


def _rank(rank: RankProcess, node: str, first: _Once, last: _Once, program: str | Missing) -> RankProcess:
    pid, number = rank.pid, first.spawned.get(rank.pid, rank.rank)
    return replace(
        rank,
        rank=number,
        node=node,
        program=_program(first.table.command(pid)),
        local_rank=rank.local_rank if rank.rank == number else number,
        numbered="spawn" if pid in first.spawned else rank.numbered,
        moments=(first.moments[pid], last.moments[pid]),
        helpers=_helpers(pid, first, last, program),
        unanswered=sockets.unanswered(pid),
        torch=first.table.has_torch(pid),
        cuda=first.table.has_cuda(pid),
        dump=dumps.dump_of(last.table, pid, number) if number is not None else None,
    )


def _helpers(pid: int, first: _Once, last: _Once, program: str | Missing) -> tuple[Helper, ...]:
    """Return the processes below a rank that are in both samples, the busiest and youngest first, at most a few."""
    before = {p.pid for p in first.below[pid]}
    both = [p for p in last.below[pid] if p.pid in before and p.lives]
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
