"""Tells from the watchdog's lines of all ranks what they prove: who is behind, or in another collective."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal, TypeVar

import msgspec

from distcheck.explain.places import When
from distcheck.explain.waits import Call, LoggedGroup, Waits
from distcheck.facts.ranges import numbered
from distcheck.rules.wording import are, grouped, listed

K = TypeVar("K", bound=Hashable)

_NOT_COMPARED = frozenset({"", "SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"})
"""Ranks call these with others, and torch numbers single sends and receives apart from collectives."""
_UNEVEN = frozenset({"ALLTOALL", "ALLTOALL_BASE"})
"""Each rank may give other sizes."""
_BY_INPUT, _BY_OUTPUT = frozenset({"REDUCE", "GATHER"}), frozenset({"SCATTER", "BROADCAST"})
"""Only the root has the other tensor."""
_DEFAULT_TIMEOUT_S = 600
_WATCHDOG_LATE_S = 2
"""How much later than its timeout the watchdog of a rank may report, since it looks now and then only."""
_MOST_SHOWN, _MOST_RANGES = 4, 8

Kind = Literal["mismatch", "behind", "missing", "together", "unclear"]


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """What the watchdog's lines prove about a collective that timed out or failed."""

    kind: Kind
    """mismatch: other collectives or sizes under one number; behind: a lower number; missing: no time-out of a rank;
    together: all in one collective."""
    says: str
    ranks: tuple[int, ...] = ()
    """The ranks that differ, are behind or report nothing; empty if no rank stands out."""


def hang(watch: Waits) -> Hang | None:
    """Return what the lines prove; None if no rank timed out, or they are of several groups or attempts."""
    waiting = _by_group(watch.time_outs)
    if not waiting:
        return None
    busy = frozenset(chain.from_iterable(waiting))
    behind = (_behind(own, watch, busy) for own in waiting)
    return mismatch(watch) or next(filter(None, behind), None) or _no_one_behind(waiting, watch, busy)


def mismatch(watch: Waits) -> Hang | None:
    """Return ranks in other collectives, or with other sizes; also where NCCL failed on some before the timeout."""
    for calls in ([*watch.time_outs, *watch.failed], watch.time_outs):  # the failed ones may be of another attempt
        if found := next(filter(None, map(_mismatch, _by_group(calls))), None):
            return found
    return None


def _by_group(calls: Sequence[Call]) -> list[dict[int, Call]]:
    """Return by group what each rank waits in; empty if the lines may be of several groups or attempts."""
    groups = grouped(_named_alike(_first_attempt(calls)), lambda seen: seen.group.key)
    waiting = [_first_of_each(own) for own in groups.values()]
    return waiting if all(waiting) else []


def _first_attempt(calls: Sequence[Call]) -> list[Call]:
    """Return the calls of the first attempt: a restarted job needs its start and a whole timeout until the next."""
    timed = [(_seconds(seen.time), seen) for seen in calls if seen.time]
    if not timed:
        return list(calls)
    start, first = min(timed, key=lambda pair: pair[0])
    end = start + (first.timeout_s or _DEFAULT_TIMEOUT_S) + _WATCHDOG_LATE_S
    return [seen for seen in calls if seen.time is None or _seconds(seen.time) < end]


def _named_alike(calls: Sequence[Call]) -> list[Call]:
    """Return calls without a group as ones of the default group, on condition, if no other group is named."""
    groups = {seen.group for seen in calls if seen.group.key}
    if len(groups) != 1 or not _is_default(*groups):
        return list(calls)
    supposed = next(iter(groups))._replace(everywhere=False)
    return [seen if seen.group.key else seen._replace(group=supposed) for seen in calls]


def _is_default(group: LoggedGroup) -> bool:
    return group.name == "default_pg" or (group.key in {"0", "PG 0"} and not group.name)


def _seconds(time: When) -> float:
    month, day, seconds = time
    return (month * 31 + day) * 86400 + seconds


