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
from typing import NamedTuple

from distcheck.probe.hang import engines
from distcheck.probe.hang.members import Member, Running
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
    local_rank: int | None
    own: bool
    """Whether RANK says it, and not a launcher's variable."""
    addr: str
    port: int | None
    world: int | None
    local_world: int | None
    run: str
    """The launcher's name of the run."""
    launcher: str

    @property
    def job(self) -> tuple[object, ...]:
        return self.addr, self.port, self.world, self.run


def jobs(table: ProcessTable, only: Collection[int] = ()) -> list[Running]:
    """Return the jobs on this node; with `only`, those that have one of these processes, or one above or below it."""
    left_out = {os.getpid(), *table.above(os.getpid()), *(p.pid for p in table.below(os.getpid()))}
    named = _named(table, left_out)
    groups: dict[tuple[object, ...], list[tuple[int, _Identity]]] = defaultdict(list)
    for pid, identity in _tops(table, named):
        groups[(*identity.job, link_name(table.root / f"{pid}/ns/net"))].append((pid, identity))
    found = [job for group in _whole(table, groups) for job in _apart(table, group)]
    ranks = {member.pid for job in found for member in job.members}
    found += engines.jobs(table, ranks | left_out)
    ranks |= {member.pid for job in found for member in job.members}
    found += _spawned(table, ranks, left_out)
    if not only:
        return sorted(found, key=lambda job: job.members[0].pid)
    chosen = [job for job in found if any(_related(table, m.pid, only) for m in job.members)]
    known = {pid for job in chosen for m in job.members for pid in only if _related(table, m.pid, (pid,))}
    rest = sorted(set(only) - known)
    return [*chosen, *([_given(table, rest)] if rest else [])]


def unreadable(table: ProcessTable, *, own_only: bool) -> tuple[int, ...]:
    """Return the Python processes that may not be read; of this user only, or of all."""
    mine = os.geteuid()
    own = os.getpid()
    return tuple(
        sorted(
            p.pid
            for p in table.processes.values()
            if p.is_python and p.state not in "ZX" and p.pid != own and table.environment(p.pid) is None
            if not own_only or _owner(p.pid) == mine
        )
    )  # fmt: skip


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_uid  # noqa: PTH116
    except OSError:
        return -1


def _named(table: ProcessTable, left_out: Collection[int]) -> dict[int, _Identity]:
    """Return the processes whose variables name a rank."""
    found = {}
    for each in table.processes.values():
        if each.pid in left_out or each.state in "ZX":
            continue
        environ = table.environment(each.pid)
        if environ and not _SIGNS.isdisjoint(environ) and (identity := _identity(environ)):
            found[each.pid] = identity
    return found


def _identity(environ: Mapping[str, str]) -> _Identity | None:
    where = place(environ)
    if where.rank is None or where.rank < 0:
        return None
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}".strip(".")
    return _Identity(
        where.rank, where.local_rank, integer(environ.get("RANK")) is not None, where.master_addr or "",
        where.master_port, where.world_size, where.local_world_size, f"{run} {step}".strip(), where.launcher,
    )  # fmt: skip


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
        depth = {pid: sum(1 for _ in table.above(pid)) for pid in pids}
        loaded = [pid for pid in pids if table.has_torch(pid)]
        able = loaded or [pid for pid in pids if table.processes[pid].is_python]
        if able:
            yield min(able, key=lambda pid: (depth[pid], pid)), identity


def _launches(table: ProcessTable, pid: int, identity: _Identity, named: Mapping[int, _Identity]) -> bool:
    """Return whether a process is a launcher: it names a node or a task, and ranks of other names are below it."""
    others = [named[p.pid] for p in table.below(pid) if p.pid in named and named[p.pid].job != identity.job]
    inner = [n for n in others if n.own and not (identity.own and identity.launcher == n.launcher)]
    return bool(inner) or (bool(others) and bool(_LAUNCHERS.search(" ".join(table.command(pid)[:6]))))


def _whole(
    table: ProcessTable, groups: Mapping[tuple[object, ...], list[tuple[int, _Identity]]]
) -> Iterator[list[tuple[int, _Identity]]]:
    """Yield the ranks of each job; one that was started by hand with another MASTER_PORT belongs to its world."""
    parts: dict[object, list[list[tuple[int, _Identity]]]] = defaultdict(list)
    for (*_, namespace), group in groups.items():
        pid, first = group[0]
        part = first.launcher == "by hand" and not first.run and len(group) < (first.world or 0)
        parts[(first.world, namespace, table.command(pid)[:3]) if part else pid].append(group)
    for same in parts.values():
        together = [pair for group in same for pair in group]
        yield from [together] if len({identity.rank for _, identity in together}) == len(together) else same


