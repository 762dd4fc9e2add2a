"""What reports show of a running job: who holds it up, and what each rank does."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import count, duration
from distcheck.facts.ranges import fold, numbered
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.document import RankRow
from distcheck.report.schema.hang import HangAnswer, OddRank, SeenGpu, SeenRank, WaitingRanks
from distcheck.report.schema.part import part_of
from distcheck.report.tables import Column, Grid, grid
from distcheck.rules.hang.gpus import readings
from distcheck.rules.hang.judging import HangJudgement, answer_of
from distcheck.rules.hang.sentences import doing
from distcheck.rules.hang.states import RankState, ranks_of
from distcheck.rules.wording import grouped

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.report.schema.document import Status

_MOST_PIDS = 3
_ROWS, _MOST_ODD, _MOST_RANGES = 24, 8, 4
_STARTED = {"by hand": "started by hand", "none": "named by --pid", "spawn": "multiprocessing"}


def hang_answer(job: Job) -> HangAnswer | None:
    """Return the answer for the report, None for other commands."""
    if job.hang is None:
        return None
    found = answer_of(job)
    return HangAnswer(
        answer=found.word,
        job=job.hang.name,
        world_size=job.hang.world_size,
        seconds=round(found.seconds, 3),
        odd=tuple(_odd(found)),
        waiting=tuple(
            WaitingRanks(fold(ranks_of(group)), at, operation)
            for (operation, at), group in grouped(found.waiting, lambda s: (s.operation, s.place.at)).items()
        ),
        missing=found.missing,
        unseen=found.unseen,
        reason=found.reason,
        ranks=tuple(_seen(state) for state in found.states),
    )


def rank_statuses(job: Job) -> tuple[RankRow, ...]:
    """Return the ranks for the part of the report that all commands have."""
    found = answer_of(job)
    odd = {id(state.process) for state in found.odd}
    bad: Status = "error" if found.word == "hung" else "warning"
    unknown = found.word == "cannot tell"
    rows = [
        RankRow(
            s.process.rank, s.process.node, s.process.local_rank, None, "-", None,
            bad if id(s.process) in odd else "unknown" if unknown else "ok",
        )
        for s in found.states
        if s.process.rank not in found.missing
    ]  # fmt: skip
    return (*rows, *(RankRow(rank, None, None, None, "-", None, "missing") for rank in found.missing))


def hang_table(job: Job, *, everything: bool) -> Grid:
    """Return the table of the ranks: those that hold up the others first, alike ones and silent nodes in one row."""
    found = answer_of(job)
    odd = {id(state.process) for state in found.odd}
    first = [s for s in found.states if id(s.process) in odd]
    rest = [s for s in found.states if id(s.process) not in odd]
    alike = [*(grouped(first, _alike).values() if len(first) > _MOST_ODD else ([s] for s in first))]
    alike += grouped(rest, _alike).values()
    rows = [_row(group) for group in ([[s] for s in (*first, *rest)] if everything else alike)]
    nodes = job.hang.nodes if job.hang else ()
    silent = grouped((n for n in nodes if n.problem), lambda n: n.problem.replace(n.name, "…"))
    without = [
        ("?", fold_nodes(n.name for n in those), None, why, None, None, None, None) for why, those in silent.items()
    ]
    most = len(rows) if everything else max(0, _ROWS - len(without))
    note = f"{len(rows) - most} more rows; --all-ranks shows all" if len(rows) > most else ""
    names = ("rank", "node", "process", "state", "GPU", "at", "waits in", "function")
    columns = (
        Column(
            name,
            itemgetter(n),
            "number" if n in {0, 2} else "text",
            shown=name not in {"GPU", "function"} or any(row[n] for row in rows),
            spare=name in {"process", "GPU"},
        )
        for n, name in enumerate(names)
    )
    return grid(columns, [*rows[:most], *without], note)


def _row(group: list[RankState]) -> tuple[str | None, ...]:
    s = group[0]
    at = f"{s.place.at} {s.place.function}".strip()
    nodes = fold_nodes(s.process.node for s in group)
    gpus = readings([state.process for state in group]) or None
    ranks = fold(ranks_of(group), _MOST_RANGES) or "?"
    return ranks, nodes, _pids(group), _letter(s), gpus, at or None, s.operation or None, _native(s)


def hang_seen(job: Job) -> str:
    """Return what was seen of a job that is not hung."""
    found = answer_of(job)
    if any(s.kind == "idle" for s in found.states) and not any(s.moves for s in found.states):
        idle = next(s for s in found.states if s.kind == "idle")
        return f"rank {idle.process.rank} is a server that waits for a request at {idle.place.at or 'its socket'}"
    moving = sum(1 for s in found.states if s.moves)
    ranks = count(len(found.states), "rank")
    made = f"{moving} of {ranks} made progress in {duration(found.seconds)}"
    if not moving:
        made = f"{ranks} sleep or poll, and read or wrote in between"
    return f"{made}; none keeps the others waiting"


def hang_checked(job: Job) -> str:
    """Return what was looked at: the job, its ranks and nodes."""
    hang = job.hang
    if hang is None or not hang.name:
        return f"distcheck {job.distcheck} hang"
    found = answer_of(job)
    seen, world = len(found.states), hang.world_size or len(found.states)
    ranks = count(seen, "rank") if seen == world else f"{seen} of {count(world, 'rank')}"
    missing = f", without {numbered(found.unseen, 4)}" if found.unseen else ""
    where = fold_nodes({node.name for node in hang.nodes})
    program = next((rank.program for rank in hang.ranks if rank.program), "job")
    by_start = ", numbered by their start" if any(rank.numbered == "order" for rank in hang.ranks) else ""
    began = f"distcheck {job.distcheck} hang: {program} at {hang.name}, {_STARTED.get(hang.launcher, hang.launcher)}"
    return f"{began}: {ranks} on {where}{missing}{by_start}"


def _odd(found: HangJudgement) -> list[OddRank]:
    gone = [OddRank(rank, None, None, "", "", "-", "no process") for rank in found.missing if found.word == "hung"]
    return gone + [
        OddRank(
            s.process.rank, s.process.node, s.process.pid, s.place.at, s.place.function, s.last.state, doing(s),
        )
        for s in found.odd
    ]  # fmt: skip


def _seen(s: RankState) -> SeenRank:
    p = s.process
    gpus = p.gpus if isinstance(p.gpus, tuple) else ()
    return SeenRank(
        p.rank, p.node, p.pid, s.place.at, s.place.function, s.place.path, s.last.state, s.last.waits_in, s.operation,
        s.kind, s.moves, round(s.seconds, 3),
        tuple(part_of(SeenGpu, g, xids=tuple(x.number for x in g.xids)) for g in gpus),
        tuple(f"{f.function} ({f.file})" for f in p.native) if isinstance(p.native, tuple) else (),
    )  # fmt: skip


def _native(s: RankState) -> str | None:
    """Return the innermost function of a library in which a rank is, with --native."""
    frames = s.process.native
    if isinstance(frames, Missing):
        return f"unknown: {frames.reason}"
    beyond = [frame for frame in frames if not frame.file.startswith(("libc.", "libpthread"))]
    return next((f"{frame.function} ({frame.file})" for frame in beyond or frames), None)


def _alike(s: RankState) -> tuple[str, ...]:
    return s.operation, s.place.at, _letter(s) if not s.operation else ""


def _letter(s: RankState) -> str:
    last = s.last
    return f"{last.state}, {last.waits_in if last.state == 'D' and last.waits_in else f'CPU {100 * s.busy:.0f} %'}"


def _pids(group: list[RankState]) -> str:
    pids = [str(s.process.pid) for s in group]
    return ",".join(pids) if len(pids) <= _MOST_PIDS else "…"