def _first_of_each(calls: Sequence[Call]) -> dict[int, Call]:
    """Return of each rank of a group the collective that it waits in; empty if the lines may be of several groups."""
    first: dict[int, Call] = {}
    places: dict[int, int] = {}
    for seen in calls:
        known = first.setdefault(seen.rank, seen)
        if (known.number, known.operation) != (seen.number, seen.operation):
            if not (seen.group.everywhere and seen.time and known.time):
                return {}
            if (seen.number or 0) < (known.number or 0):
                first[seen.rank] = seen
        if not seen.group.everywhere and seen.group_rank not in {None, seen.rank}:
            return {}
        if seen.group_rank is not None and places.setdefault(seen.group_rank, seen.rank) != seen.rank:
            return {}
    return first


def _mismatch(waiting: dict[int, Call]) -> Hang | None:
    """Return ranks in other collectives, or with other sizes, under one number."""
    for number, same in sorted(grouped((w for w in waiting.values() if w.number is not None), _number).items()):
        by_operation = grouped(same, lambda seen: seen.operation)
        if not _NOT_COMPARED.isdisjoint(by_operation):
            continue
        where = f"number {number} of {_label(same[0].group)}"
        if len(by_operation) > 1:
            each = [f"{_ranks(own)} {name} ({_size(own)})" for name, own in _fewest_first(by_operation)]
            what = f"call different collectives: {listed(each, _MOST_SHOWN)}, each as {where}"
            return _differing(by_operation, same, what)
        (operation,) = by_operation
        by_size = grouped(same, _comparable_size)
        by_data = grouped(same, lambda seen: (*_comparable_size(seen), seen.dtype))
        if len(by_data) > 1 and operation not in _UNEVEN and not any(None in size for size in by_size):
            each = [f"{_ranks(own)} with {_size(own)}" for _, own in _fewest_first(by_data)]
            what = f"different {'sizes' if len(by_size) > 1 else 'types'}: {listed(each, _MOST_SHOWN)}, as {where}"
            return _differing(by_data, same, f"call {operation} with {what}")
    return None


def _differing(by: Mapping[K, list[Call]], same: list[Call], what: str) -> Hang:
    """Return a mismatch; the fewer ranks are named, or all where no side has fewer."""
    sides = sorted(by.values(), key=len)
    odd = same if len(sides[0]) == len(sides[-1]) else list(chain.from_iterable(sides[:-1]))
    return Hang(kind="mismatch", says=f"{_ranks(same)} {what}{_if_one_group(same)}", ranks=_numbers(odd))


def _behind(waiting: dict[int, Call], watch: Waits, busy: Collection[int]) -> Hang | None:
    """Return ranks that wait in an earlier collective, or that have not called the one in which others wait."""
    seen = list(waiting.values())
    if any(own.number is None or own.operation in _NOT_COMPARED for own in seen):
        return None
    label = _label(seen[0].group)
    sure = [own for own in seen if own.group.everywhere]
    number = min((own.number or 0 for own in sure), default=0)
    late = {
        status.rank
        for status in watch.statuses
        if sure
        and status.group == sure[0].group
        and status.at is None
        and status.rank not in busy
        and status.completed <= status.enqueued
        and (status.enqueued == number - 1 or (number == 1 and status.enqueued == -1))
    }
    if late:
        first = [own for own in sure if own.number == number]
        says = f"{named(late)} {are(late)} behind: {_it(late)} did not call collective {number} of {label};"
        says += f" {_ranks(first)} {_wait(first)} in {_collective(first)}"
        return Hang(kind="behind", says=says, ranks=tuple(sorted(late)))
    by_number = sorted(grouped(seen, _number).items())
    lowest = by_number[0][1]
    if len(by_number) == 1:
        return None
    ahead = [own for _, group in by_number[1:] for own in group]
    numbers = listed([f"{_ranks(own)} in {_collective(own)}" for _, own in by_number[1:]], _MOST_SHOWN)
    says = f"{_ranks(lowest)} {are(lowest)} behind in {label}: {_it(lowest)} {_wait(lowest)} in {_collective(lowest)}"
    says += f", {numbers}{_if_one_group([*lowest, *ahead])}"
    return Hang(kind="behind", says=says, ranks=_numbers(lowest))


