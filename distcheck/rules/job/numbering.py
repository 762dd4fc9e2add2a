"""The rank that each process should have, where some have none of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from distcheck.rules.job.settings import TORCH_READS
from distcheck.rules.job.world import duplicates, out_of_range, worlds
from distcheck.rules.wording import grouped, once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_MOST = 8
"""Most processes that get a command each."""
Numbering = Literal["world too small", "from one", "complete", "unknown"]


@once
def numbering(job: Job) -> Numbering:
    """Return what is wrong with the ranks as a whole, as far as the processes that came show it."""
    sizes, have, came = worlds(job), {r.placement.rank for r in job.ranks}, len(job.ranks)
    if len(sizes) != 1 or not job.met or came < 2:
        return "unknown"
    (world,) = sizes
    if len(have) > world and 0 in have and None not in have:
        return "world too small"
    if came != world:
        return "unknown"
    return "from one" if have == set(range(1, world + 1)) else "complete"


@once
def renumbered(job: Job) -> dict[int, int]:
    """Return the right rank of each process that needs another one, by its index in the job's ranks.

    Empty unless as many processes came as the world has ranks: only then the missing ranks are theirs.
    """
    kind = numbering(job)
    if kind == "from one":
        return {place: r.placement.rank - 1 for place, r in enumerate(job.ranks) if r.placement.rank is not None}
    if kind != "complete":
        return {}
    beyond = {id(r) for r in out_of_range(job)} | {id(r) for r in job.ranks if r.placement.rank is None}
    beyond |= {id(r) for several in duplicates(job).values() for r in in_order(job, several)[1:]}
    places = [place for place, r in enumerate(job.ranks) if id(r) in beyond]
    free = job.missing_ranks
    return dict(zip(places, free, strict=True)) if len(places) == len(free) else {}


def right_rank(job: Job, rank: RankFacts) -> int | None:
    """Return the rank that a process should have, None if it has it or it is not known."""
    return next((right for place, right in renumbered(job).items() if job.ranks[place] is rank), None)


def in_order(job: Job, ranks: list[RankFacts]) -> list[RankFacts]:
    """Return ranks by the arrival of their processes: whoever came first keeps its rank."""
    return sorted(ranks, key=lambda r: job.process_of(r).arrived_seconds or 0.0)


def rank_commands(job: Job, ranks: list[RankFacts]) -> tuple[str, ...]:
    """Return a command for each of these processes that needs another rank; none if unknown, or if they are many."""
    known = renumbered(job)
    wanted = [(r, known[place]) for place, r in enumerate(job.ranks) if place in known and r in ranks]
    if len(wanted) > _MOST:
        return ()
    return tuple(f"{assigned(r, 'RANK', str(right))}  # {shell_of(job, r)}" for r, right in wanted)


def free_ranks(job: Job, ranks: list[RankFacts]) -> tuple[str, ...]:
    """Return commands that give each of these processes one of the missing ranks, whose own may still come."""
    pairs = zip(ranks[:_MOST], job.missing_ranks, strict=False)
    return tuple(f"{assigned(r, 'RANK', str(free))}  # {shell_of(job, r)}" for r, free in pairs)


def shell_of(job: Job, rank: RankFacts) -> str:
    """Return where a process runs, as its user finds it: node2, terminal pts/3; without a terminal, its pid."""
    process, node = job.process_of(rank), job.node_of(rank)
    there = [p for p in job.processes if p.terminal == process.terminal and p.node == process.node]
    own = process.terminal and len(there) == 1
    return f"{node.name}, {f'terminal {process.terminal}' if own else f'process {process.pid}'}"


def by_formula(job: Job) -> str:
    """Return the command that numbers all ranks by node and local rank; it fails where a number is not set."""
    nodes = grouped(job.ranks, lambda r: job.node_of(r).name)
    here = max(map(len, nodes.values()), default=1)
    if len(nodes) == 1 and here == (job.world_size or here):
        return "export RANK=${LOCAL_RANK:?}"
    return f"export RANK=$((${{NODE_RANK:?}} * {here} + ${{LOCAL_RANK:?}}))"


def assigned(rank: RankFacts, variable: str, value: str) -> str:
    """Return the command that sets a variable; the option instead, where an option gave the value."""
    option = f"--{variable.lower().replace('_', '-')}"
    if rank.placement.by_options and variable in TORCH_READS and variable not in rank.environment:
        return f"# pass {option} {value}"
    return f"export {variable}={value}"
