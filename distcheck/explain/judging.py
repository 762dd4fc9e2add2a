"""Tells the first cause of a failure from its consequences."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from distcheck.explain.sighting import Sighting
from distcheck.explain.spelling import CONSEQUENCE, ERROR, GUESS, LIKELY, NOISE, SHAPE, SYMPTOM, About

_MOST_CAUSES = 3
_DECEMBER = 12
_WAITED = frozenset({"env-rank-missing", "net-master-refused", "net-master-unreachable", "torchrun-nnodes-mismatch"})
"""A rank reports these also where another one has failed before it came."""

_FAILED = re.compile(r"Error\b|\[E|has timed out|\b(?:bind|listen)\b")
_LEAST: dict[About, int] = {"GPU": ERROR, "process killed": LIKELY}
"""How much a line must say to show that the ranks had met: a job that hangs at its start is ended by SIGTERM, too."""
_STARTS: frozenset[About] = frozenset({"start-up", "network"})
"""What fails when ranks start, and not when they train."""
_RETRIED = re.compile(r"\bretrying\b|\b(?:will|to) retry\b|\bretry(?:ing)? to connect", re.IGNORECASE)
_NOT_FOUND = re.compile(
    r"No such file or directory(?:$|: b?['\"](?!/))|can't open file|No module named|libtorch_cpu\.so"
)
"""What fails in a working directory that is not the right one, or is none."""
_OF_AN_ABORT = re.compile(r"watchdog|\[E[\d :.]*ProcessGroup|terminate called", re.IGNORECASE)
"""What is written before torch itself ends a rank by abort()."""


class LikelyCause(NamedTuple):
    """A rule that may name the cause, and the line that shows it. None where only the line's sentence names it."""

    rule: str | None
    seen: Sighting


class Judgement(NamedTuple):
    """What logs tell: causes (the most likely first), or only the line that tells most."""

    causes: tuple[LikelyCause, ...]
    telling: Sighting | None
    """The line that leads; None if no line has a known spelling."""
    consequences: tuple[Sighting, ...] = ()
    """What failed later, or elsewhere."""

    @property
    def about(self) -> About | None:
        """The class of the fault."""
        return self.telling.spelling.about if self.telling else None


def judged(sightings: Sequence[Sighting], lost: Collection[int] = ()) -> Judgement:
    """Return the judgement: spellings that tell more go first, and among those the earliest in time; noise tells none.

    A mistake in the script comes before what other ranks then report: that a rank did not come, or symptoms.

    Programs warn of every attempt to connect that they repeat: if something else failed later, the ranks had met.

    Consequences do not tell who failed first: torchrun's agent does, unless it saw a collective that timed out, or a
    rank that only `lost` the connection to another one. A rank that called abort() and wrote nothing leads.

    A deleted working directory, with which a shell goes on, is no cause of a failure that has nothing to do with it.

    What fails while torchrun starts the ranks again is no cause of the first failure. A time limit is none after a
    task has failed: the others waited for it until then.

    A program goes on after a line of level WARNING: it does not lead if another line has a cause that a rule names.
    Nor does a library's return code if the reason that is written after it is known.

    Times decide only if all these lines have one: else the order of the lines does.
    """
    if not sightings:
        return Judgement((), None)
    later = _retries(sightings) or _of_a_restart(sightings) or _limits_of_a_wait(sightings) or _other_folders(sightings)
    if later:
        judgement = judged([seen for seen in sightings if seen not in later], lost)
        return judgement._replace(consequences=(*judgement.consequences, *later))
    ended = any(s.spelling.weight >= SYMPTOM and s.spelling.rules and not s.warning for s in sightings)
    aside = {id(seen) for seen in sightings if (ended and seen.warning) or _has_a_reason(seen, sightings)}
    final = [seen for seen in sightings if id(seen) not in aside]
    heaviest = max(seen.spelling.weight for seen in final)
    if heaviest == NOISE:
        return Judgement((), None)
    leading = _in_order([seen for seen in final if seen.spelling.weight == heaviest])
    leading.sort(key=_is_abort)  # what a process wrote comes before its end
    rest = _in_order([seen for seen in sightings if seen.spelling.weight < heaviest or id(seen) in aside])
    first = _first(leading, rest, lost)
    consequences = tuple(seen for seen in (*leading, *rest) if seen.spelling is not first.spelling)
    return Judgement(_causes(first, leading, rest), first, consequences)


def _first(leading: Sequence[Sighting], rest: Sequence[Sighting], lost: Collection[int]) -> Sighting:
    """Return the line that leads, of the heaviest ones, unless a lighter one shows what those only follow from."""
    first = leading[0]
    if first.spelling.weight <= SYMPTOM or (first.spelling.rules and first.spelling.rules[0] in _WAITED):
        first = next((seen for seen in rest if "mistake" in seen.tags and _precedes(seen, first)), first)
    if leading[0].spelling.weight != CONSEQUENCE or any("collective" in seen.tags for seen in leading):
        return first
    roots = (seen for seen in rest if "root-cause" in seen.tags and int(seen.values.get("rank", -1)) not in lost)
    root = next(roots, None)
    told = any(_OF_AN_ABORT.search(seen.text) for seen in (*leading, *rest))
    return (None if told else _aborted(leading, root, lost)) or root or first