def _no_one_behind(waiting: list[dict[int, Call]], watch: Waits, timed_out: Collection[int]) -> Hang:
    """Return in what the ranks wait, and the ranks that report no time-out."""
    calls = grouped(
        [own for group in waiting for own in group.values()], lambda own: (_label(own.group), own.number, own.operation)
    )
    waits = listed(
        [f"{_ranks(own)} {_wait(own)} in {_collective(own)} of {_label(own[0].group)}" for own in calls.values()],
        _MOST_SHOWN,
    )
    world = watch.world or max(watch.wrote) + 1
    of_all = any(_may_be_of_all(group) for group in waiting)
    missing = set(range(world)).difference(timed_out) if of_all else set()
    here, absent = missing & watch.wrote, missing - watch.wrote
    if missing:
        parts = [waits]
        if here:
            report = "reports" if len(here) == 1 else "report"
            when = "" if here.isdisjoint(seen.rank for seen in watch.time_outs) else " in this attempt"
            parts.append(
                f"{named(here)} {report} no time-out{when}: not in this collective, dead, stuck elsewhere, or ended"
                " before the report"
            )
        if absent:
            parts.append(
                f"the log has no line of {named(absent)}: not in this collective, dead or stuck elsewhere, or"
                " logged elsewhere"
            )
        return Hang(kind="missing", says="; ".join(parts), ranks=tuple(sorted(here or absent)))
    if len(timed_out) == 1:
        return Hang(kind="unclear", says=f"{waits}; the log has no time-out of another rank")
    if len(calls) > 1:
        return Hang(kind="unclear", says=f"{waits}; these lines do not show which of them is behind")
    whole = f"all {world} ranks" if watch.world and of_all else "these ranks"
    says = f"{waits}; {whole} are in the same collective, so none is behind: a GPU or the network may not finish it"
    return Hang(kind="together", says=says + _if_one_group([own for call in calls.values() for own in call]))


def _may_be_of_all(waiting: dict[int, Call]) -> bool:
    """Whether a group may have all ranks: it is the default one, or unnamed, and ranks have their numbers in it."""
    group = next(iter(waiting.values())).group
    return (not group.key or _is_default(group)) and all(
        own.group_rank in {None, rank} for rank, own in waiting.items()
    )


def _number(seen: Call) -> int:
    return seen.number or 0


def _comparable_size(seen: Call) -> tuple[int | None, ...]:
    """Return the sizes that all ranks of a collective must share."""
    if seen.operation in _BY_INPUT:
        return (seen.elements_in,)
    return (seen.elements_out,) if seen.operation in _BY_OUTPUT else (seen.elements_in, seen.elements_out)


def _fewest_first(groups: Mapping[K, list[Call]]) -> list[tuple[K, list[Call]]]:
    return sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0].rank))


def _collective(seen: Sequence[Call]) -> str:
    name = seen[0].operation or "a collective"
    return name if seen[0].number is None else f"{name} number {seen[0].number}"


def _size(seen: Sequence[Call]) -> str:
    """Return the elements of a call: 1 element, 4 elements in and 16 out."""
    into, out = seen[0].elements_in, seen[0].elements_out
    if into is None:
        return "unknown size"
    elements = " ".join(filter(None, (str(into), seen[0].dtype, "element" if into == 1 else "elements")))
    return elements if out in {None, into} else f"{elements} in and {out} out"


def _label(group: LoggedGroup) -> str:
    if _is_default(group):
        return "the default process group"
    if not group.key:
        return "a process group that the lines do not name"
    return f"process group {group.key.removeprefix('PG ')}" + (f" ({group.name})" if group.name else "")


def _if_one_group(seen: Sequence[Call]) -> str:
    return "" if all(own.group.everywhere for own in seen) else "; this holds if it is one group for all of them"


def _numbers(seen: Sequence[Call]) -> tuple[int, ...]:
    return tuple(sorted({own.rank for own in seen}))


def _ranks(seen: Sequence[Call]) -> str:
    return named(own.rank for own in seen)


def named(ranks: Iterable[int]) -> str:
    """Return ranks in a few ranges: rank 1, ranks 0-3,7."""
    return numbered(ranks, _MOST_RANGES)


def _wait(seen: Collection[object]) -> str:
    return "waits" if len(seen) == 1 else "wait"


def _it(ranks: Collection[object]) -> str:
    return "it" if len(ranks) == 1 else "they"
