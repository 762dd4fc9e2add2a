"""Judge jobs of RANKS ranks on nodes as real ones are, and render their reports: ``judge_and_render.py RANKS``.

Prints as JSON the seconds of CPU of some runs, for a healthy job and for each fault on a third of the nodes;
the same for a plain pass over the ranks, of which judging makes hundreds; the share of each rule that takes more than
a tenth of judging the healthy job, and the largest share; and in GiB what the job itself takes and what judging and
rendering the healthy one takes beyond it, at its peak.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distcheck import report
from distcheck.rules import rules_for
from distcheck.rules.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1]))
import real_job

if TYPE_CHECKING:
    from distcheck.facts.job import Job

REPEATS = 3
PASSES = 20
DEAR = 0.1
"""A rule that takes a larger share of the judging is named."""
FAULTS = (
    "they do not answer",
    "NCCL takes Docker's bridge",
    "another MASTER_PORT",
    "a GPU with an uncorrected error",
    "the ranks of a node died",
)


def seconds(job: Job, *, healthy: bool) -> list[float]:
    """Return the seconds of CPU of some runs: nothing in it waits, and other work on the machine does not count."""
    took = []
    for _ in range(REPEATS):
        fresh = msgspec.structs.replace(job)  # without what the last round cached
        start = time.process_time()
        diagnosis = diagnose(fresh)
        text = report.render("text", fresh, diagnosis)
        took.append(time.process_time() - start)
        if healthy != (diagnosis.verdict.exit_code == 0):
            raise SystemExit(f"the job is {'not ' if healthy else ''}healthy: {text}")
    return took


def plain_pass(job: Job) -> list[float]:
    """Return the seconds of CPU for one look at each rank's process, node and RANK.

    It is linear. It takes longer per rank in a larger job all the same, where the facts do not fit the CPU's caches.
    """
    took = []
    for _ in range(PASSES):
        start = time.process_time()
        seen = sum(bool(job.process_of(r).uid and job.node_of(r).name and r.environment.get("RANK")) for r in job.ranks)
        took.append(time.process_time() - start)
        assert seen == len(job.ranks)
    return took


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


def main() -> None:
    gc.set_threshold(100_000, 1_000, 1_000)  # as distcheck.run.garbage sets it
    nodes = int(sys.argv[1]) // real_job.GPUS
    seconds(real_job.healthy(2), healthy=True)  # imports the rules, once for all that follows
    before = peak()
    job = real_job.healthy(nodes)
    built = peak()
    took = {"healthy": seconds(job, healthy=True)}
    judged = peak()
    plain = plain_pass(job)
    of_rules = shares(job)
    for fault in FAULTS:
        took[fault] = seconds(real_job.faulty(job, fault, 3), healthy=False)
    dear = {name: share for name, share in of_rules.items() if share > DEAR}
    found = {"seconds": took, "plain": plain, "dear": dear, "dearest": max(of_rules.values())}
    print(json.dumps(found | {"job_GiB": built - before, "GiB": judged - built}))


main()
