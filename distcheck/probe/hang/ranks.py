"""Finds the running jobs of this node and their ranks.

A rank's variables are in the environment of everything below it (data-loader workers, compilers, subprocesses) and of
wrappers above it, so the rank is the topmost process with these variables that has loaded torch. Children of mp.spawn,
and of a program's own multiprocessing, have no such variables: their order tells them apart, or spawn's own argument
(`stacks.spawned`).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from distcheck.facts.hang import HangNode, RankProcess, RunningJob
from distcheck.facts.placement import Placement
from distcheck.probe.hang import engines
from distcheck.probe.hang.processes import TICK_SECONDS, Process, ProcessTable
from distcheck.probe.kernel_files import link_name
from distcheck.selection.placement import TABLES, integer, place

_SIGNS = frozenset({"RANK", *(table.marker for table in TABLES)})
_LOADERS = ("pt_data_worker", "pt_data_pin")
"""Names of torch's data-loader workers."""
_TOGETHER = 5.0
"""Seconds between the first and the last rank that a shell starts in a loop, at most."""
_LAUNCHERS = re.compile(
    r"(^|/)(torchrun|accelerate|deepspeed|ray|srun|mpirun|mpiexec)$|torch[./]distributed[./](run|launch)"
)


class _Identity(NamedTuple):
    rank: int
    place: Placement
    own: bool
    """Whether RANK says it, and not a launcher's variable."""
    run: str
    """The launcher's name of the run."""

    @property
    def job(self) -> tuple[object, ...]:
        return self.place.master_addr, self.place.master_port, self.place.world_size, self.run

    @property
    def meeting(self) -> str:
        return f"{self.place.master_addr}:{self.place.master_port}"


_Group: TypeAlias = "list[tuple[int, _Identity]]"


def jobs(table: ProcessTable, only: Collection[int] = ()) -> list[RunningJob]:
    """Return the jobs on this node; with `only`, those that have one of these processes, or one above or below it."""
    left_out = {os.getpid(), *table.above(os.getpid()), *(p.pid for p in table.below(os.getpid()))}
    named = _named(table, left_out)
    groups: dict[tuple[object, ...], _Group] = defaultdict(list)
    for pid, identity in _tops(table, named):
        groups[(*identity.job, link_name(table.root / f"{pid}/ns/net"))].append((pid, identity))
    found = [job for group in _whole(table, groups) for job in _apart(table, group)]
    found += engines.jobs(table, {rank.pid for job in found for rank in job.ranks} | left_out)
    found += _spawned(table, {rank.pid for job in found for rank in job.ranks}, left_out)
    if not only:
        return sorted(found, key=lambda job: job.ranks[0].pid)
    related = [{pid for rank in job.ranks for pid in only if _related(table, rank.pid, pid)} for job in found]
    chosen = [job for job, those in zip(found, related, strict=True) if those]
    rest = sorted(set(only).difference(*related) & table.processes.keys())
    return [*chosen, *([_given(rest)] if rest else [])]


def unreadable(table: ProcessTable, *, own_only: bool) -> tuple[int, ...]:
    """Return the Python processes that may not be read; of this user only, or of all."""
    hidden = (p.pid for p in table.processes.values() if p.is_python and p.lives and table.environment(p.pid) is None)
    return tuple(sorted(p for p in hidden if p != os.getpid() and (not own_only or _owner(p) == os.geteuid())))


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_uid  # noqa: PTH116
    except OSError:
        return -1


def _named(table: ProcessTable, left_out: Collection[int]) -> dict[int, _Identity]:
    """Return the processes whose variables name a rank."""
    found = {}
    for each in table.processes.values():
        environ = table.environment(each.pid) if each.lives and each.pid not in left_out else None
        if environ and not _SIGNS.isdisjoint(environ) and (identity := _identity(environ)):
            found[each.pid] = identity
    return found


def _identity(environ: Mapping[str, str]) -> _Identity | None:
    where = place(environ)
    if where.rank is None or where.rank < 0:
        return None
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}".strip(".")
    return _Identity(where.rank, where, integer(environ.get("RANK")) is not None, f"{run} {step}".strip())


def _tops(table: ProcessTable, named: Mapping[int, _Identity]) -> Iterable[tuple[int, _Identity]]:
    """Yield the process of each rank: the topmost of its identity that has torch, else that is a Python."""
    same: dict[tuple[int, _Identity], list[int]] = defaultdict(list)
    for pid, identity in named.items():
        top = pid
        for above in table.above(pid):
            if named.get(above) == identity:
                top = above
        same[top, identity].append(pid)
    for (_, identity), pids in same.items():
        if any(_launches(table, pid, identity, named) for pid in pids):
            continue
        loaded = [pid for pid in pids if table.has_torch(pid)]
        able = loaded or [pid for pid in pids if table.processes[pid].is_python]
        if able:
            yield min(able, key=lambda pid: (len(list(table.above(pid))), pid)), identity


def _launches(table: ProcessTable, pid: int, identity: _Identity, named: Mapping[int, _Identity]) -> bool:
    """Return whether a process is a launcher: it names a node or a task, and ranks of other names are below it."""
    others = [named[p.pid] for p in table.below(pid) if p.pid in named and named[p.pid].job != identity.job]
    inner = [n for n in others if n.own and not (identity.own and identity.place.launcher == n.place.launcher)]
    return bool(inner) or (bool(others) and _is_launcher(table, pid))


