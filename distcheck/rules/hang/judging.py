"""The answer: hung, slow, not hung, or cannot tell; which ranks hold up the others, and what those wait in.

Ranks that do not communicate hold up those that do. If all communicate, the fewest that are in another operation or at
another line do; of equally many, both sides are named. If any rank that does not wait makes progress, the job is slow
or works, never hung.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from distcheck.facts.base import Missing
from distcheck.facts.ranges import numbered
from distcheck.rules.hang.gpus import activity, readings
from distcheck.rules.hang.places import GPU, INIT, STORE, WORK
from distcheck.rules.hang.sentences import waits
from distcheck.rules.hang.states import Kind, RankState, ranks_of, state_of
from distcheck.rules.wording import grouped, listed, once

if TYPE_CHECKING:
    from distcheck.facts.hang import Recorded, RunningJob
    from distcheck.facts.job import Job

Word = Literal["hung", "slow", "not hung", "cannot tell"]
Why = Literal["missing", "odd", "mismatch", "network", "silent", "alike", ""]
_States: TypeAlias = "list[RankState]"
_WORST = get_args(Kind)
_HIDDEN = frozenset({"hidden", "unknown", "spins"})
OF_MACHINES = frozenset({"stopped", "disk", "gpu"})
_PEER_TO_PEER = frozenset({"recv", "send", "recv_object_list", "send_object_list"})
"""If all ranks are in the same of these, each waits for another one: a circle in the program."""
_FROM_ONE = _PEER_TO_PEER | {"broadcast", "broadcast_object_list", "scatter", "scatter_object_list", STORE, WORK}
"""In these the others of a server wait for a request; in all others they wait for the server itself."""
_STARVED = 2
"""Timeouts in a row after which a connection counts as cut; one packet may be lost."""
_LARGEST_WORLD, _LARGEST_NODE = 1 << 20, 4096


class HangJudgement(NamedTuple):
    """What is the matter with a running job."""

    word: Word
    why: Why = ""
    odd: tuple[RankState, ...] = ()
    """Those that hold up the others, the likeliest first."""
    waiting: tuple[RankState, ...] = ()
    states: tuple[RankState, ...] = ()
    missing: tuple[int, ...] = ()
    """Ranks without a process on any node."""
    unseen: tuple[int, ...] = ()
    """Ranks that may be on nodes that were not looked at."""
    reason: str = ""
    """Why it cannot be told."""
    recorded: str = ""
    """What torch's Flight Recorder says of the odd ranks, if it names them."""
    longer: bool = False
    """Whether a longer look could change the answer."""

    @property
    def undecided(self) -> bool:
        """Whether all ranks wait, as far as is known, so that the numbers of their collectives could tell more."""
        return self.why in {"alike", "mismatch"} or (self.word == "cannot tell" and bool(self.waiting))

    @property
    def evidence(self) -> dict[str, str]:
        """What the others wait in, for a finding."""
        return {"waiting": waits(self.waiting)} if self.waiting else {}

    @property
    def seconds(self) -> float:
        """For how long the ranks were looked at, at least."""
        return min((s.seconds for s in self.states), default=0.0)


@once
def answer_of(job: Job) -> HangJudgement:
    """Return the answer about the running job."""
    return answer(job.hang) if job.hang is not None else HangJudgement("cannot tell", reason="no job was looked at")


def answer(hang: RunningJob) -> HangJudgement:
    """Return the answer about a running job."""
    states = tuple(state_of(process) for process in hang.ranks if process.moments)
    silent = [node.name for node in hang.nodes if node.problem]
    if all(s.kind == "gone" for s in states):
        return HangJudgement("cannot tell", reason="all ranks have ended" if states else _nothing(hang))
    gone = {s.process.rank for s in states if s.kind == "gone"}
    present = {s.process.rank for s in states} - gone
    gone |= _absent_here(hang) - present
    absent = [n for n in range(min(hang.world_size or 0, _LARGEST_WORLD)) if n not in present]
    whole = hang.local and not silent and not any(node.unreadable for node in hang.nodes)
    whole = whole or (not silent and sum(len(node.ended) for node in hang.nodes) >= len(absent))
    missing = tuple(n for n in absent if whole or n in gone)
    unseen = tuple(n for n in absent if n not in missing)
    alive = [s for s in states if s.kind != "gone"]
    found = _judged(alive, missing, unseen, silent)
    if found.undecided and hang.recorded is not None and not any(s.moves for s in alive):
        found = _as_recorded(found, alive, hang.recorded)
    return found._replace(states=states, missing=missing, unseen=unseen)