def _apart(table: ProcessTable, group: list[tuple[int, _Identity]]) -> list[Running]:
    """Return the jobs of a group of processes: more than its world are of several jobs, told apart by their parents."""
    if len({identity.rank for _, identity in group}) == len(group) or len(group) <= (group[0][1].world or 0):
        return [_running(table, group)]
    by_parent: dict[int, list[tuple[int, _Identity]]] = defaultdict(list)
    for pid, identity in group:
        by_parent[table.processes[pid].parent].append((pid, identity))
    apart = {parent: _running(table, each) for parent, each in by_parent.items()}
    return [job._replace(name=f"{job.name}, under process {parent}") for parent, job in apart.items()]


def _running(table: ProcessTable, group: list[tuple[int, _Identity]]) -> Running:
    group = sorted(group, key=lambda pair: (pair[1].rank, pair[0]))
    first = group[0][1]
    one_node = first.local_world is not None and first.local_world == first.world
    meeting = _meeting(first) if first.addr else f"process {table.processes[group[0][0]].parent}"
    differs = len({("localhost" if _is_loopback(who.addr) else who.addr, who.port) for _, who in group}) > 1
    return Running(
        name=f"{meeting} ({first.run})" if first.run and first.run != "none" else meeting,
        world_size=first.world,
        ranks_per_node=first.local_world,
        local=one_node or _is_loopback(first.addr),
        launcher=first.launcher,
        members=tuple(
            Member(pid, who.rank, who.local_rank, "variables", _meeting(who) if differs else "") for pid, who in group
        ),
        ended=_zombies(table, [table.processes[pid] for pid, _ in group]),
    )


def _meeting(identity: _Identity) -> str:
    return f"{identity.addr}:{identity.port}"


def _zombies(table: ProcessTable, ranks: Collection[Process]) -> tuple[int, ...]:
    """Return the siblings that started with the ranks and have ended: nothing else is known of a zombie."""
    below = (child for parent in {rank.parent for rank in ranks} - {0, 1} for child in table.children.get(parent, ()))
    first, last = (of(rank.started for rank in ranks) * TICK_SECONDS for of in (min, max))
    ended = (child for child in below if child.state in "ZX" and child.is_python)
    return tuple(c.pid for c in ended if first - _TOGETHER <= c.started * TICK_SECONDS <= last + _TOGETHER)


def _is_loopback(addr: str) -> bool:
    try:
        return ipaddress.ip_address(addr).is_loopback
    except ValueError:
        return addr == "localhost"


def _spawned(table: ProcessTable, ranks: Collection[int], left_out: Collection[int]) -> list[Running]:
    """Return the jobs whose ranks are children of a process with torch and have no variables that name them."""
    found = []
    for parent in table.processes.values():
        if parent.pid in left_out or parent.state in "ZX" or parent.pid in ranks:
            continue
        if any(above in ranks for above in table.above(parent.pid)):
            continue
        below = [c for c in table.children.get(parent.pid, ()) if c.pid not in ranks and _is_child(table, parent, c)]
        loaded = [c for c in below if c.state not in "ZX" and table.has_torch(c.pid)]
        if loaded and table.has_torch(parent.pid) and not _agent(table, parent.pid):
            found.append(_children(table, parent, [c for c in below if c in loaded or c.state in "ZX"]))
    return found


def _is_child(table: ProcessTable, parent: Process, child: Process) -> bool:
    """Return whether multiprocessing started a process, by fork or by spawn, and it loads no data."""
    if child.name in _LOADERS or (child.state in "ZX" and not child.is_python):
        return False
    command = table.command(child.pid)
    return child.state in "ZX" or "--multiprocessing-fork" in command or command == table.command(parent.pid)


def _agent(table: ProcessTable, pid: int) -> bool:
    return bool(_LAUNCHERS.search(" ".join(table.command(pid)[:6])))


def _children(table: ProcessTable, parent: Process, children: list[Process]) -> Running:
    living = [child for child in children if child.state not in "ZX"]
    environ = table.environment(living[0].pid) or {}
    addr, port = environ.get("MASTER_ADDR", ""), integer(environ.get("MASTER_PORT"))
    nodes = integer(environ.get("SLURM_NNODES")) or integer(environ.get("NNODES")) or 1
    return Running(
        name=f"{addr}:{port}" if addr else f"children of process {parent.pid}",
        world_size=len(children) if nodes == 1 else None,
        ranks_per_node=len(children),
        local=nodes == 1,
        launcher="spawn",
        members=tuple(
            Member(child.pid, number, number, "order") for number, child in enumerate(children) if child in living
        ),
        ended=tuple(child.pid for child in children if child not in living),
    )


def _related(table: ProcessTable, member: int, only: Iterable[int]) -> bool:
    return any(pid == member or pid in table.above(member) or member in table.above(pid) for pid in only)


def _given(table: ProcessTable, pids: list[int]) -> Running:
    """Return a job of processes that the user named."""
    members = tuple(Member(pid, number, number, "given") for number, pid in enumerate(pids) if pid in table.processes)
    name = f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
    return Running(name, len(pids), None, local=True, launcher="none", members=members, ended=())
