"""How the ranks ended in the collectives: which are the cause, and which only waited.

One rank that stops makes every other rank wait or lose its connection. So ranks that show their own cause come first.
What can be a consequence counts only where no rank shows a cause.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from distcheck.collectives.plan import DEVICE_TEST, OPERATIONS, TRAINING
from distcheck.facts.job import Collectives
from distcheck.facts.ranges import numbered
from distcheck.rules.finding import Fix
from distcheck.rules.wording import grouped, listed, nodes_of, numbers_of, once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts, RankRun

UNAVAILABLE = "unavailable: "
"""How the detail of a run begins when torch lacks the backend."""
SILENT_SECONDS = 3.0
"""Six missed heartbeats: a rank sends one every half second."""

ENDED_MEANWHILE = "the run was ended"
"""How the detail of a run begins that could not start because another rank's failure ended it."""

# Errors of Gloo, NCCL and torch's store when the other side is gone or does not answer.
_LOST = re.compile(
    r"connection (closed|reset|refused)|socket closed|broken pipe|timed? ?out|"
    r"remote (process|peer)|ncclRemoteError",
    re.IGNORECASE,
)


_UNIMPORTED = re.compile(r"torch was not imported within ([\d.]+) s")
_IMPORT_SECONDS = 30.0
"""An import of torch that was given less may have been healthy: it takes so long on a busy machine or file server."""
_WAYS = ("DDP", "FSDP2")
_PARTS = ("model", "wrap", "step 1", "step 2")
"""How a rank goes through its training steps."""


@once
def endings(job: Job) -> Mapping[str, list[RankFacts]]:
    """Return the ranks that did not end well by how they ended; none if no collective was run."""
    ran = any(r.run is not None for r in job.ranks)
    groups = grouped(job.ranks if ran else (), lambda rank: _ending(rank.run))
    return defaultdict(list, {ending: ranks for ending, ranks in groups.items() if ending})


def _ending(run: RankRun | None) -> str:
    """Return how a run ended, '' if it is done or another rank's failure kept it from starting.

    An aborted rank died of SIGABRT: torch's watchdog aborts a rank that waited too long for another. A vanished rank
    never reported although others did. A lost rank failed because another one did not answer, an awaiting one because
    others did not come to form a group of the mesh.
    """
    if run is None:
        return "vanished"
    if run.outcome == "failed":
        own = "unavailable" if run.detail.startswith(UNAVAILABLE) else "lost" if _LOST.search(run.detail) else "failed"
        return "awaiting" if run.absent else own
    if run.outcome == "died":
        return "aborted" if "SIGABRT" in run.detail else "died"
    meanwhile = run.outcome == "not started" and run.detail.startswith(ENDED_MEANWHILE)
    return "" if meanwhile or run.outcome == "done" else run.outcome


def shows_cause(job: Job) -> bool:
    """Return whether some ranks show their own cause, for which the others wait."""
    return any(endings(job)[how] for how in ("unavailable", "stopped", "died", "not started", "awaiting"))


def suspects(job: Job) -> tuple[list[RankFacts], str]:
    """Return the ranks that the stalled ones probably wait for, and the sign; else none.

    Most ranks are not the cause, so a sign that more than half of them show does not count.
    """
    ended = endings(job)
    runs = [(r, r.run) for r in ended["stalled"] if r.run is not None]
    progress = {id(r): _progress(job, run) for r, run in runs}
    first, last = min(progress.values(), default=(0, 0, 0)), max(progress.values(), default=(0, 0, 0))
    signs: tuple[tuple[list[RankFacts], str], ...] = (
        (ended["vanished"], "never reported progress"),
        ([r for r, run in runs if "state D" in run.detail], "hung in an uninterruptible system call"),
        ([r for r, run in runs if run.silent_seconds >= SILENT_SECONDS], "stopped reporting"),
        ([r for r, _ in runs if progress[id(r)] == first < last], "made less progress than the others"),
        ([r for r, _ in runs], "did not finish, the others did"),
    )
    for ranks, sign in signs:
        if ranks and 2 * len(ranks) <= len(job.ranks):
            return ranks, sign
    return [], ""


def _progress(job: Job, run: RankRun) -> tuple[int, int, int]:
    """Return a rank's progress as a growing key; steps before the process group come first."""
    step = run.step
    operations = job.asked.operations or OPERATIONS
    parts = step.split()
    if step == "process group":
        return 0, 0, 0
    if step.startswith(DEVICE_TEST):
        return 4, 0, 0
    if step.startswith(TRAINING):
        way, _, part = step.removeprefix(f"{TRAINING}: ").partition(" ")
        return 5, _place(way, _WAYS), _place(part, _PARTS)
    if run.place:
        return 3, run.place, 0
    if len(parts) == 2 and parts[0] == "check" and parts[1] in operations:
        return 1, operations.index(parts[1]), 0
    if len(parts) == 3 and parts[0] in operations and parts[1].isdecimal():
        return 2, operations.index(parts[0]), int(parts[1])
    return -1, 0, 0