def _absent_here(hang: RunningJob) -> set[int]:
    """Return the ranks that the nodes with others of the same LOCAL_WORLD_SIZE should have."""
    found: set[int] = set()
    for processes in grouped(hang.ranks, lambda p: p.node).values():
        firsts = {p.rank - p.local_rank for p in processes if p.rank is not None and p.local_rank is not None}
        if len(firsts) == 1:
            (first,) = firsts
            found.update(range(first, first + min(hang.ranks_per_node or 0, _LARGEST_NODE)))
    return found


def _judged(states: _States, missing: tuple[int, ...], unseen: tuple[int, ...], silent: list[str]) -> HangJudgement:
    still = [s for s in states if s.kind == "waits" and not s.moves]
    hidden = [s for s in states if s.kind in _HIDDEN and not s.moves]
    outside = [s for s in states if s.kind != "waits" and (s.kind not in _HIDDEN or s.moves)]
    late = _sorted(s for s in outside if s.kind != "idle")
    waiting = (*still, *hidden)
    if missing and waiting:
        return HangJudgement("hung", "missing", waiting=waiting, longer=all(s.operation == INIT for s in waiting))
    if any(s.moves for s in states):
        if any(s.kind != "hidden" for s in hidden):  # they may wait, or be what the others wait for
            return _on_gpus(waiting, longer=False)
        if waiting and late:
            return HangJudgement("slow", "odd", late, waiting)
        return HangJudgement("not hung", waiting=waiting)
    if late:
        return _blocked(late, still, hidden)
    if outside:  # in accept or an event loop: servers, and those that wait for what a request or an event brings
        loops = tuple(s for s in outside if not s.serves)
        if not any(s.place.serves for s in outside) and any(s.operation not in _FROM_ONE for s in still):
            return _blocked(tuple(outside), still, hidden)
        if loops and still:
            reason = f"rank {loops[0].process.rank} is in an event loop at {loops[0].place.at}, as an idle server is"
            return HangJudgement("cannot tell", odd=loops, waiting=tuple(still), reason=reason)
        return HangJudgement("not hung", waiting=tuple(still))
    return _all_wait(still, hidden, unseen, silent)


def _blocked(stuck: tuple[RankState, ...], still: _States, hidden: _States) -> HangJudgement:
    """Return the answer if ranks outside of communication make no progress."""
    longer = not all(s.kind == "stopped" for s in stuck)
    fewer = len(stuck) < len(hidden) and all(s.kind in {"hidden", "spins"} for s in hidden)
    if hidden and not still and not fewer and not all(s.kind in OF_MACHINES for s in stuck):
        return HangJudgement("cannot tell", waiting=tuple(hidden), longer=True)
    if not still and not hidden and all(s.kind in {"sleeps", "polls"} for s in stuck):
        if all(s.wrote for s in stuck):  # as a step does between two sleeps
            return HangJudgement("not hung")
        where = listed(sorted({s.place.at for s in stuck if s.place.at}), 3)
        reason = f"all ranks only sleep or poll{where and ' at '}{where}; none waits for another"
        return HangJudgement("cannot tell", reason=reason, longer=True)
    return HangJudgement("hung", "odd", stuck, (*still, *hidden), longer=longer)


