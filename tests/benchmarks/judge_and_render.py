"""Judge jobs of RANKS ranks as on real nodes, and render their reports: ``judge_and_render.py RANKS [healthy]``.

Prints as JSON the instructions that a healthy job takes, and in GiB what the job itself takes and what judging and
rendering it takes beyond that, at its peak. Without ``healthy`` also: the instructions for each fault on a third of the
nodes; and of the healthy job the seconds of CPU of some runs, the share of each rule that takes more than a tenth of
judging it, and the largest share.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck import report
from distcheck.rules import rules_for
from distcheck.rules.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1]))
import real_job
from benchmarks.instructions import counted

if TYPE_CHECKING:
    from distcheck.facts.job import Job

REPEATS = 3
DEAR = 0.1
"""A rule that takes a larger share of the judging is named."""
HEALTHY = "healthy"
FAULTS = (
    "they do not answer",
    "NCCL takes Docker's bridge",
    "another MASTER_PORT",
    "a GPU with an uncorrected error",
    "the ranks of a node died",
)


class Took(NamedTuple):
    """What judging and rendering a job took outside the kernel; other work on the machine does not count."""

    instructions: int
    seconds: float
    """Of CPU; nothing in it waits."""


def judge(job: Job, kind: str) -> Took:
    fresh = msgspec.structs.replace(job)  # without what the last round cached

    def work() -> int:
        diagnosis = diagnose(fresh)
        report.render("text", fresh, diagnosis)
        return diagnosis.verdict.exit_code

    start = time.process_time()
    instructions, exit_code = counted(work)
    if (exit_code == 0) != (kind == HEALTHY):
        raise SystemExit(f"{kind}: exit code {exit_code}")
    return Took(instructions, time.process_time() - start)


def shares(job: Job) -> dict[str, float]:
    """Return each rule's share of judging a job. What several rules need is on the account of the first one."""
    fresh = msgspec.structs.replace(job)
    took = {
        rule.name: counted(lambda rule=rule: list(rule.judge(fresh)))[0]
        for rule in rules_for(fresh)
        if rule.applies(fresh) and not rule.unlooked(fresh)
    }
    return {name: count / sum(took.values()) for name, count in took.items()}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def main() -> None:
    gc.set_threshold(100_000, 1_000, 1_000)  # as distcheck.run.garbage sets it
    judge(real_job.healthy(2), HEALTHY)  # imports the rules, once for all that follows
    before = peak()
    job = real_job.healthy(int(sys.argv[1]) // real_job.GPUS)
    built = peak()
    took = {HEALTHY: judge(job, HEALTHY)}
    found: dict[str, object] = {"job_GiB": built - before, "GiB": peak() - built}
    if sys.argv[2:] != [HEALTHY]:
        again = [judge(job, HEALTHY) for _ in range(REPEATS - 1)]
        found["seconds"] = [its.seconds for its in (took[HEALTHY], *again)]
        of_rules = shares(job)
        found["dear"] = {name: share for name, share in of_rules.items() if share > DEAR}
        found["dearest"] = max(of_rules.values())
        took |= {fault: judge(real_job.faulty(job, fault, 3), fault) for fault in FAULTS}
    found["instructions"] = {kind: its.instructions for kind, its in took.items()}
    print(json.dumps(found))


main()