def _place(word: str, order: tuple[str, ...]) -> int:
    return order.index(word) + 1 if word in order else 0


def why_ended(job: Job) -> str:
    """Return in brackets why the collectives were ended early, '' when they were not."""
    ended = job.collectives.ended if isinstance(job.collectives, Collectives) else ""
    return f" ({ended})" if ended else ""


def late_import(job: Job, waiting: list[RankFacts]) -> str:
    """Return how long the slowest torch import took if it kept ranks from meeting, else ''."""
    took = [(r.run.import_seconds or 0.0, r) for r in job.ranks if r.run]
    seconds, slowest = max(took, key=lambda pair: pair[0], default=(0.0, None))
    joining = all(r.run and r.run.step == "process group" for r in waiting)
    limit = job.asked.timeout_seconds
    if slowest is None or not joining or seconds <= limit / 2:
        return ""
    return f": importing torch took {seconds:.0f} of the {limit:g} s of --timeout on {who(job, [slowest])}"


def who(job: Job, ranks: list[RankFacts]) -> str:
    """Return the names of ranks and their nodes: rank 1 (node2); the pid is in the evidence."""
    return f"{numbered(numbers_of(ranks))} ({listed(nodes_of(job, ranks))})"


def detail_of(rank: RankFacts) -> str:
    """Return the error, the signal or the kernel's state with which a rank ended."""
    return rank.run.detail if rank.run else ""


def step_of(rank: RankFacts) -> str:
    """Return the last step of a rank."""
    return rank.run.step if rank.run else "no reported step"


def call_of(rank: RankFacts) -> str:
    """Return a rank's innermost Python call when the run ended, '' if unknown."""
    return rank.run.stack[0] if rank.run and rank.run.stack else ""


def steps_of(ranks: list[RankFacts]) -> str:
    """Return the last step of ranks, or all of them when they differ."""
    return listed([f"'{step}'" for step in grouped(ranks, step_of)])


def evidence_of(ranks: list[RankFacts]) -> dict[str, str]:
    """Return what the process of each of the first 16 ranks did last.

    Example: rank 3: pid 4711 in 'all_reduce 1024 B', silent for 4.0 s: was ended by SIGKILL.
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


def of_groups(job: Job, op: str, ranks: list[RankFacts]) -> str:
    """Return the groups of these ranks, for an operation in the groups of a mesh: any rank of them may be at fault."""
    if job.asked.mesh is None:
        return ""
    from distcheck.rules.job.mesh import groups_with  # only needed with a mesh

    groups = groups_with(job, op.partition(" in ")[2], numbers_of(ranks))
    return f"; {listed([f'group of {numbered(group)}' for group in groups])}" if groups else ""


def fix_for_error(job: Job, error: str, *, own: bool) -> Fix:
    """Return the fix for a rank's own error, or for ranks that lost each other (not own)."""
    if "/dev/shm" in error:  # noqa: S108 NCCL's text
        return Fix(
            "Make /dev/shm larger; on a host, first remove leftover files of earlier jobs from it.",
            ("df -h /dev/shm; ls -la /dev/shm", "# add to docker run: --shm-size=8g"),
        )
    return Fix(
        "Follow the error; let the backend log what it tried."
        if own
        else "Check the network between the nodes; these ranks lost each other and none shows the cause.",
        ("NCCL_DEBUG=INFO distcheck bandwidth -v" if backend_of(job) == "nccl" else "distcheck net",),
    )


def short_of_time(job: Job, error: str) -> str:
    """Return that --timeout left too little time to import torch, if this error shows it; else ''."""
    waited = _UNIMPORTED.search(error)
    if waited is None or float(waited[1]) >= _IMPORT_SECONDS:
        return ""
    usual = max(60.0, 2 * job.asked.timeout_seconds)
    limit = f"--timeout {job.asked.timeout_seconds:g}"
    return f"{limit} left {waited[1]} s to import torch, which took longer; use --timeout {usual:g}"


def fix_for_start(error: str) -> Fix:
    """Return the fix for ranks that could not start with this error."""
    if "'torch' is not a package" in error:
        return Fix("A file torch.py hides torch: rename it.", ("python -c 'import torch; print(torch.__file__)'",))
    if "torch" in error:
        return Fix("Make the same torch importable on every node.", ("python -c 'import torch'",))
    if error.endswith(("Permission denied", "No such file or directory")):
        return Fix(
            "Let this user run the Python interpreter of distcheck on these nodes.",
            ("python -c 'import os, sys; print(sys.executable, os.access(sys.executable, os.X_OK))'",),
        )
    return Fix("Raise the limit, or end what uses it up.", ("ulimit -u; cat /sys/fs/cgroup/pids.max", "free -g"))


def backend_of(job: Job) -> str:
    """Return the backend of the collectives, or the requested one if they were not run."""
    kind = job.collectives.backend if isinstance(job.collectives, Collectives) else job.asked.backend
    return job.asked.backend_name or kind