def _all_wait(still: _States, hidden: _States, unseen: tuple[int, ...], silent: list[str]) -> HangJudgement:
    """Return the answer if all ranks wait, as far as is known."""
    states = (*still, *hidden)
    if any(s.kind != "hidden" for s in hidden):
        return _on_gpus(states, longer=any(s.kind == "spins" for s in hidden))
    if hidden and still:
        return HangJudgement("hung", "odd", tuple(hidden), tuple(still), longer=True)
    cut = tuple(s for s in states if any(c.retransmits >= _STARVED for c in s.process.unanswered))
    if cut:
        return HangJudgement("hung", "network", cut, states)
    if unseen and silent:
        return HangJudgement("hung", "silent", waiting=states, longer=True)
    if unseen or silent:
        return HangJudgement("cannot tell", reason=_elsewhere(unseen, silent), waiting=states)
    if not all(s.place.at for s in states):
        return _by_kernel(states)
    groups = grouped(states, lambda s: (s.operation, s.place.at, s.process.meets))
    if len(groups) == 1 and states[0].operation in _PEER_TO_PEER:
        return HangJudgement("hung", "mismatch", states, states, longer=True)
    if any(s.operation == GPU for s in states):
        return _on_gpus(states, longer=True)
    if len(groups) == 1:
        if hidden:
            return HangJudgement("cannot tell", reason="all ranks wait at the same line", waiting=states, longer=True)
        return HangJudgement("hung", "alike", waiting=states, longer=True)
    sizes = sorted((len(group) for group in groups.values()), reverse=True)
    tie = sizes[0] == sizes[1]
    fewest = tuple(s for group in groups.values() if tie or len(group) < sizes[0] for s in group)
    waiting = states if tie else tuple(s for group in groups.values() if len(group) == sizes[0] for s in group)
    return HangJudgement("hung", "mismatch", fewest, waiting, longer=all(s.operation == INIT for s in states))


def _on_gpus(states: tuple[RankState, ...], *, longer: bool) -> HangJudgement:
    """Return the answer if nothing but what their GPUs do could tell ranks apart: suspects, never that they hang."""
    full = [s.process for s in states if activity(s.process) == "waits"]
    idle = tuple(s for s in states if activity(s.process) == "idle")
    unread = next((s.process.gpus.reason for s in states if isinstance(s.process.gpus, Missing)), "")
    kernels = f"GPUs at {readings(full)}, as in NCCL kernels that wait" if full else unread
    if full and idle:
        where = f"{numbered(ranks_of(idle), 6)}, {idle[0].place.at or 'unknown line'}"
        reason = f"GPU idle and no progress: {where}; others: {kernels}"
        return HangJudgement("cannot tell", odd=idle, waiting=states, reason=reason, longer=longer)
    return HangJudgement("cannot tell", reason=kernels, waiting=states, longer=longer)


def _by_kernel(states: tuple[RankState, ...]) -> HangJudgement:
    """Return the answer without stacks: Gloo's waiters are in a futex, so fewer that wait elsewhere are odd."""
    by_futex = grouped(states, lambda s: s.last.waits_in.startswith("futex"))
    others, still = by_futex.get(False, []), by_futex.get(True, [])
    if 0 < len(others) < len(still):
        return HangJudgement("hung", "odd", tuple(others), tuple(still), longer=True)
    return HangJudgement("cannot tell", waiting=states)


def _as_recorded(found: HangJudgement, states: _States, recorded: Recorded) -> HangJudgement:
    """Return an answer in which all ranks wait with those that dumps name, unless the dumps contradict the stacks."""
    known = [s.process.rank for s in states if s.kind == "waits" and s.operation not in {GPU, INIT}]
    odd = tuple(s for s in states if s.process.rank in recorded.ranks)
    if not set(known) <= set(recorded.waiting) or not len(odd) == len(recorded.ranks) < len(states):
        return found
    rest = tuple(s for s in states if s.process.rank not in recorded.ranks)
    return HangJudgement("hung", "mismatch", odd, rest, recorded=recorded.says, longer=found.longer)


def _sorted(states: Iterable[RankState]) -> tuple[RankState, ...]:
    """Return states, the likeliest cause first."""
    return tuple(sorted(states, key=lambda s: (_WORST.index(s.kind), s.process.rank or 0)))


def _nothing(hang: RunningJob) -> str:
    problems = [f"{node.name}: {node.problem}" for node in hang.nodes if node.problem]
    if problems:
        return "; ".join(problems[:4])
    hidden = sum(len(node.unreadable) for node in hang.nodes)
    if hidden:
        return f"no rank was found, and {hidden} Python processes may not be read"
    return "no rank of a PyTorch job was found"


def _elsewhere(unseen: Sequence[int], silent: Sequence[str]) -> str:
    if silent:
        return f"nothing is known of {', '.join(silent[:4])}"
    return f"{numbered(unseen, 8)} may run on other nodes; look at all nodes with --hosts or --job"
