"""What NCCL's RAS adds to a stalled collective: the ranks that it misses, and those that launched fewer operations.

RAS names ranks as a lead. It blames no rank by itself, and a rank that it does not list is not shown to be healthy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives
from distcheck.facts.nccl import Ras
from distcheck.facts.quantities import count
from distcheck.facts.ranges import numbered
from distcheck.rules.wording import brief, grouped

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.nccl import RasBehind

_MOST_BEHIND, _MOST_WORDS, _LONGEST_LIST = 4, 4, 200


def ras_named(job: Job) -> str:
    """Return the ranks that RAS names, as the end of a message; '' if it names none."""
    said = _said(job)
    if not isinstance(said, Ras):
        return ""
    parts = [f"{_missing(said)} did not answer"] if said.missing_number else []
    parts += [_behind(group) for group in _named(said)[:1]]
    return f"; NCCL's RAS: {', and '.join(parts)}" if parts else ""


def ras_ranks(job: Job) -> frozenset[int]:
    """Return the ranks that RAS names."""
    said = _said(job)
    if not isinstance(said, Ras):
        return frozenset()
    return frozenset(said.missing).union(*(group.ranks for group in said.behind))


def ras_evidence(job: Job) -> dict[str, str]:
    """Return RAS's answer as evidence, or why there is none; nothing if it was not asked."""
    said = _said(job)
    if said is None:
        return {}
    if isinstance(said, Missing):
        return {"NCCL's RAS": said.reason}
    shown = {"did not answer": _missing(said)} if said.missing_number else {}
    if said.dead:
        shown["given up"] = brief(numbered(list(said.dead)), _LONGEST_LIST)
    for operation, groups in grouped(_named(said)[:_MOST_BEHIND], lambda group: group.operation).items():
        shown[f"behind in {operation}"] = "; ".join(map(_behind, groups))
    if said.words:
        shown["errors and warnings"] = brief("; ".join(said.words[:_MOST_WORDS]), 400)
    if not shown:
        shown["names no rank"] = "every rank answered, and all launched the same operations"
    return {f"NCCL's RAS (rank {said.rank} answered): {what}": text for what, text in shown.items()}


def _said(job: Job) -> Ras | Missing | None:
    return job.collectives.ras if isinstance(job.collectives, Collectives) else None


def _named(said: Ras) -> list[RasBehind]:
    """Return the groups that are behind, those whose ranks are known and fewest first."""
    return sorted(said.behind, key=lambda group: (not group.ranks, group.number))


def _missing(said: Ras) -> str:
    if said.missing and len(said.missing) == said.missing_number:
        return brief(numbered(list(said.missing)), _LONGEST_LIST)
    return count(said.missing_number, "rank")


def _behind(group: RasBehind) -> str:
    who = brief(numbered(list(group.ranks)), _LONGEST_LIST) if group.ranks else count(group.number, "rank")
    return f"{who} launched {group.launched} of {group.most} {group.operation} operations"
