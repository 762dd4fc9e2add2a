"""The training steps of a job's ranks, grouped by what they show, for the rules about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from distcheck.facts.base import Missing
from distcheck.facts.training import Training
from distcheck.rules.collectives.endings import who
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import found, grouped, nodes_of, numbers_of, once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.facts.training import WrongTensor
    from distcheck.rules.finding import Fault

K = TypeVar("K")
_MOST = 8
"""Ranks, or groups of ranks, in the evidence."""


class Stepped(NamedTuple):
    """A rank and what its training steps did."""

    rank: RankFacts
    training: Training


@once
def trained(job: Job) -> dict[str, list[Stepped]]:
    """Return the ranks that trained, by the way in which they did."""
    return {
        way: [Stepped(rank, run) for rank, run in ranks if isinstance(run, Training)]
        for way, ranks in _by_way(job).items()
    }


@once
def _by_way(job: Job) -> dict[str, list[tuple[RankFacts, Training | Missing]]]:
    ways: dict[str, list[tuple[RankFacts, Training | Missing]]] = {}
    for rank in job.ranks:
        for way, training in (rank.run.training if rank.run else {}).items():
            ways.setdefault(way, []).append((rank, training))
    return ways


def untrained(job: Job) -> Iterator[NotChecked]:
    """Yield the ranks that took no training steps though they were requested, and why."""
    ran = [rank for rank in job.ranks if rank.run is not None]
    without = [rank for rank in ran if rank.run and not rank.run.training]
    missing = [
        (rank, f"{way}: {run.reason}")
        for way, ranks in _by_way(job).items()
        for rank, run in ranks
        if isinstance(run, Missing)
    ]
    if without and not any(rank.run and rank.run.outcome != "done" for rank in ran):
        missing += [(rank, "no training step was taken") for rank in without]
    for reason, pairs in grouped(missing, lambda pair: pair[1]).items():
        unseen = [rank for rank, _ in pairs]
        yield NotChecked(
            reason=f"--step: {reason}",
            ranks=numbers_of(unseen),
            nodes=nodes_of(job, unseen),
            required=": torch " not in reason,  # a torch that lacks a way to train will not train in it
        )


def usual_and_other(groups: Mapping[K, list[Stepped]]) -> tuple[K, K]:
    """Return what the largest of two or more groups of ranks has, and the first of the others."""
    usual = max(groups, key=lambda key: len(groups[key]))
    return usual, next(key for key in groups if key != usual)


def differing(job: Job, groups: Mapping[K, list[Stepped]], what: str, shown: Callable[[K], str]) -> Fault:
    """Return a finding about ranks that differ from the largest group; `shown` says what a group has, as evidence.

    They are at fault if more than half of the ranks, and at least two, agree. Otherwise any of them may be.
    """
    rest = groups[usual_and_other(groups)[0]]
    odd = [one for members in groups.values() if members is not rest for one in members]
    sure = len(rest) > max(1, len(odd))
    others = named(job, rest) if len(rest) == 1 else f"the other {len(rest)} ranks"
    evidence = {named(job, group): shown(key) for key, group in list(groups.items())[:_MOST]}
    ranks = odd if sure else [*rest, *odd]
    return fault(job, ranks, f"{named(job, odd)}, unlike {others}, {what}", evidence, confirmed=sure)


def fault(
    job: Job, ranks: Sequence[Stepped], message: str, evidence: Mapping[str, Any] | None = None, **fields: Any
) -> Fault:
    """Return a finding about ranks."""
    return found(job, [one.rank for one in ranks], message, evidence=evidence, **fields)


def named(job: Job, ranks: Sequence[Stepped]) -> str:
    """Return ranks with their nodes for a message: rank 1 (node2)."""
    return who(job, [one.rank for one in ranks])


def scaled(ranks: Sequence[Stepped]) -> float | None:
    """Return the one factor by which the averages of all ranks are wrong, None without one."""
    scales = {one.training.scale for one in ranks if one.training.parameters}
    return next(iter(scales)) if len(scales) == 1 and ranks else None


def states_of(ranks: Sequence[Stepped]) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return the digests of all parameters of each rank (by its id), by the point in time, earliest first."""
    states: dict[str, dict[int, tuple[str, ...]]] = {}
    for one in ranks:
        parameters = one.training.parameters
        if parameters and parameters[0].wrapped:
            states.setdefault("before the first step", {})[id(one)] = tuple(p.wrapped for p in parameters)
        for number in range(min((len(p.stepped) for p in parameters), default=0)):
            states.setdefault(f"after step {number + 1}", {})[id(one)] = tuple(p.stepped[number] for p in parameters)
    return states


def first_wrong(wrong: Sequence[WrongTensor]) -> str:
    """Return the first wrong tensor in words: 5 of 128 elements of layers.0.bias in step 1, 2.5 instead of 5."""
    one = wrong[0]
    return (
        f"{one.wrong} of {one.elements} elements of {one.tensor} in step {one.step}, the first {one.got} instead of "
        f"{one.expected}"
    )


def wrongs(ranks: Sequence[Stepped], of: Callable[[Training], Sequence[WrongTensor]]) -> dict[str, str]:
    """Return the wrong tensors of the first ranks, as evidence."""
    return {
        f"rank {one.rank.placement.rank}": "; ".join(first_wrong([wrong]) for wrong in of(one.training)[:_MOST])
        for one in ranks[:_MOST]
    }
