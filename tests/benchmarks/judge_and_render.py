"""Judge jobs on nodes as real ones are, and render their reports: ``judge_and_render.py FEW MANY [faults]``.

A repetition takes FEW ranks as often as they make up for MANY, and then MANY once. It gives two figures of growth: that
of judging and rendering, and that of a plain pass over the ranks, of which judging makes hundreds. Prints as JSON such
pairs for a healthy job, and the seconds of CPU of MANY; the share of each rule that takes more than a tenth of judging
them, and the largest share; and in GiB what that job itself takes and what judging and rendering it takes beyond it, at
its peak. With ``faults`` it prints the pairs for each fault on a third of the nodes instead.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck import report
from distcheck.rules import rules_for
from distcheck.rules.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1]))
import real_job

if TYPE_CHECKING:
    from distcheck.facts.job import Job

REPEATS = 4
PASSES = 5
DEAR = 0.1
"""A rule that takes a larger share of the judging is named."""
FAULTS = (
    "they do not answer",
    "NCCL takes Docker's bridge",
    "another MASTER_PORT",
    "a GPU with an uncorrected error",
    "the ranks of a node died",
)


class Growth(NamedTuple):
    """How many times as long many ranks take as few, in the same minute."""

    judged: float
    plain: float


def seconds(job: Job, *, healthy: bool) -> float:
    """Return the seconds of CPU of one run: nothing in it waits, and other work on the machine does not count."""
    fresh = msgspec.structs.replace(job)  # without what the last round cached
    start = time.process_time()
    diagnosis = diagnose(fresh)
    text = report.render("text", fresh, diagnosis)
    took = time.process_time() - start
    if healthy != (diagnosis.verdict.exit_code == 0):
        raise SystemExit(f"the job is {'not ' if healthy else ''}healthy: {text}")
    return took


def plain_pass(job: Job) -> float:
    """Return the seconds of CPU for some looks at each rank's process, node and RANK.

    That is linear. It takes longer per rank in a larger job all the same, where the facts do not fit the CPU's caches.
    """
    start = time.process_time()
    for _ in range(PASSES):
        seen = sum(bool(job.process_of(r).uid and job.node_of(r).name and r.environment.get("RANK")) for r in job.ranks)
        assert seen == len(job.ranks)
    return time.process_time() - start


def grown(few: Job, many: Job, *, healthy: bool) -> tuple[Growth, float]:
    """Return the growth from few ranks to many, and the seconds of CPU of many."""
    times = len(many.ranks) // len(few.ranks)
    plain = fmean(plain_pass(few) for _ in range(times)), plain_pass(many)
    judged = fmean(seconds(few, healthy=healthy) for _ in range(times)), seconds(many, healthy=healthy)
    return Growth(judged[1] / judged[0], plain[1] / plain[0]), judged[1]


def shares(job: Job) -> dict[str, float]:
    """Return each rule's share of judging a job. What several rules need is on the account of the first one."""
    fresh, took = msgspec.structs.replace(job), {}
    for rule in rules_for(fresh):
        if rule.applies(fresh) and not rule.unlooked(fresh):
            start = time.process_time()
            list(rule.judge(fresh))
            took[rule.name] = time.process_time() - start
    return {name: seconds / sum(took.values()) for name, seconds in took.items()}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def of_healthy(few: int, many: int) -> dict[str, object]:
    before = peak()
    job = real_job.healthy(many)
    built = peak()
    seconds(job, healthy=True)
    judged = peak()
    less = real_job.healthy(few)
    found = [grown(less, job, healthy=True) for _ in range(REPEATS)]
    of_rules = shares(job)
    return {
        "growth": {"healthy": [growth for growth, _ in found]},
        "seconds": [took for _, took in found],
        "dear": {name: share for name, share in of_rules.items() if share > DEAR},
        "dearest": max(of_rules.values()),
        "job_GiB": built - before,
        "GiB": judged - built,
    }


def of_faults(few: int, many: int) -> dict[str, object]:
    jobs = real_job.healthy(few), real_job.healthy(many)
    growth = {}
    for fault in FAULTS:
        less, more = (real_job.faulty(job, fault, 3) for job in jobs)
        growth[fault] = [grown(less, more, healthy=False)[0] for _ in range(REPEATS)]
    return {"growth": growth}


def main() -> None:
    gc.set_threshold(100_000, 1_000, 1_000)  # as distcheck.run.garbage sets it
    seconds(real_job.healthy(2), healthy=True)  # imports the rules, once for all that follows
    few, many = (int(ranks) // real_job.GPUS for ranks in sys.argv[1:3])
    print(json.dumps((of_faults if sys.argv[3:] == ["faults"] else of_healthy)(few, many)))


main()
