"""Names of ranks, nodes and launchers in messages; comparison of groups of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sized
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.quantities import size
from distcheck.facts.ranges import numbered
from distcheck.rules.finding import Fault, Fix, NotChecked, Owner, Scope, Severity
from distcheck.selection.placement import Table, find_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.placement import Launcher
    from distcheck.facts.rank import RankFacts
    from distcheck.facts.storage import Space
    from distcheck.rules import Outcome

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

STARTERS: Mapping[Launcher, str] = {
    "torchrun": "torchrun",
    "slurm": "srun",
    "openmpi": "mpirun",
    "hydra": "mpiexec",
    "mvapich": "mpirun_rsh",
    "pals": "mpiexec",
    "jsrun": "jsrun",
    "horovod": "horovodrun",
}
"""The command that starts the ranks under a launcher."""


def once(work: Callable[[Job], T]) -> Callable[[Job], T]:
    """Cache the result of `work` in the job, for all rules that need it."""
    name = f"{work.__module__}.{work.__qualname__}"

    @wraps(work)
    def kept(job: Job) -> T:
        found: dict[str, T] = vars(job)  # cached properties are stored here too
        if name not in found:
            found[name] = work(job)
        return found[name]

    return kept


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items grouped by key, in the order in which keys first occur."""
    groups: defaultdict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def listed(words: Sequence[str], most: int = 4) -> str:
    """Join words with commas and "and"; beyond `most`, return the first and a count."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def brief(words: str, most: int = 80) -> str:
    """Return the first line of another program's output, cut to `most` characters."""
    line = next(iter(words.strip().splitlines()), "")
    return line if len(line) <= most else line[: most - 1] + "…"


def free_space(space: Space) -> str:
    """Return how much of a file system is free: 3.5 MiB free of 8 MiB."""
    return f"{size(space.free_bytes, 3)} free of {size(space.total_bytes, 3)}"


