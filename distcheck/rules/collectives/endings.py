"""How the ranks ended in the collectives: who is the cause, and who only waited for the cause.

One rank that stops makes every other wait or lose its connection. So what shows a cause of its own comes
first, and what can be a consequence counts only where nothing else is to be seen.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from distcheck.collectives.plan import OPERATIONS
from distcheck.facts import Collectives
from distcheck.rules.wording import grouped, listed, nodes_of, numbered, numbers_of

if TYPE_CHECKING:
    from distcheck.facts import Job, RankFacts, RankRun

UNAVAILABLE = "unavailable: "
"""How the detail of a run begins when torch lacks the backend."""
SILENT_SECONDS = 3.0
"""A rank says every half second that it is alive, so that this is six words missed."""

ENDED_MEANWHILE = "the run was ended"
"""How the detail of a run begins that could not start because somebody else's trouble ended it."""

# What Gloo, NCCL and torch's store say when the other side is gone or does not answer.
_LOST = re.compile(
    r"connection (closed|reset|refused)|socket closed|broken pipe|timed? ?out|"
    r"remote (process|peer)|ncclRemoteError",
    re.IGNORECASE,
)


class Endings(NamedTuple):
    """The ranks by how they ended; each rank is in at most one group, done ranks in none."""

    unavailable: list[RankFacts]
    stopped: list[RankFacts]
    died: list[RankFacts]
    aborted: list[RankFacts]
    """Died of SIGABRT: torch's watchdog does that to a rank that has waited too long for another."""
    unstarted: list[RankFacts]
    vanished: list[RankFacts]
    """Said nothing at all although others did."""
    failed: list[RankFacts]
    lost: list[RankFacts]
    """Failed because another rank did not answer."""
    stalled: list[RankFacts]

    @property
    def clear(self) -> bool:
        """Whether some ranks show a cause of their own that makes the others wait."""
        return bool(self.unavailable or self.stopped or self.died or self.unstarted)


def endings(job: Job) -> Endings:
    """Sort the ranks by how they ended; nobody is in any group when the collectives were not run."""
    groups = Endings([], [], [], [], [], [], [], [], [])
    if any(r.run is not None for r in job.ranks):
        for rank in job.ranks:
            group = _group(groups, rank.run)
            if group is not None:
                group.append(rank)
    return groups


def _group(groups: Endings, run: RankRun | None) -> list[RankFacts] | None:
    if run is None:
        return groups.vanished
    if run.outcome == "not started" and run.detail.startswith(ENDED_MEANWHILE):
        return None
    if run.outcome == "failed":
        if run.detail.startswith(UNAVAILABLE):
            return groups.unavailable
        return groups.lost if _LOST.search(run.detail) else groups.failed
    if run.outcome == "died":
        return groups.aborted if "SIGABRT" in run.detail else groups.died
    return {"stopped": groups.stopped, "not started": groups.unstarted, "stalled": groups.stalled}.get(run.outcome)


def suspects(job: Job, ended: Endings) -> tuple[list[RankFacts], str]:
    """Return the ranks for which the stalled ones probably wait, and what tells so; none when nothing does.

    Most ranks are not the cause: a sign that more than half of them show points elsewhere.
    """
    runs = [(r, r.run) for r in ended.stalled if r.run is not None]
    progress = {id(r): _progress(job, run.step) for r, run in runs}
    first, last = min(progress.values(), default=(0, 0, 0)), max(progress.values(), default=(0, 0, 0))
    signs: tuple[tuple[list[RankFacts], str], ...] = (
        (ended.vanished, "never said how it went on"),
        ([r for r, run in runs if "state D" in run.detail], "hung in an uninterruptible system call"),
        ([r for r, run in runs if run.silent_seconds >= SILENT_SECONDS], "fell silent"),
        ([r for r, _ in runs if progress[id(r)] == first < last], "got less far than the others"),
        ([r for r, _ in runs], "did not get to the end, the others did"),
    )
    for ranks, sign in signs:
        if ranks and 2 * len(ranks) <= len(job.ranks):
            return ranks, sign
    return [], ""


def _progress(job: Job, step: str) -> tuple[int, int, int]:
    """Return what grows from step to step of a rank; a step before the process group is before all others."""
    operations = job.asked.operations or OPERATIONS
    words = step.split()
    if step == "process group":
        return 0, 0, 0
    if len(words) == 2 and words[0] == "check" and words[1] in operations:
        return 1, operations.index(words[1]), 0
    if len(words) == 3 and words[0] in operations and words[1].isdecimal():
        return 2, operations.index(words[0]), int(words[1])
    return -1, 0, 0


def why_ended(job: Job) -> str:
    """Say in brackets why the collectives were ended early, '' when they were not."""
    ended = job.collectives.ended if isinstance(job.collectives, Collectives) else ""
    return f" ({ended})" if ended else ""


def late_import(job: Job, waiting: list[RankFacts]) -> str:
    """Say how long torch's slowest import took, where ranks never met because it took most of the time; else ''."""
    took = [(r.run.import_seconds or 0.0, r) for r in job.ranks if r.run]
    seconds, slowest = max(took, key=lambda pair: pair[0], default=(0.0, None))
    joining = all(r.run and r.run.step == "process group" for r in waiting)
    limit = job.asked.timeout_seconds
    if slowest is None or not joining or seconds <= limit / 2:
        return ""
    return f": importing torch took {seconds:.0f} of the {limit:g} s of --timeout on {who(job, [slowest])}"


def who(job: Job, ranks: list[RankFacts]) -> str:
    """Name ranks and their nodes: rank 1 (node2); a rank's own pid is in the evidence."""
    return f"{numbered(numbers_of(ranks))} ({listed(nodes_of(job, ranks))})"


def detail_of(rank: RankFacts) -> str:
    """Return the error, the signal or the kernel's state with which a rank ended."""
    return rank.run.detail if rank.run else ""


def step_of(rank: RankFacts) -> str:
    """Return what a rank did last."""
    return rank.run.step if rank.run else "nothing that was heard of"


def call_of(rank: RankFacts) -> str:
    """Return the innermost Python call in which a rank was when the run ended, '' where it did not tell."""
    return rank.run.stack[0] if rank.run and rank.run.stack else ""


def steps_of(ranks: list[RankFacts]) -> str:
    """Name the step of ranks, and all of them when they differ."""
    return listed([f"'{step}'" for step in grouped(ranks, step_of)])


def evidence_of(ranks: list[RankFacts]) -> dict[str, str]:
    """Return what the process of each of the first ranks did last; nobody reads thousands.

    Like this: rank 3: pid 4711 in 'all_reduce 1024 B', silent for 4.0 s: was ended by SIGKILL.
    """
    evidence = {}
    for rank in ranks[:16]:
        if rank.run is not None:
            run = rank.run
            silent = f", silent for {run.silent_seconds:.1f} s" if run.silent_seconds else ""
            detail = f": {run.detail}" if run.detail else ""
            pid = "" if run.pid is None else f"pid {run.pid} "
            sleeps = f", in the kernel's {run.waits_in}" if run.waits_in else ""
            stack = f"; calls: {' < '.join(run.stack)}" if run.stack else ""
            evidence[f"rank {rank.placement.rank}"] = f"{pid}in '{run.step}'{silent}{detail}{sleeps}{stack}"
    return evidence
