"""The answer to logs: a document with causes, fixes and what to run next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import msgspec

from distcheck.explain import remedies
from distcheck.explain.gloo import barrier, unheard
from distcheck.explain.hang import Hang, hang, mismatch
from distcheck.explain.judging import LikelyCause, judged
from distcheck.explain.known import known
from distcheck.explain.matching import Matcher
from distcheck.explain.places import of_path
from distcheck.explain.quoted import quoted
from distcheck.explain.reading import logs, pieces
from distcheck.explain.redaction import shown
from distcheck.explain.sighting import Sighting
from distcheck.explain.spelling import CONSEQUENCE, HINT, About, Spelling
from distcheck.explain.steps import BY_CLASS, steps
from distcheck.explain.subject import known_rule
from distcheck.explain.waits import Waits
from distcheck.explain.watchdog import WatchdogLines
from distcheck.rules.finding import Fix

_NAMES_A_CAUSE = frozenset({"mismatch", "behind"})
"""What the lines of all ranks may prove, and names the ranks to look at."""


class NamedCause(msgspec.Struct, frozen=True, kw_only=True):
    """What may be the cause, and the line that shows it."""

    rule: str | None
    """The rule that names it; None if only `summary` does, and then there is no fix, prove and docs."""
    summary: str
    about: About = msgspec.field(name="class")
    line: int
    file: str
    rank: int | None
    local_rank: int | None
    """The rank's number on its node, where the log has no other."""
    node: str | None
    text: str
    """About 160 characters around the match, redacted."""
    times: int
    fix: Fix | None = None
    prove: str | None = None
    """The command that shows whether the rule applies."""
    docs: str | None = None


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """The line that tells most."""

    line: int
    file: str
    rank: int | None
    local_rank: int | None
    """The rank's number on its node, where the log has no other."""
    node: str | None
    text: str
    says: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What logs tell. `causes` is empty if the logs do not name the cause."""

    schema: int = 1
    causes: tuple[NamedCause, ...]
    about: About | None = msgspec.field(name="class")
    telling: Telling | None
    hang: Hang | None = None
    """What the lines of all ranks prove about a collective that timed out or failed, if no rule names the cause."""
    later: tuple[Telling, ...] = ()
    """Consequences, and lines that the cause does not explain."""
    next: tuple[str, ...] = ()
    """Commands to run next."""
    unread: tuple[str, ...] = ()
    """Files of directories that were not read, or not to their end, each with the reason."""

    @property
    def exit_code(self) -> int:
        """0 if a cause is named, 20 if not."""
        return 0 if self.causes else 20


@cache
def spellings() -> tuple[Spelling, ...]:
    """Return all spellings: those of the tables, and those that the rules quote."""
    return (*known(), *quoted())


def explained(paths: Sequence[Path]) -> Answer:
    """Return the answer to logs: files, directories, or - for standard input.

    Raises:
        UsageError: a log that is named itself cannot be read.
    """
    matcher, watchdog = Matcher(spellings()), WatchdogLines()
    seen: list[Sighting] = []
    unread: list[str] = []
    for log in logs(paths, unread):
        of_file = of_path(log.path)
        found = matcher.search(watchdog.watched(pieces(log, unread), of_file), log.name, of_file)
        seen += sorted(found, key=lambda sighting: sighting.line)
    return msgspec.structs.replace(answer(seen, watchdog.seen()), unread=tuple(map(shown, unread)))


def answer(seen: Sequence[Sighting], watch: Waits | None = None) -> Answer:
    """Return the answer to the lines that were found, which are in the order of the logs.

    The watchdog's lines count only if a collective that timed out is all that the log shows.
    """
    if any(s.tags & {"root-cause", "failed"} for s in seen):  # torchrun numbers the ranks
        seen = [s._replace(place=s.place._replace(rank=None)) if s.place.of_task else s for s in seen]
    judgement = judged(seen, watch.lost if watch else ())
    first = judgement.telling
    if first is None:
        return Answer(causes=(), about=None, telling=None, next=BY_CLASS[""])
    root = next((s for s in seen if "root-cause" in s.tags), None)
    nodes = tuple(dict.fromkeys(s.place.node for s in seen if s.place.node))
    values = {name: value for s in reversed(seen) for name, value in s.values.items() if "root-cause" not in s.tags}
    settings = frozenset(chain.from_iterable(s.settings for s in seen))
    causes = tuple(
        _named(cause, root if cause.seen is first else None, values, nodes, settings) for cause in judgement.causes
    )
    later = {(s.file, s.line): s for s in reversed(judgement.consequences) if s.spelling.weight > HINT}
    later.pop((first.file, first.line), None)
    proof = causes[0].prove if causes else None
    found = None if proof else _hang(seen, watch, first.spelling)
    if found and found.kind in _NAMES_A_CAUSE:
        causes = (msgspec.structs.replace(_unnamed(first, root), summary=sentence(found.says)),)
    return Answer(
        causes=causes,
        about=judgement.about,
        telling=_telling(first, root),
        hang=found,
        later=tuple(_telling(s, None) for s in [*reversed(later.values())][:2]),
        next=(proof,) if proof else steps(first, found, dumped=watch is not None and watch.dumped),
    )


def _hang(seen: Sequence[Sighting], watch: Waits | None, spelling: Spelling) -> Hang | None:
    """Return what lines prove about the collective of an error; the watchdog's all of it only if it timed out."""
    if spelling.weight <= CONSEQUENCE and (late := barrier(seen)):
        return late
    if watch is None:
        return None
    found = None
    if "collective" in spelling.tags:
        found = hang(watch) if spelling.weight == CONSEQUENCE else mismatch(watch)
    return found or (unheard(watch) if spelling.weight == CONSEQUENCE else None)


def _named(
    cause: LikelyCause,
    root: Sighting | None,
    values: dict[str, str],
    nodes: tuple[str, ...],
    settings: frozenset[str],
) -> NamedCause:
    unnamed = _unnamed(cause.seen, root)
    if cause.rule is None:
        return unnamed
    rule, own = known_rule(cause.rule), values | cause.seen.values
    return msgspec.structs.replace(
        unnamed,
        rule=rule.name,
        summary=rule.summary.replace("``", "`"),
        fix=remedies.fix(rule.name, own, unnamed.text, settings),
        prove=remedies.proof(rule.name, own, nodes),
        docs=rule.page,
    )


def _unnamed(seen: Sighting, root: Sighting | None) -> NamedCause:
    """Return the cause that a line's sentence names."""
    told = msgspec.structs.asdict(_telling(seen, root))
    return NamedCause(rule=None, summary=told.pop("says"), about=seen.spelling.about, times=seen.times, **told)


def sentence(text: str) -> str:
    """Return text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def _telling(seen: Sighting, root: Sighting | None) -> Telling:
    rank, node, local, _ = seen.place
    if root and rank is None and (seen is root or _may_be(root, node, local)):
        rank, node = _number(root, "rank"), root.values.get("node", node)
    return Telling(
        line=seen.line,
        file=shown(seen.file),
        rank=rank,
        local_rank=local if rank is None else None,
        node=node,
        text=seen.text,
        says=seen.spelling.says,
    )


def _may_be(root: Sighting, node: str | None, local: int | None) -> bool:
    """Whether the rank that torchrun's agent saw fail first may have this place."""
    return node in {None, root.values.get("node")} and local in {None, _number(root, "local")}


def _number(seen: Sighting, name: str) -> int | None:
    value = seen.values.get(name)
    return int(value) if value else None
