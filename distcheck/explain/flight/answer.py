"""The answer to Flight Recorder dumps: a document with causes, where each rank is, and what to run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from distcheck.explain.flight.groups import Flight, lined_up
from distcheck.explain.flight.judging import FlightCause, FlightJudgement, Kind, judged
from distcheck.explain.flight.loading import FlightCall, dumps
from distcheck.explain.flight.sentences import fix, no_cause, on_nodes, sentence, without_node
from distcheck.explain.redaction import shown
from distcheck.explain.spelling import About
from distcheck.facts.errors import UsageError
from distcheck.rules.finding import Fix
from distcheck.rules.wording import grouped

_MOST_CAUSES = 3
_ABOUT: dict[Kind, About] = {
    "mismatch": "application",
    "behind": "application",
    "missing": "process killed",
    "not-started": "GPU",
    "deadlock": "application",
}


class CalledAlike(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that are in the same call."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    group: str
    collective: int
    """Its number in the group."""
    name: str
    backend: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    """scheduled, started or completed; ended: Gloo does not record whether it completed or failed."""
    called_at_ns: int
    """When the first of the ranks called it, since 1970."""
    duration_ms: float | None
    timeout_ms: int | None
    where: str
    """The line of the script; empty if the dump has no stacks."""


class FlightFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds up a collective."""

    kind: Kind
    about: About = msgspec.field(name="class")
    text: str
    group: str
    group_ranks: tuple[int, ...]
    """Empty if the dumps do not name them."""
    collective: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    calls: tuple[CalledAlike, ...]
    fix: Fix


class FlightAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What dumps tell. `causes` is empty if no rank holds up the others."""

    schema: int = 1
    causes: tuple[FlightFinding, ...]
    about: About | None = msgspec.field(name="class")
    text: str
    """The answer in one sentence."""
    ranks: tuple[CalledAlike, ...]
    """Where each rank is: in the call it waits in, or after its last one."""
    dumps: int
    missing_ranks: tuple[int, ...]
    missing_nodes: tuple[str, ...]
    ranks_without_node: tuple[int, ...]
    """Ranks that the saved job lacks."""
    next: tuple[str, ...]
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Files that were not read, each with the reason."""

    @property
    def exit_code(self) -> int:
        """0 if a cause was found, 20 if not."""
        return 0 if self.causes else 20


def flight_explained(paths: Sequence[Path], jobs: Sequence[Path]) -> FlightAnswer:
    """Return the answer to dumps; saved jobs name the node of each rank.

    Raises:
        UsageError: a path does not exist, none holds a dump, or a job cannot be read.
    """
    nodes = _nodes(jobs)
    unread: list[str] = []
    flight = lined_up(dumps(paths, unread), frozenset(nodes))
    if not flight.ranks:
        first = f"; {shown(unread[0])}" if unread else ""
        raise UsageError(f"--flight {paths[0]}: no Flight Recorder dump could be read{first}")
    return _answer(flight, judged(flight), nodes, tuple(map(shown, unread)))


def _nodes(jobs: Sequence[Path]) -> dict[int, str]:
    """Return the node of each rank of saved jobs."""
    if not jobs:
        return {}
    from distcheck.facts import saved

    job = saved.load_launch(jobs)
    return {rank.placement.rank: job.node_of(rank).name for rank in job.ranks if rank.placement.rank is not None}


def _answer(
    flight: Flight, judgement: FlightJudgement, nodes: Mapping[int, str], unread: tuple[str, ...]
) -> FlightAnswer:
    causes = tuple(_finding(cause, flight, nodes) for cause in judgement.causes[:_MOST_CAUSES])
    about: About | None = causes[0].about if causes else "network" if judgement.stuck else None
    batches = "sends and receives in batches; its collectives were not compared"
    return FlightAnswer(
        causes=causes,
        about=about,
        text=causes[0].text if causes else no_cause(flight, judgement),
        ranks=_alike(flight.current, nodes, flight.labels),
        dumps=len(flight.ranks),
        missing_ranks=flight.missing,
        missing_nodes=on_nodes(flight.missing, nodes),
        ranks_without_node=without_node(sorted({*flight.ranks, *flight.missing}), nodes),
        next=_next(causes, judgement, nodes),
        notes=tuple(f"{group.label}: {batches}" for group in judgement.uncompared),
        unread=unread,
    )


def _finding(cause: FlightCause, flight: Flight, nodes: Mapping[int, str]) -> FlightFinding:
    shown_calls = dict(cause.calls)
    if cause.kind in {"behind", "deadlock"}:
        shown_calls |= {rank: flight.current[rank] for rank in cause.ranks if rank in flight.current}
    return FlightFinding(
        kind=cause.kind,
        about=_ABOUT[cause.kind],
        text=sentence(cause, flight, nodes),
        group=cause.group.label,
        group_ranks=cause.group.ranks,
        collective=cause.seq,
        ranks=cause.ranks,
        nodes=on_nodes(cause.ranks, nodes),
        calls=_alike(shown_calls, nodes, flight.labels),
        fix=fix(cause, nodes),
    )


def _next(causes: tuple[FlightFinding, ...], judgement: FlightJudgement, nodes: Mapping[int, str]) -> tuple[str, ...]:
    if causes:
        return causes[0].fix.commands
    hosts = sorted(set(nodes.values()))
    where = f"--hosts {','.join(hosts)}" if 1 < len(hosts) <= 64 else "--nproc auto"
    if judgement.stuck:
        return (f"distcheck gate {where}", "NCCL_DEBUG=WARN COMMAND")
    return ("distcheck explain --log LOGS  # the job's logs",)


def _alike(
    calls: Mapping[int, FlightCall], nodes: Mapping[int, str], labels: Mapping[tuple[str, str, str], str]
) -> tuple[CalledAlike, ...]:
    """Return calls with the ranks that made them, those who lag first."""
    together = grouped(sorted(calls), lambda rank: (_what(calls[rank]), rank in nodes))
    found = []
    for ranks in together.values():
        call = min((calls[rank] for rank in ranks), key=lambda call: call.created_ns)
        found.append(
            CalledAlike(
                ranks=tuple(ranks),
                nodes=on_nodes(ranks, nodes),
                group=labels.get((call.backend, call.group, call.description), call.group),
                collective=call.seq,
                name=call.name,
                backend=call.backend,
                input_sizes=call.inputs,
                output_sizes=call.outputs,
                dtypes=call.dtypes,
                state="ended" if call.retired and call.state != "completed" else call.state,
                called_at_ns=call.created_ns,
                duration_ms=call.duration_ms,
                timeout_ms=call.timeout_ms,
                where=call.at,
            )
        )
    return tuple(sorted(found, key=lambda alike: (alike.group, alike.collective, alike.ranks)))


def _what(call: FlightCall) -> tuple[object, ...]:
    """Return what is equal of calls that are shown as one."""
    where = call.group, call.description, call.seq, call.name
    return *where, call.inputs, call.outputs, call.state, call.ended, call.at
