"""Says in a sentence who holds up the others, and how to find out why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distcheck.explain.fixes import STACK
from distcheck.explain.flight.groups import Flight
from distcheck.explain.flight.judging import FlightCause, FlightJudgement, difference
from distcheck.facts.ranges import numbered
from distcheck.rules.finding import Fix
from distcheck.rules.wording import are, listed


def sentence(cause: FlightCause, flight: Flight, nodes: Mapping[int, str]) -> str:
    """Return a cause in one sentence: who, what, in which collective, and who waits."""
    who = _who(cause.ranks, nodes)
    where = f"collective {cause.seq} of {cause.group.label}"
    at_fault = frozenset(cause.ranks)
    others = tuple(sorted(rank for rank in cause.calls if rank not in at_fault))
    name = cause.calls[others[0]].name if others else ""
    alone, wait = len(cause.ranks) == 1, "waits" if len(others) == 1 else "wait"
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
        they = "it" if alone else "they"
        return (
            f"{who} {are(cause.ranks)} behind: {_who(others, nodes)} {did} {where} ({name}), which {they} did not call"
        )
    if cause.kind == "missing":
        return f"{who} {'has' if alone else 'have'} no dump, and the other ranks called {where} ({name})"
    if cause.kind == "not-started":
        gpu = "its GPU has" if alone else "their GPUs have"
        return f"{who} called {where} ({name}), but {gpu} not started it; {_who(others, nodes)} {wait}"
    current = [flight.current[rank] for rank in cause.ranks]
    elsewhere = sorted({call.description or f"group {call.group}" for call in current})
    theirs = "waits" if alone else "wait"
    return f"{_who(others, nodes)} {wait} in {where} for {who}, which {theirs} in {listed(elsewhere)}"


def fix(cause: FlightCause, nodes: Mapping[int, str]) -> Fix:
    """Return what to do about a cause, with commands for the node of the first rank that it names."""
    rank = cause.ranks[0] if cause.ranks else 0
    on = f"  # on {nodes[rank]}" if rank in nodes else f"  # on the node of rank {rank}"
    stack = STACK.format(rank=rank, on=on)
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


def no_cause(flight: Flight, judgement: FlightJudgement) -> str:
    """Return why no rank is named, in one sentence."""
    if judgement.stuck:
        group, seq = judgement.stuck[0]
        name = next((call.name for call in group.called(seq).values()), "")
        where = f"collective {seq} of {group.label} ({name})"
        if not group.ranks:
            unnamed = "the dumps do not name the group's other ranks"
            return f"{numbered(group.called(seq))} did not complete {where}; {unnamed}"
        return f"all ranks called {where}, and none holds up the others: the collective itself hangs"
    if not flight.current:
        return "the dumps have no collectives: TORCH_FR_BUFFER_SIZE is 0, or the ranks called none"
    if len(flight.missing) >= len(flight.ranks):
        many = len(flight.missing) + len(flight.ranks)
        return f"{len(flight.missing)} of {many} ranks have no dump: too many to tell who holds up the others"
    sending = [rank for rank, call in flight.current.items() if call.sent and not call.ended]
    if sending:
        wait = "waits in a send or receive" if len(sending) == 1 else "wait in sends and receives"
        return f"{numbered(sending)} {wait}; these are not compared between ranks"
    if all(call.state == "completed" for call in flight.current.values()):
        return "no rank holds up the others: every rank completed its last call"
    return "no rank with a dump holds up the others; give the saved job with --job if ranks may have no dump"


def _who(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    ranks = tuple(ranks)
    on, unknown = on_nodes(ranks, nodes), without_node(ranks, nodes)
    if unknown:
        on = (*on, f"unknown for {numbered(unknown)}") if on else ("node unknown",)
    return numbered(ranks, 8) + (f" ({listed(on)})" if on else "")


def on_nodes(ranks: Iterable[int], nodes: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of the nodes of ranks, as far as they are known."""
    return tuple(dict.fromkeys(nodes[rank] for rank in ranks if rank in nodes))


def without_node(ranks: Iterable[int], nodes: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks that the saved job lacks; none if no job is given."""
    return tuple(rank for rank in ranks if nodes and rank not in nodes)
