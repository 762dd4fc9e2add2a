"""Joins the reports of a group's processes into the one result that the search judges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean, median

from distcheck.collectives.plan import Computed, Timing, bus_factor
from distcheck.facts.members import Members
from distcheck.facts.rank import RankRun
from distcheck.isolation.round import Compute, Ended, NodeGroup, Rail, Result
from distcheck.rollcall.protocol import RunReport


def result_of(
    number: int,
    group: NodeGroup,
    members: Members,
    reports: Mapping[str, RunReport],
    backend: str,
    operation: str = "all_reduce",
) -> Result:
    """Return the result of group `number`, its speed that of `operation`.

    A process's report counts for its own ranks only.
    """
    parts = members.parts(group.nodes)
    size = sum(map(len, parts.values()))
    runs: dict[int, RankRun] = {}
    computed: dict[int, Computed] = {}
    timings: dict[str, dict[int, Timing]] = {}
    for uid, report in reports.items():
        runs |= {rank: run for rank, run in report.runs.items() if rank in parts[uid]}
        computed |= {rank: c for rank, c in report.computed.items() if rank in parts[uid]}
        for rank, timing in report.timings:
            if rank in parts[uid]:
                timings.setdefault(timing.op, {})[rank] = timing
    node_of = {rank: node for node in group.nodes for here in members.by_node[node].values() for rank in here}
    wrong = {rank for rank, run in runs.items() if any(run.wrong.values())}
    wrong |= {rank for rank, c in computed.items() if c.wrong}
    whole = timings.get(operation, {})
    seconds = _seconds(whole.values(), size)
    factor = bus_factor(operation, size)
    moved = next(iter(whole.values())).bytes if seconds else 0
    return Result(
        group=number,
        ended=_ended(runs, wrong, size),
        seconds=seconds,
        busbw_GBps=moved / seconds / 1e9 * factor if seconds and factor else None,
        like=members.like(group.nodes),
        rails=_rails(members.facing(group.nodes), runs, timings.get("send_recv", {})),
        compute=tuple(
            Compute(
                node_of[rank],
                members.local_ranks.get(rank, 0),
                c.matmul_seconds,
                c.copy_seconds,
                members.device(node_of[rank], rank, backend),
            )
            for rank, c in computed.items()
        ),
        said=tuple(
            f"{node_of[rank]}: {words}" for rank, run in runs.items() if (words := _words(run, wrong=rank in wrong))
        ),
    )


def _rails(
    facing: Mapping[int, tuple[int, int]], runs: Mapping[int, RankRun], timings: Mapping[int, Timing]
) -> tuple[Rail, ...]:
    """Return how the ranks of two nodes fared that face each other, by their local rank."""
    found: list[Rail] = []
    for local_rank, pair in facing.items() if timings else ():
        if any(runs[rank].wrong.get("send_recv") for rank in pair if rank in runs):
            found.append(Rail(local_rank, "wrong"))
        elif seconds := _seconds([timings[rank] for rank in pair if rank in timings], len(pair)):
            found.append(Rail(local_rank, "passed", timings[pair[0]].bytes / seconds / 1e9))
        else:
            found.append(Rail(local_rank, "untested"))
    return tuple(found)


def _seconds(timings: Collection[Timing], ranks: int) -> float | None:
    """Return the mean over the ranks, None where not all of them have a figure."""
    return fmean(median(t.bursts) for t in timings) if len(timings) == ranks > 0 else None


def _ended(runs: Mapping[int, RankRun], wrong: set[int], size: int) -> Ended:
    """Return how a group's test ended, the worst outcome first.

    Without a store the other processes do not run, so missing runs count as failed.
    """
    outcomes = {run.outcome for run in runs.values()}
    if wrong:
        return "wrong"
    if outcomes == {"done"}:
        return "passed" if len(runs) == size else "failed"
    if outcomes & {"failed", "died", "not started"}:
        return "failed"
    return "hung"


def _words(run: RankRun, *, wrong: bool) -> str:
    """Return how a rank failed, as text; empty if it passed."""
    if wrong:
        return f"wrong numbers in {', '.join(op for op, count in run.wrong.items() if count) or 'its own matmul'}"
    if run.outcome == "done":
        return ""
    return f"{run.outcome} in {run.step}" + (f": {run.detail}" if run.detail else "")