def by_name(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return evidence with one entry per name; a repeated name gets a further line."""
    evidence: dict[str, str] = {}
    for name, line in lines:
        evidence[name] = f"{evidence[name]}\n{line}" if name in evidence else line
    return evidence


def is_what(name: str, values: Sequence[str]) -> str:
    """Return a name with what it stands for: node1 is 10.0.0.1; "is 10.0.0.1" if it is that itself."""
    return f"is {name}" if list(values) == [name] else f"{name} is {listed(values)}"


def are(things: Sized) -> str:
    """Return "is" for one thing, else "are"."""
    return "is" if len(things) == 1 else "are"


def numbers_of(ranks: Iterable[RankFacts]) -> tuple[int, ...]:
    """Return the numbers of ranks, sorted, without those whose number is unknown."""
    return tuple(sorted({r.placement.rank for r in ranks if r.placement.rank is not None}))


def rank_name(job: Job, rank: RankFacts) -> str:
    """Return a rank, or its process if its number is unknown: rank 1, process 123 on node2."""
    return processes(job, [rank]) if rank.placement.rank is None else f"rank {rank.placement.rank}"


def nodes_of(job: Job, ranks: Iterable[RankFacts]) -> tuple[str, ...]:
    """Return the names of the nodes of ranks."""
    return tuple(dict.fromkeys(job.node_of(r).name for r in ranks))


def process_name(job: Job, rank: RankFacts) -> str:
    """Return a short name of the process that reports a rank, for lists and after a rank: node2 pid 123."""
    return f"{job.node_of(rank).name} pid {job.process_of(rank).pid}"


def processes(job: Job, ranks: Iterable[RankFacts]) -> str:
    """Return the processes of ranks for a sentence: process 123 on node2, processes 1 and 2 on node1."""
    parts = []
    for node, several in grouped(ranks, lambda r: job.node_of(r).name).items():
        pids = list(dict.fromkeys(str(job.process_of(r).pid) for r in several))
        parts.append(f"{'process' if len(pids) == 1 else 'processes'} {listed(pids)} on {node}")
    return listed(parts)


def named(job: Job, ranks: Sequence[RankFacts]) -> str:
    """Return ranks for a message: rank 1 (node2 pid 123), ranks 0-7 (node1 and node2)."""
    nameless = [r for r in ranks if r.placement.rank is None]
    known = [r for r in ranks if r.placement.rank is not None]
    parts = []
    if known:
        where = process_name(job, known[0]) if len(known) == 1 else listed(nodes_of(job, known))
        parts.append(f"{numbered(numbers_of(known))} ({where})")
    if nameless:
        parts.append(processes(job, nameless))
    return listed(parts)


def found(
    job: Job,
    ranks: Sequence[RankFacts],
    message: str,
    fix: Fix | None = None,
    *,
    severity: Severity | None = None,
    scope: Scope | None = None,
    owner: Owner | None = None,
    confirmed: bool = True,
    evidence: Mapping[str, Any] | None = None,
    values: Mapping[str, Sequence[str]] | None = None,
) -> Fault:
    """Return a fault of these ranks and their nodes; `values` go into the commands of the docstring's fix."""
    return Fault(
        message,
        fix,
        dict(evidence or {}),
        severity,
        scope,
        owner,
        confirmed,
        ranks=numbers_of(ranks),
        nodes=nodes_of(job, ranks),
        values={name: tuple(those) for name, those in (values or {}).items()},
    )


def same(fault: Fault | Missing | None) -> bytes | None:
    """Return what is equal for faults that one finding reports: all but the fix, which is the first one's."""
    if isinstance(fault, Fault):
        return msgspec.msgpack.encode((fault.message, fault.evidence, fault.severity, fault.scope, fault.owner))
    return None if fault is None else fault.reason.encode()


def about(job: Job, ranks: Sequence[RankFacts], said: Fault | Missing) -> Iterator[Outcome]:
    """Yield what a rule says of these ranks, whose names begin the message."""
    if isinstance(said, Missing):
        yield from unread(job, ((rank, said.reason) for rank in ranks))
        return
    message = f"{named(job, ranks)}: {said.message}"
    yield msgspec.structs.replace(said, message=message, ranks=numbers_of(ranks), nodes=nodes_of(job, ranks))


def merged(job: Job, answers: Iterable[tuple[Sequence[RankFacts], Fault | Missing | None]]) -> Iterator[Outcome]:
    """Yield what a rule says of groups of ranks, once for all of which it says the same."""
    given = [(ranks, answer) for ranks, answer in answers if answer is not None]
    for several in grouped(given, lambda pair: same(pair[1])).values():
        yield from about(job, [rank for ranks, _ in several for rank in ranks], several[0][1])


def unread(job: Job, unseen: Iterable[tuple[RankFacts, str]]) -> Iterator[NotChecked]:
    """Yield the ranks of which a fact is missing, one entry per reason; this never fails a run."""
    for reason, pairs in grouped(unseen, lambda pair: pair[1]).items():
        ranks = [rank for rank, _ in pairs]
        yield NotChecked(reason=reason, ranks=numbers_of(ranks), nodes=nodes_of(job, ranks), required=False)


def odd_ones(groups: Mapping[K, list[RankFacts]]) -> list[RankFacts]:
    """Return the ranks outside the largest group; all ranks if there is a tie."""
    sizes = sorted((len(g) for g in groups.values()), reverse=True)
    tie = len(sizes) > 1 and sizes[0] == sizes[1]
    return [r for g in groups.values() if tie or len(g) < sizes[0] for r in g]


def majority(votes: Mapping[K, Sized], of: int | None = None) -> K | None:
    """Return the value with more than half of the votes and at least two, else None.

    If a voter can vote for several values, `of` is the number of voters.
    """
    total = sum(map(len, votes.values())) if of is None else of
    largest = sorted(votes, key=lambda value: len(votes[value]))[-2:]
    if not largest or (len(largest) == 2 and len(votes[largest[0]]) == len(votes[largest[1]])):
        return None
    count = len(votes[largest[-1]])
    return largest[-1] if count > 1 and 2 * count > total else None


def spread(job: Job, variable: str, groups: Mapping[K, list[RankFacts]]) -> str:
    """Return which ranks have which value of a variable, the most common value first."""
    in_order = sorted(groups.items(), key=lambda item: -len(item[1]))
    return "; ".join(
        f"{named(job, ranks)} {'has' if len(ranks) == 1 else 'have'} {variable} {value}" for value, ranks in in_order
    )


def table_of(rank: RankFacts) -> Table | None:
    """Return the variable table of the launcher that started a rank."""
    return find_table(rank.environment)


def starter(rank: RankFacts) -> str:
    """Return the command that started a rank, '' if no launcher did."""
    table = table_of(rank)
    return STARTERS[table.launcher] if table else ""