def _whole(table: ProcessTable, groups: Mapping[tuple[object, ...], _Group]) -> Iterator[_Group]:
    """Yield the ranks of each job; one that was started by hand with another MASTER_PORT belongs to its world."""
    parts: dict[object, list[_Group]] = defaultdict(list)
    for (*_, namespace), group in groups.items():
        pid, first = group[0]
        world = first.place.world_size
        part = first.place.launcher == "by hand" and not first.run and len(group) < (world or 0)
        parts[(world, namespace, table.command(pid)[:3]) if part else pid].append(group)
    for same in parts.values():
        together = [pair for group in same for pair in group]
        yield from [together] if len({identity.rank for _, identity in together}) == len(together) else same


def _apart(table: ProcessTable, group: _Group) -> list[RunningJob]:
    """Return the jobs of a group of processes: more than its world are of several jobs, told apart by their parents."""
    if len({identity.rank for _, identity in group}) == len(group) or len(group) <= (group[0][1].place.world_size or 0):
        return [_running(table, group)]
    by_parent: dict[int, _Group] = defaultdict(list)
    for pid, identity in group:
        by_parent[table.processes[pid].parent].append((pid, identity))
    return [_running(table, each, f", under process {parent}") for parent, each in by_parent.items()]


def _running(table: ProcessTable, group: _Group, apart: str = "") -> RunningJob:
    group = sorted(group, key=lambda pair: (pair[1].rank, pair[0]))
    first, where = group[0][1], group[0][1].place
    meeting = first.meeting if where.master_addr else f"process {table.processes[group[0][0]].parent}"
    run = f" ({first.run})" if first.run not in {"", "none"} else ""
    places = [who.place for _, who in group]
    meets = {("localhost" if _is_loopback(at) else at.master_addr, at.master_port) for at in places}
    return RunningJob(
        name=f"{meeting}{run}{apart}",
        world_size=where.world_size,
        ranks_per_node=where.local_world_size,
        local=where.local_world_size == where.world_size is not None or _is_loopback(where),
        launcher=where.launcher,
        nodes=(HangNode("", ended=_zombies(table, [table.processes[pid] for pid, _ in group])),),
        ranks=tuple(
            RankProcess(who.rank, "", pid, "", who.place.local_rank, meets=who.meeting if len(meets) > 1 else "")
            for pid, who in group
        ),
    )


def _zombies(table: ProcessTable, ranks: Collection[Process]) -> tuple[int, ...]:
    """Return the siblings that started with the ranks and have ended: nothing else is known of a zombie."""
    below = (child for parent in {rank.parent for rank in ranks} - {0, 1} for child in table.children.get(parent, ()))
    first, last = (of(rank.started for rank in ranks) * TICK_SECONDS for of in (min, max))
    ended = (child for child in below if child.is_python and not child.lives)
    return tuple(c.pid for c in ended if first - _TOGETHER <= c.started * TICK_SECONDS <= last + _TOGETHER)


def _is_loopback(where: Placement) -> bool:
    try:
        return ipaddress.ip_address(where.master_addr or "").is_loopback
    except ValueError:
        return where.master_addr == "localhost"


def _spawned(table: ProcessTable, ranks: set[int], left_out: Collection[int]) -> list[RunningJob]:
    """Return the jobs whose ranks are children of a process with torch and have no variables that name them."""
    found = []
    for parent in table.processes.values():
        if not parent.lives or parent.pid in left_out or not ranks.isdisjoint((parent.pid, *table.above(parent.pid))):
            continue
        below = [c for c in table.children.get(parent.pid, ()) if c.pid not in ranks and _is_child(table, parent, c)]
        loaded = [c for c in below if c.lives and table.has_torch(c.pid)]
        if loaded and table.has_torch(parent.pid) and not _is_launcher(table, parent.pid):
            found.append(_children(table, parent, [c for c in below if c in loaded or not c.lives]))
    return found


def _is_child(table: ProcessTable, parent: Process, child: Process) -> bool:
    """Return whether multiprocessing started a process, by fork or by spawn, and it loads no data."""
    if not child.lives:
        return child.is_python
    command = table.command(child.pid)
    started = "--multiprocessing-fork" in command or command == table.command(parent.pid)
    return started and child.name not in _LOADERS


def _is_launcher(table: ProcessTable, pid: int) -> bool:
    return bool(_LAUNCHERS.search(" ".join(table.command(pid)[:6])))


def _children(table: ProcessTable, parent: Process, children: list[Process]) -> RunningJob:
    environ = table.environment(next(child.pid for child in children if child.lives)) or {}
    addr, port = environ.get("MASTER_ADDR", ""), integer(environ.get("MASTER_PORT"))
    nodes = integer(environ.get("SLURM_NNODES")) or integer(environ.get("NNODES")) or 1
    return RunningJob(
        name=f"{addr}:{port}" if addr else f"children of process {parent.pid}",
        world_size=len(children) if nodes == 1 else None,
        ranks_per_node=len(children),
        local=nodes == 1,
        launcher="spawn",
        nodes=(HangNode("", ended=tuple(child.pid for child in children if not child.lives)),),
        ranks=tuple(RankProcess(n, "", child.pid, "", n, "order") for n, child in enumerate(children) if child.lives),
    )


def _related(table: ProcessTable, rank: int, pid: int) -> bool:
    return pid == rank or pid in table.above(rank) or rank in table.above(pid)


def _given(pids: list[int]) -> RunningJob:
    """Return a job of processes that the user named."""
    ranks = tuple(RankProcess(number, "", pid, "", number, "given") for number, pid in enumerate(pids))
    name = f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
    return RunningJob(name, len(pids), local=True, launcher="none", nodes=(HangNode(""),), ranks=ranks)