def _causes(first: Sighting, leading: Sequence[Sighting], rest: Sequence[Sighting]) -> tuple[LikelyCause, ...]:
    """Return the first cause, and what other lines and the line's further rules name."""
    rules = first.spelling.rules
    if not rules:
        return (LikelyCause(None, first),) if first.spelling.weight >= SHAPE else ()
    named = [(rules[0], first), *((seen.spelling.rules[0], seen) for seen in leading if seen.spelling.rules)]
    named += [(rule, first) for rule in rules[1:]]
    named += [(seen.spelling.rules[0], seen) for seen in rest if seen.spelling.rules and seen.spelling.weight > NOISE]
    causes = {rule: LikelyCause(rule, seen) for rule, seen in reversed(named)}
    return tuple(causes[rule] for rule in dict.fromkeys(rule for rule, _ in named))[:_MOST_CAUSES]


def _retries(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Return the lines about attempts to connect that are repeated, if the ranks met after all of them."""
    retried = [seen for seen in sightings if _is_retried(seen)]
    later = (seen for seen in sightings if _is_elsewhere(seen) and not _is_retried(seen))
    return retried if any(all(_precedes(one, seen) for one in retried) for seen in later) else []


def _of_a_restart(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Return the lines about the start-up of a later attempt, if the first one ended with an error of another kind."""
    end = next((seen for seen in sightings if "failed" in seen.tags and seen.times > 1), None)
    if end is None:
        return []
    own = [seen for seen in sightings if seen.file == end.file]
    after = [seen for seen in own if seen.spelling.about in _STARTS and seen.line > end.line]
    return after if any(seen.spelling.weight >= ERROR for seen in own if seen.line <= end.line) else []


def _limits_of_a_wait(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Return the lines about a time limit, if an error and the end of a task with an exit code come before them.

    Slurm's lines may be in another file than those of the ranks: --error, and the --output of srun.
    """
    limits = [seen for seen in sightings if "time-limit" in seen.tags]
    ended = [limit for limit in limits if any("task-failed" in s.tags and _is_above(s, limit) for s in sightings)]
    errors = [seen for seen in sightings if seen.spelling.weight >= ERROR and seen not in limits]
    before = any(_is_above(seen, limit) or _is_of_a_rank(seen, limit) for limit in ended for seen in errors)
    return limits if before else []


def _is_above(seen: Sighting, other: Sighting) -> bool:
    return seen.file == other.file and seen.line < other.line


def _is_of_a_rank(seen: Sighting, limit: Sighting) -> bool:
    """Whether an error in another file may have come before a time limit; the signals that end the ranks did not."""
    return seen.file != limit.file and seen.spelling.about != "process killed" and _precedes(seen, limit)


def _other_folders(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Return the lines about a working directory, if the job went on and then failed, but not to find a file."""
    went_on = [seen for seen in sightings if "goes-on" in seen.tags]
    if not went_on:
        return []
    errors = [seen for seen in sightings if seen.spelling.weight >= ERROR and seen not in went_on]
    return went_on if errors and not any(_NOT_FOUND.search(seen.text) for seen in errors) else []


def _aborted(leading: Sequence[Sighting], root: Sighting | None, lost: Collection[int]) -> Sighting | None:
    """Return the end of a rank by abort(): of the rank that torchrun saw fail first, if it did."""
    own = [seen for seen in leading if _is_abort(seen) and seen.place.rank not in lost]
    if root:
        stacks = [s for s in own if "stack" in s.tags and s.times == 1 and s.place.rank is None]
        own = [seen for seen in own if str(seen.place.rank) == root.values.get("rank")]
        own += stacks if own else []
    return next((seen for seen in own if "stack" in seen.tags), own[0] if own else None)


def _has_a_reason(status: Sighting, sightings: Sequence[Sighting]) -> bool:
    """Whether a line is a library's return code, and the reason that the library adds is known."""
    return "status" in status.tags and any(
        seen.reason and seen.file == status.file and "status" not in seen.tags for seen in sightings
    )


def _is_abort(seen: Sighting) -> bool:
    return "abort" in seen.tags


def _is_retried(seen: Sighting) -> bool:
    """Whether a line is about a connection that the program then tries again, as in many healthy starts."""
    in_torch = "socket.cpp" in seen.text and not _FAILED.search(seen.text)
    return in_torch or (seen.spelling.about == "network" and bool(_RETRIED.search(seen.text)))


def _is_elsewhere(seen: Sighting) -> bool:
    """Whether a line shows what ranks that have not met cannot have: training, or a fault of another kind."""
    about, weight = seen.spelling.about, seen.spelling.weight
    if about == "application":
        return "training" in seen.tags or weight == GUESS or weight >= ERROR
    return about in _LEAST and weight >= _LEAST[about]


def _precedes(seen: Sighting, other: Sighting) -> bool:
    if seen.time and other.time:
        return seen.time < other.time or (seen.time == other.time and seen.line < other.line)
    return seen.file != other.file or seen.line < other.line


def _in_order(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Return lines by time if all have one, else as they stand; glog writes no year, so January follows December."""
    months = {seen.time[0] for seen in sightings if seen.time}
    if not all(seen.time for seen in sightings):
        return list(sightings)
    turn = 1 in months and _DECEMBER in months

    def at(seen: Sighting) -> tuple[float, ...]:
        month, day, seconds = seen.time or (0, 0, 0.0)
        return (month + _DECEMBER if turn and month < _DECEMBER // 2 else month, day, seconds, seen.line)

    return sorted(sightings, key=at)
