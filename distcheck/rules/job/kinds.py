"""Ranks that are alike: what a rule asks of a rank's settings and software is asked once for all of them.

The ranks of a large job differ in their numbers and hardly in anything else. A test that does not look at these numbers
has the same result for all ranks of a kind, so `ranks_by` and `ranks_with` call it for the first one only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Resolution
from distcheck.rules.wording import about, grouped, once, same
from distcheck.selection.placement import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

    from distcheck.facts.base import Missing
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import ProcessFacts, RankFacts
    from distcheck.rules import Outcome
    from distcheck.rules.finding import Fault

K = TypeVar("K", bound="Hashable")

_NUMBERS = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "SLURM_TASK_PID", "OMPI_COMM_WORLD_NODE_RANK"}
    | {name for table in TABLES for name in (table.rank, table.local_rank, table.node_rank)}
)
"""Variables that number a rank or its node. Another one that differs between ranks makes more kinds, and no error."""
_LONGEST = 9
"""Digits; a longer number may be too large for torch."""


class Kind(NamedTuple):
    """Ranks that are alike."""

    first: RankFacts
    places: list[int]
    """Their indices in the job's ranks."""


@once
def kinds(job: Job) -> tuple[Kind, ...]:
    """Return the ranks in groups that are alike, by first rank.

    Alike are ranks with the same placement, variables, CPUs, backend and NCCL that ran, of processes with the same
    software, files, look-up of MASTER_ADDR and ancestors, on nodes with the same torch, Python, CPUs and kind of GPU.
    Of their numbers (RANK, SLURM_PROCID and so on) only whether they are set and numbers counts.
    """
    encode = msgspec.msgpack.Encoder().encode
    found: dict[bytes, Kind] = {}
    before: tuple[object, ...] | None = None
    numbers: Collection[str] = ()
    places: list[int] = []
    there: NodeFacts | None = None
    for place, (rank, process, node) in enumerate(job.placed):
        if node is not there:
            there, of_node = node, _of_node(node)
        facts = of_node, _of_process(process), _of_rank(rank, numbers)
        if facts != before:  # most are equal to those before, which is faster to see than what they are in bytes
            numbers = _NUMBERS.intersection(rank.environment)
            before = facts = of_node, _of_process(process), _of_rank(rank, numbers)
            places = found.setdefault(encode(facts), Kind(rank, [])).places
        places.append(place)
    return tuple(found.values())


def _of_rank(rank: RankFacts, numbers: Collection[str]) -> tuple[object, ...]:
    """Return what must be alike of a rank, with 0 for those of these variables that are numbers."""
    where, log = rank.placement, rank.run.nccl if rank.run else None
    variables = rank.environment.copy()
    for name in numbers:
        if (value := variables.get(name)) and len(value) <= _LONGEST and value.isdecimal():
            variables[name] = "0"
    return (
        variables, where.rank is None, where.local_rank is None, where.node_rank is None, where.world_size,
        where.local_world_size, where.master_addr, where.master_port, where.launcher, where.by_options,
        where.master_derived, rank.cpu_list, rank.cpus, log.version if isinstance(log, NcclLog) else "",
        rank.run.implementation if rank.run else "",
    )  # fmt: skip


def _of_process(process: ProcessFacts) -> tuple[object, ...]:
    found = process.master_resolution
    answer = (found.name, found.addresses) if isinstance(found, Resolution) else found
    return (
        process.installed, process.libraries, process.nccl_files, process.named_paths, process.agent,
        process.ancestors, process.etcd, process.memory_policy_error, process.hosts_listed, answer,
    )  # fmt: skip


def _of_node(node: NodeFacts) -> tuple[object, ...]:
    return node.torch, node.python, node.cpus, node.accelerator


def ranks_by(job: Job, of: Callable[[RankFacts], K | None]) -> dict[K, list[RankFacts]]:
    """Return the ranks grouped by `of`, in their order, without those of which it is None.

    It is called once for each kind, so it may look at no fact but those that `kinds` names.
    """
    places: dict[K, list[list[int]]] = {}
    for kind in kinds(job):
        value = of(kind.first)
        if value is not None:
            places.setdefault(value, []).append(kind.places)
    return {value: _merged(job, several) for value, several in places.items()}


def ranks_with(job: Job, test: Callable[[RankFacts], object]) -> list[RankFacts]:
    """Return the ranks for which `test` holds, in their order; it may look at what `kinds` names."""
    return _merged(job, [kind.places for kind in kinds(job) if test(kind.first)])


def each_rank(job: Job, judge: Callable[[RankFacts], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of ranks (``of=each_rank``), once for all ranks of which it says the same.

    It is asked once for each kind, so it may look at no fact but those that `kinds` names.
    """
    said: dict[object, Fault | Missing] = {}

    def answer(rank: RankFacts) -> Hashable | None:
        fault = judge(rank)
        key = same(fault)
        if fault is not None:
            said.setdefault(key, fault)
        return key

    for key, ranks in ranks_by(job, answer).items():
        yield from about(job, ranks, said[key])


def by_node(job: Job, ranks: Sequence[RankFacts]) -> list[Sequence[RankFacts]]:
    """Return ranks grouped by node."""
    if len(ranks) == len(job.ranks):
        return [here for node in job.nodes if (here := job.ranks_on(node))]
    return list(grouped(ranks, lambda rank: job.node_of(rank).key).values())


def _merged(job: Job, places: list[list[int]]) -> list[RankFacts]:
    own = places[0] if len(places) == 1 else sorted(place for several in places for place in several)
    return [job.ranks[place] for place in own] if len(own) < len(job.ranks) else list(job.ranks)
