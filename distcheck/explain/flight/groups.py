"""Lines up the calls of all ranks by process group and number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from distcheck.explain.flight.loading import DEFAULT, FlightCall, FlightDump, ranks_in

_SAME_INPUTS = frozenset({
    "all_reduce", "allreduce", "allreduce_coalesced", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop",
    "all_gather", "_all_gather_base", "all_gather_single", "gather",
})  # fmt: skip
_SAME_OUTPUTS = frozenset({"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "scatter"})
"""Collectives whose tensors have as many elements on all ranks; source: torch/distributed/flight_recorder/components/
types.py (Op.match)."""


class Like(NamedTuple):
    """What must be the same on all ranks that call a collective."""

    names: tuple[str, ...]
    elements: tuple[int, ...]
    dtypes: tuple[str, ...]


class FlightGroup:
    """The calls of the ranks of one process group."""

    def __init__(self, backend: str, name: str, description: str, ranks: tuple[int, ...]) -> None:
        self.backend, self.name, self.description = backend, name, description
        self.ranks = ranks
        """Its ranks, in their order in the group; empty while unknown."""
        self.calls: dict[int, dict[Like, list[int]]] = {}
        """The ranks that called a collective, by its number and by what they called."""
        self.samples: dict[tuple[int, Like], FlightCall] = {}
        """One call of each kind."""
        self.last: dict[int, int] = {}
        """The number of the last collective that each rank called; 0 if it called none."""
        self.waiting: dict[int, FlightCall] = {}
        """The first collective that a rank has called and that has not ended."""
        self.batched = False
        """Whether ranks sent or received in batches: these count as collectives, on the ranks that take part only."""

    @property
    def label(self) -> str:
        """Return the name by which a user knows the group."""
        if self.description == DEFAULT:
            return "the default group"
        return f"group {self.description or self.name}" + (
            f" ({self.name})" if self.description not in {"", self.name} else ""
        )

    def called(self, seq: int) -> dict[int, FlightCall]:
        """Return for each rank that called a collective a call of its kind."""
        kinds = self.calls.get(seq, {})
        return {rank: self.samples[seq, like] for like, ranks in kinds.items() for rank in ranks}


class Flight(NamedTuple):
    """What all dumps tell."""

    groups: tuple[FlightGroup, ...]
    ranks: tuple[int, ...]
    """The ranks with a dump."""
    current: Mapping[int, FlightCall]
    """The call that each rank waits in, or else its last."""
    missing: tuple[int, ...]
    """Ranks of the job without a dump."""

    @property
    def labels(self) -> dict[tuple[str, str, str], str]:
        """The label of each group, by backend, name and description."""
        return {(group.backend, group.name, group.description): group.label for group in self.groups}


def lined_up(dumps: Iterable[FlightDump], world: frozenset[int] = frozenset()) -> Flight:
    """Return the calls of all dumps by group; `world` are the ranks that the job is known to have."""
    groups: dict[tuple[str, str, str, str], FlightGroup] = {}
    texts: set[str] = set()
    files: dict[int, str] = {}
    current: dict[int, FlightCall] = {}
    whole: set[int] = set()
    enqueued: dict[int, dict[str, int]] = {}
    defaults: dict[int, str] = {}
    known = set(world)
    for dump in dumps:
        files[dump.rank] = dump.file
        enqueued[dump.rank] = dump.enqueued
        defaults |= {dump.rank: dump.default} if dump.default is not None else {}
        whole |= {dump.rank} if dump.whole else set()
        texts |= set(dump.groups.values())
        for name, calls in _by_group(dump).items():
            if name not in groups:
                groups[name] = FlightGroup(*name[:3], ranks_in(name[3]))
            _add(groups[name], dump, calls)
        if dump.calls:
            open_ = [call for call in dump.calls if not call.ended]
            started = [call for call in open_ if call.state == "started"]  # a scheduled call waits behind it
            current[dump.rank] = (started or open_ or dump.calls[-1:])[0]
    known.update(*map(ranks_in, texts))
    known.update(range(max(files, default=-1) + 1))  # ranks have no gaps
    usual = next(iter(defaults.values()), "")
    unclear = {name[:3] for name in groups if name[3]} & {name[:3] for name in groups if not name[3]}
    for name, group in groups.items():
        if not group.ranks and group.description == DEFAULT:
            group.ranks = tuple(sorted(known))
        for rank in set(group.ranks) & files.keys():
            default = defaults.get(rank, usual) if group.description == DEFAULT else ""
            if default in enqueued[rank]:
                group.last[rank] = max(group.last.get(rank, 0), enqueued[rank][default])
            elif rank not in group.last and rank in whole and name[:3] not in unclear:
                group.last[rank] = 0
    return Flight(tuple(groups.values()), tuple(files), current, tuple(sorted(known - files.keys())))


def _by_group(dump: FlightDump) -> dict[tuple[str, str, str, str], list[FlightCall]]:
    """Return calls by group: two groups of one name differ in their ranks (split_group)."""
    found: dict[tuple[str, str, str], list[FlightCall]] = {}
    for call in dump.calls:
        found.setdefault((call.backend, call.group, call.description), []).append(call)
    texts = {name: text for name, text in dump.groups.items() if ranks_in(text)}
    return {(*name, texts.get(name[1], "")): calls for name, calls in found.items()}


def _add(group: FlightGroup, dump: FlightDump, calls: list[FlightCall]) -> None:
    by_number: dict[int, list[FlightCall]] = {}
    for call in calls:
        if not call.sent and call.seq <= 1 < max(by_number, default=0):  # the group was destroyed and made again
            by_number.clear()
        by_number.setdefault(call.seq, []).append(call)
    oldest = min(by_number)
    for number, together in by_number.items():
        group.batched |= any(call.sent for call in together) and any("coalesced" in call.name for call in together)
        collectives = [call for call in together if not call.sent]
        if not collectives:
            continue
        group.last[dump.rank] = max(number, group.last.get(dump.rank, 0))
        # The oldest number of a full buffer may have lost its first calls.
        cut = not dump.whole and number == oldest and "coalesced" in together[-1].name
        if not cut:
            like = _like(collectives)
            group.calls.setdefault(number, {}).setdefault(like, []).append(dump.rank)
            group.samples.setdefault((number, like), collectives[0])
        if (waits := [call for call in collectives if not call.ended]) and (
            dump.rank not in group.waiting or number < group.waiting[dump.rank].seq
        ):
            group.waiting[dump.rank] = next((call for call in waits if call.state == "started"), waits[0])


def _like(calls: list[FlightCall]) -> Like:
    elements = [
        call.elements[call.name in _SAME_OUTPUTS] if call.name in _SAME_INPUTS | _SAME_OUTPUTS else -1 for call in calls
    ]
    dtypes = calls[0].dtypes if calls[0].name in _SAME_INPUTS else ()
    return Like(tuple(call.name for call in calls), tuple(elements), dtypes)
