"""Runs NCCL's own diagnostics once the collectives have passed: in new rank processes, which are ended at a limit.

NCCL runs them as it makes a communicator, and only prints what they find. They test the GPUs' peer-to-peer access,
since 2.32 also the network's bandwidth; the passive ones compare drivers, GPUs, ECC counts and settings through RAS.
What the measured ranks did is recorded by then, so that a diagnostic that hangs or fails changes nothing of it.

Source: NCCL's user guide, troubleshooting/diagnostics; NCCL_RUN_DIAGNOSTICS is in the constants of libnccl.so.2 since
2.31.2 (docs/variables/nccl.txt)
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives
from distcheck.facts.members import Members
from distcheck.isolation.round import NodeGroup, Round
from distcheck.run.group_tests import GroupTests
from distcheck.run.progress import StageView
from distcheck.run.repeat import smallest_part
from distcheck.selection.alternatives import DIAGNOSTICS, DIAGNOSTICS_SINCE

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.run.context import Session

_LIMIT_SECONDS = 25.0
"""For the ranks' start, the connections, and the diagnostics, of which the network's take 5 s by default."""
_RESERVE_SECONDS = 4.0
_LEAST_SECONDS = 8.0


async def diagnose(run: Session, job: Job) -> None:
    """Have NCCL diagnose the ranks if it can and they passed; record its lines, and how long it took."""
    ran = job.collectives
    version = re.findall(r"\d{1,6}", ran.nccl)[:2] if isinstance(ran, Collectives) else ()
    passed = all(rank.run is not None and rank.run.outcome == "done" for rank in job.ranks)
    asked = any(name in rank.environment for rank in job.ranks for name in DIAGNOSTICS)  # the measured ranks ran them
    if not isinstance(ran, Collectives) or asked or not passed:
        return
    if len(job.ranks) < 2 or tuple(map(int, version)) < DIAGNOSTICS_SINCE:
        return
    run.record.collectives = replace(ran, diagnosed=await _held(run, job))


async def _held(run: Session, job: Job) -> float | Missing:
    """Run the diagnostics; return how many seconds they took."""
    members = Members(job)
    nodes = tuple(members.by_node)
    if any(rank != number for part in members.parts(nodes).values() for rank, (number, _) in part.items()):
        return Missing(reason="NCCL's numbers would not be the ranks', which are not numbered node by node")
    left = run.remaining(_RESERVE_SECONDS)
    if left < _LEAST_SECONDS:
        return Missing(reason=f"{left:.0f} s of --timeout were left; they need {_LEAST_SECONDS:.0f} s")
    text = f"NCCL's own diagnostics on {len(job.ranks)} ranks"
    run.progress.begin(text, lambda: StageView("collectives", text))
    step, plan = Round(1, (NodeGroup(nodes, "again"),)), smallest_part(run.plan("nccl"))
    limit, began = min(_LIMIT_SECONDS, left), time.monotonic()
    tests = GroupTests(run, run.server, members, "nccl", step, limit, plan=plan, variables=DIAGNOSTICS)
    results = await tests.hold()
    for uid, report in tests.reports.items():
        run.record.take_diagnostics(report.runs, uid)
    if not results or results[0].ended != "passed":
        how = results[0].ended if results else "did not end"
        words = f": {results[0].said[0]}" if results and results[0].said else ""
        return Missing(reason=f"they {how} and were ended after {limit:.0f} s at most{words}"[:300])
    return time.monotonic() - began
