"""Tells from the calls of all ranks which rank called another collective, is behind, or has no dump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from distcheck.explain.flight.groups import Flight, FlightGroup
from distcheck.explain.flight.loading import FlightCall

Kind = Literal["mismatch", "behind", "missing", "not-started", "deadlock"]


class FlightCause(NamedTuple):
    """Why a collective cannot complete."""

    kind: Kind
    group: FlightGroup
    seq: int
    ranks: tuple[int, ...]
    """The ranks that hold up the others; of a mismatch without a majority, and of a deadlock, all that take part."""
    calls: Mapping[int, FlightCall]
    """What ranks of the group called as that collective."""
    clear: bool = True
    """False for a mismatch without a majority: either side may be wrong."""


class FlightJudgement(NamedTuple):
    """Causes, the most likely first; without one, the calls in which all ranks of a group wait."""

    causes: tuple[FlightCause, ...]
    stuck: tuple[tuple[FlightGroup, int], ...] = ()
    """Collectives that all ranks of a group called, and that have not ended."""
    uncompared: tuple[FlightGroup, ...] = ()
    """Groups whose numbers of collectives may differ between healthy ranks."""


def judged(flight: Flight) -> FlightJudgement:
    """Return who holds up the others, group by group."""
    missing = frozenset(flight.missing)
    few = len(missing) < len(flight.ranks)
    mismatches: list[FlightCause] = []
    behind: list[FlightCause] = []
    absent: list[FlightCause] = []
    late: list[FlightCause] = []
    blocked: list[FlightCause] = []
    stuck: list[tuple[FlightGroup, int]] = []
    comparable = [group for group in flight.groups if not group.batched]
    for group in comparable:
        if cause := _mismatch(group):
            mismatches.append(cause)
            continue
        seq = _held_up(group)
        if seq is None:
            continue
        called = group.called(seq)
        rear = [rank for rank, last in group.last.items() if last < seq]
        free = [rank for rank in rear if (call := flight.current.get(rank)) is None or call.ended]
        gone = tuple(sorted(missing & set(group.ranks)))
        unstarted = _unstarted(group, seq)
        if free:
            behind.append(FlightCause("behind", group, seq, tuple(sorted(free)), called))
        elif rear and any(flight.current[rank].sent for rank in rear):
            continue  # whom a send or receive waits for is not known
        elif rear:
            blocked.append(FlightCause("deadlock", group, seq, tuple(sorted(rear)), called))
        elif gone and few:
            absent.append(FlightCause("missing", group, seq, gone, called))
        elif unstarted and all(flight.current[rank] == group.waiting[rank] for rank in unstarted):
            late.append(FlightCause("not-started", group, seq, unstarted, called))
        elif group.waiting and not gone:
            stuck.append((group, seq))
    causes = [*_by_time(mismatches), *_by_time(behind), *_by_time(absent), *_by_time(late)]
    if not causes and not stuck:
        causes = _by_time(blocked)
    uncompared = tuple(group for group in flight.groups if group.batched)
    return FlightJudgement(tuple(causes), tuple(stuck), uncompared)


def _held_up(group: FlightGroup) -> int | None:
    """Return the first collective that ranks wait in; else the last one, if not all are known to have completed it.

    Gloo does not record completion: a call that failed looks like one that succeeded.
    """
    if group.waiting:
        return min(call.seq for call in group.waiting.values())
    last = max(group.last.values(), default=0)
    unsure = any(call.state != "completed" for call in group.called(last).values())
    return last if unsure else None


def _mismatch(group: FlightGroup) -> FlightCause | None:
    """Return the first collective that ranks of a group called differently; the fewer ones hold up the others."""
    for seq in sorted(group.calls):
        kinds = group.calls[seq]
        if len(kinds) > 1:
            by_number = sorted(kinds.items(), key=lambda item: -len(item[1]))
            clear = len(by_number[0][1]) > len(by_number[1][1])
            odd = [rank for _, ranks in by_number[clear:] for rank in ranks]
            return FlightCause("mismatch", group, seq, tuple(sorted(odd)), group.called(seq), clear)
    return None


def _unstarted(group: FlightGroup, seq: int) -> tuple[int, ...]:
    """Return the ranks whose GPU has not begun a collective that other ranks' GPUs are in."""
    calls = {rank: call for rank, call in group.waiting.items() if call.seq == seq}
    waits = tuple(sorted(rank for rank, call in calls.items() if call.state == "scheduled"))
    return waits if len(waits) < len(calls) else ()


def _by_time(causes: Iterable[FlightCause]) -> list[FlightCause]:
    return sorted(causes, key=lambda cause: min((call.created_ns for call in cause.calls.values()), default=0))


def difference(calls: Iterable[FlightCall]) -> str:
    """Return what differs between calls that should be alike."""
    calls = tuple(calls)
    if len({call.name for call in calls}) > 1:
        return "collective"
    if len({call.elements for call in calls}) > 1:
        return "size"
    return "type of data" if len({call.dtypes for call in calls}) > 1 else "batch"
