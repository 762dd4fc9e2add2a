"""The answer to Flight Recorder dumps: a document with causes, where each rank is, and what to run next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from distcheck.cli.flight.groups import Flight, lined_up
from distcheck.cli.flight.judging import FlightCause, FlightJudgement, Kind, difference, judged
from distcheck.cli.flight.loading import FlightCall, dumps
from distcheck.cli.joblog.redaction import shown
from distcheck.cli.joblog.spelling import About
from distcheck.facts.errors import UsageError
from distcheck.facts.ranges import fold
from distcheck.rules.finding import Fix
from distcheck.rules.wording import listed, numbered

_MOST_CAUSES = 3
_ABOUT: dict[Kind, About] = {
    "mismatch": "application",
    "behind": "application",
    "missing": "process killed",
    "not-started": "GPU",
    "deadlock": "application",
}
_STACK = "for p in $(grep -lsz '^RANK={rank}$' /proc/[0-9]*/environ | cut -d/ -f3); do py-spy dump --pid $p; done{on}"
"""Prints the Python stack of a rank that still runs, found by its variable RANK."""


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

    job = saved.merge([saved.load(path) for path in saved.find(jobs)])
    return {rank.placement.rank: job.node_of(rank).name for rank in job.ranks if rank.placement.rank is not None}


def _answer(
    flight: Flight, judgement: FlightJudgement, nodes: Mapping[int, str], unread: tuple[str, ...]
) -> FlightAnswer:
    causes = tuple(_finding(cause, flight, nodes) for cause in judgement.causes[:_MOST_CAUSES])
    labels = {(g.backend, g.name, g.description): g.label for g in flight.groups}
    about: About | None = causes[0].about if causes else "network" if judgement.stuck else None
    notes = [
        f"{g.label}: sends and receives in batches; its collectives were not compared" for g in judgement.uncompared
    ]
    return FlightAnswer(
        causes=causes,
        about=about,
        text=causes[0].text if causes else _no_cause(flight, judgement),
        ranks=_alike(flight.current, nodes, labels),
        dumps=len(flight.ranks),
        missing_ranks=flight.missing,
        missing_nodes=_on(flight.missing, nodes),
        next=_next(causes, judgement, nodes),
        notes=tuple(notes),
        unread=unread,
    )


def _finding(cause: FlightCause, flight: Flight, nodes: Mapping[int, str]) -> FlightFinding:
    labels = {(g.backend, g.name, g.description): g.label for g in flight.groups}
    shown_calls = dict(cause.calls)
    if cause.kind in {"behind", "deadlock"}:
        shown_calls |= {rank: flight.current[rank] for rank in cause.ranks if rank in flight.current}
    return FlightFinding(
        kind=cause.kind,
        about=_ABOUT[cause.kind],
        text=_text(cause, flight, nodes),
        group=cause.group.label,
        group_ranks=cause.group.ranks,
        collective=cause.seq,
        ranks=cause.ranks,
        nodes=_on(cause.ranks, nodes),
        calls=_alike(shown_calls, nodes, labels),
        fix=_fix(cause, nodes),
    )


def _text(cause: FlightCause, flight: Flight, nodes: Mapping[int, str]) -> str:
    who = _who(cause.ranks, nodes)
    where = f"collective {cause.seq} of {cause.group.label}"
    at_fault = frozenset(cause.ranks)
    others = tuple(sorted(rank for rank in cause.calls if rank not in at_fault))
    name = cause.calls[others[0]].name if others else ""
    verb = "is" if len(cause.ranks) == 1 else "are"
    wait = "waits" if len(others) == 1 else "wait"
    if cause.kind == "mismatch":
        what = difference(cause.calls.values())
        if not cause.clear:
            return f"{who} did not call {where} with the same {what}"
        if what == "collective":
            odd = sorted({call.name for rank, call in cause.calls.items() if rank in at_fault})
            return f"{who} called {listed(odd)} where {_who(others, nodes)} called {name}: {where}"
        return f"{who} called {where} ({name}) with another {what} than {_who(others, nodes)}"
    if cause.kind == "behind":
        did = "called" if all(call.ended for call in cause.calls.values()) else f"{wait} in"
        they = "it" if len(cause.ranks) == 1 else "they"
        return f"{who} {verb} behind: {_who(others, nodes)} {did} {where} ({name}), which {they} did not call"
    if cause.kind == "missing":
        has = "has" if len(cause.ranks) == 1 else "have"
        return f"{who} {has} no dump, and all other ranks called {where} ({name})"
    if cause.kind == "not-started":
        gpu = "its GPU has" if len(cause.ranks) == 1 else "their GPUs have"
        return f"{who} called {where} ({name}), but {gpu} not started it; {_who(others, nodes)} {wait}"
    elsewhere = sorted({flight.current[rank].description or flight.current[rank].group for rank in cause.ranks})
    theirs = "waits" if len(cause.ranks) == 1 else "wait"
    return f"{_who(others, nodes)} {wait} in {where} for {who}, which {theirs} in {listed(elsewhere)}"


def _fix(cause: FlightCause, nodes: Mapping[int, str]) -> Fix:
    rank = cause.ranks[0] if cause.ranks else 0
    on = f"  # on {nodes[rank]}" if rank in nodes else f"  # on the node of rank {rank}"
    stack = _STACK.format(rank=rank, on=on)
    if cause.kind == "mismatch":
        return Fix(
            "All ranks of a group must call the same collectives in the same order, with the same sizes. Look for a"
            " branch on the rank or on data around the lines of the script above. DETAIL makes torch check each call"
            " and raise an error at the first that differs.",
            ("export TORCH_DISTRIBUTED_DEBUG=DETAIL",),
        )
    if cause.kind == "behind":
        return Fix(
            f"See what {numbered(cause.ranks[:1])} does instead: it may load data, write a checkpoint, run a longer"
            " branch of the script, or have failed. If it still runs, print its stack; if it ended, its log has the"
            " cause.",
            (stack, "distcheck explain --log LOGS  # the job's logs"),
        )
    if cause.kind == "missing":
        return Fix(
            "A rank without a dump was killed, or ended before it could write one. Its log and the kernel's log tell"
            " why. If it did write a dump, add its file.",
            (
                f"sudo dmesg -T | grep -i -E 'oom|killed process|xid'{on}",
                "distcheck explain --log LOGS  # the job's logs",
            ),
        )
    if cause.kind == "not-started":
        return Fix(
            "The GPU is busy with an earlier kernel, or hangs. Check the GPU, and see what the rank does.",
            (f"nvidia-smi; sudo dmesg -T | grep -i xid{on}", stack),
        )
    return Fix(
        "Ranks use several groups in different orders, so they wait for each other. Call the collectives of different"
        " groups in the same order on all ranks, or wait for one before the next.",
        (stack,),
    )


def _no_cause(flight: Flight, judgement: FlightJudgement) -> str:
    if judgement.stuck:
        group, seq = judgement.stuck[0]
        name = next((call.name for call in group.called(seq).values()), "")
        where = f"collective {seq} of {group.label} ({name})"
        if not group.ranks:
            return (
                f"{numbered(group.called(seq))} did not complete {where}; the dumps do not name the group's other ranks"
            )
        return f"all ranks called {where}, and none holds up the others: the collective itself hangs"
    if not flight.current:
        return "the dumps have no collectives: TORCH_FR_BUFFER_SIZE is 0, or the ranks called none"
    if len(flight.missing) >= len(flight.ranks):
        many = len(flight.missing) + len(flight.ranks)
        return f"{len(flight.missing)} of {many} ranks have no dump: too many to tell who holds up the others"
    if all(call.state == "completed" for call in flight.current.values()):
        return "no rank holds up the others: every rank completed its last call"
    return "no rank with a dump holds up the others; give the saved job with --job if ranks may have no dump"


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
    together: dict[tuple[object, ...], list[int]] = {}
    for rank, call in sorted(calls.items()):
        key = (
            call.group,
            call.description,
            call.seq,
            call.name,
            call.inputs,
            call.outputs,
            call.state,
            call.ended,
            call.at,
        )
        together.setdefault(key, []).append(rank)
    found = []
    for ranks in together.values():
        call = min((calls[rank] for rank in ranks), key=lambda call: call.created_ns)
        found.append(
            CalledAlike(
                ranks=tuple(ranks),
                nodes=_on(ranks, nodes),
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


def _who(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    ranks = tuple(ranks)
    word = "rank" if len(ranks) == 1 else "ranks"
    on = _on(ranks, nodes)
    return f"{word} {fold(ranks, 8)}" + (f" ({listed(on)})" if on else "")


def _on(ranks: Iterable[int], nodes: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(nodes[rank] for rank in ranks if rank in nodes))
