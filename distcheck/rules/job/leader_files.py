"""Whether the leader may open enough files to hold a connection to every process of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.rank import Role

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import ProcessFacts, RankFacts


def short_of_files(job: Job) -> tuple[ProcessFacts, int, int] | None:
    """Return the leader, its room for followers and how many there should be; None if the room suffices.

    The processes of missing ranks are taken to speak for as many ranks as the others.
    """
    leader = next((p for p in job.processes if p.role is Role.LEADER), None)
    missing = len(job.missing_ranks)
    if leader is None or leader.most_followers is None or not missing or not job.ranks:
        return None
    expected = len(job.processes) - 1 + -(-missing * len(job.processes) // len(job.ranks))
    return (leader, leader.most_followers, expected) if expected > leader.most_followers else None


def is_out_of_files(job: Job) -> bool:
    """Whether the leader has reached its limit, so that the missing ranks could not join."""
    short = short_of_files(job)
    return bool(turned_away(job)) or (short is not None and len(job.processes) - 1 >= short[1])


def turned_away(job: Job) -> list[RankFacts]:
    """Return the ranks that the leader's process did not admit because of its limit."""
    away = {p.uid for p in job.processes if any(a.outcome == "full" for a in p.attempts)}
    return [rank for rank in job.ranks if rank.process in away] if away else []
