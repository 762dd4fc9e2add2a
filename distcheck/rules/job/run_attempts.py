"""The attempts of torchrun's agents: the earlier one that the nodes remember, and this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.rank import RunAttempt
from distcheck.rules.job.agents import agents_of
from distcheck.rules.job.settings import number
from distcheck.rules.job.world import is_complete

if TYPE_CHECKING:
    from distcheck.facts.job import Job


def earlier(job: Job) -> RunAttempt | None:
    """Return the latest earlier attempt that an agent of this job remembers."""
    remembered = [p.earlier_attempt for p in job.processes if isinstance(p.earlier_attempt, RunAttempt)]
    return max((a for a in remembered if a.number), key=lambda a: a.number, default=None)


def restart(job: Job) -> str:
    """Return which attempt and restart this is: attempt 3, restart 1 of 3; '' for the first.

    Each agent counts its own restarts, so one that joined late has counted fewer.
    """
    last = earlier(job)
    counts = [(number(a.rank, "TORCHELASTIC_RESTART_COUNT") or 0, a.rank) for a in agents_of(job)]
    most, first = max(counts, key=lambda pair: pair[0], default=(0, None))
    parts = [f"attempt {last.number + 1}"] if last else []
    if first is not None and most:
        parts.append(f"restart {most} of {first.environment.get('TORCHELASTIC_MAX_RESTARTS', '?')}")
    return ", ".join(parts)


def this_attempt(job: Job) -> RunAttempt | None:
    """Return this attempt; None if no agent remembers attempts, or if ranks or agents are unknown."""
    agents = {f"{p.node}|{p.agent.pid}": job.node_names[p.node] for p in job.processes if p.agent is not None}
    keeps = any(isinstance(p.earlier_attempt, RunAttempt) for p in job.processes)
    if not keeps or not is_complete(job) or any(p.agent is None for p in job.processes):
        return None
    last = earlier(job)
    return RunAttempt(last.number + 1 if last else 1, agents)
