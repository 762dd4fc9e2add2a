"""Judge jobs as on real nodes, and render their reports: ``judge_and_render.py healthy|faulty|huge RANKS``.

Prints as JSON by kind of job the seconds of CPU that one job of RANKS ranks took and that `PARTS` jobs of as many ranks
in all took, pair by pair. Each rule judges the large job and all parts before the next rule does: both sides then read
as many facts again and again, a slow moment of the machine meets both, and only the growth of the work is left. For
healthy jobs also: the seconds of the whole, as for users, each with the slowness of the machine (`pace.slowness`);
what the job itself takes, and with it what judging and rendering it takes at its peak, in GiB; the share of each rule
that takes more than a tenth of judging it, and the largest share. ``huge`` is a healthy job of which every run takes a
minute, with fewer facts of each node: all of them would not fit into memory twice.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distcheck import report
from distcheck.rules import rules_for
from distcheck.rules.completion import outcomes
from distcheck.rules.diagnose import diagnose
from distcheck.run.garbage import THRESHOLDS

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.pace import beside_a_walk
from benchmarks.ratio import Pair
from made import real_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distcheck.facts.job import Job
    from distcheck.rules import Rule
    from distcheck.rules.diagnose import Diagnosis

PARTS = 8
TIMES, OF_HUGE = 5, 3
"""How many pairs are measured."""
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
"""Each is on a third of the nodes."""


def whole(job: Job) -> float:
    """Return the seconds of CPU to judge and render a job as users do; nothing in it waits."""
    gc.collect()  # what was found out about a job refers to the job: only this frees it
    fresh = msgspec.structs.replace(job)  # without what the last round cached
    start = time.process_time()
    report.render("text", fresh, diagnose(fresh))
    return time.process_time() - start


class Sides:
    """A large job and the small ones, judged and rendered in turn: rule by rule, so that both meet the same machine."""

    def __init__(self, kind: str, large: Job, small: Sequence[Job]) -> None:
        self.kind, self.jobs = kind, ((large,), tuple(small))
        self.diagnoses = [[diagnose(job) for job in side] for side in self.jobs]
        codes = {diagnosis.verdict.exit_code for side in self.diagnoses for diagnosis in side}
        if {code == 0 for code in codes} != {kind == HEALTHY}:
            raise SystemExit(f"{kind}: exit codes {codes}")
        self.of_rules: Counter[str] = Counter()
        """Seconds that the rules took of the large job. What several need is on the account of the first one."""

    def warm_up(self) -> None:
        """Take the memory that all rounds use: the first of them would pay for it."""
        self._round(0)

    def once(self) -> Pair:
        """Return the seconds of CPU of either side for two rounds.

        Who comes first changes from rule to rule, and in the second round it is the other way round: who comes first
        takes up to a tenth longer, and more so for the rules that take most.
        """
        rounds = [self._round(number) for number in range(2)]
        return sum(large for large, _ in rounds), sum(small for _, small in rounds)

    def _round(self, number: int) -> Pair:
        gc.collect()
        fresh = [[msgspec.structs.replace(job) for job in side] for side in self.jobs]
        took = [0.0, 0.0]

        def time_both(do: Callable[[Job, Diagnosis], object], first: int) -> float:
            for side in (first, 1 - first):
                start = time.process_time()
                for job, diagnosis in zip(fresh[side], self.diagnoses[side], strict=True):
                    do(job, diagnosis)
                seconds = time.process_time() - start
                took[side] += seconds
                if side == 0:
                    large = seconds
            return large

        for place, rule in enumerate(rules_for(fresh[0][0])):
            self.of_rules[rule.name] += time_both(partial(_judge, rule), (number + place) % 2)
        time_both(partial(report.render, "text"), number % 2)
        return took[0], took[1]

    def pairs(self, times: int = TIMES) -> list[Pair]:
        return [self.once() for _ in range(times)]

    def shares(self) -> dict[str, float]:
        """Return each rule's share of judging the large job."""
        return {name: seconds / self.of_rules.total() for name, seconds in self.of_rules.items()}


def _judge(rule: Rule, job: Job, _diagnosis: Diagnosis) -> None:
    if rule.applies(job) and not rule.unlooked(job):
        list(outcomes(rule, job))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def healthy(nodes: int, times: int = TIMES, *, sparse: bool = False) -> dict[str, object]:
    """Measure the whole and the pairs, so many times each."""
    before = peak()
    large = real_job.healthy(nodes, sparse=sparse)
    built = peak()
    gc.freeze()  # the facts: the searches for garbage between the runs need not look at them again
    seconds = [beside_a_walk(lambda: whole(large)) for _ in range(times)]
    most = peak()
    small = [real_job.healthy(nodes // PARTS, sparse=sparse) for _ in range(PARTS)]
    gc.freeze()
    sides = Sides(HEALTHY, large, small)
    sides.warm_up()
    taken, of_rules = sides.pairs(times), sides.shares()
    return {
        "pairs": {HEALTHY: taken},
        "seconds": seconds,
        "job_GiB": built - before,
        "GiB": most,
        "dear": {name: share for name, share in of_rules.items() if share > DEAR},
        "dearest": max(of_rules.values()),
    }


def faulty(nodes: int) -> dict[str, object]:
    large, *small = real_job.healthy(nodes), *(real_job.healthy(nodes // PARTS) for _ in range(PARTS))
    gc.freeze()
    found = {}
    for fault in FAULTS:
        ill, *smaller = (real_job.faulty(job, fault, 3) for job in (large, *small))
        found[fault] = Sides(fault, ill, smaller).pairs()
    return {"pairs": found}


def main() -> None:
    gc.set_threshold(*THRESHOLDS)
    whole(real_job.healthy(2))  # imports the rules, once for all that follows
    nodes = int(sys.argv[2]) // real_job.GPUS
    huge = partial(healthy, times=OF_HUGE, sparse=True)
    print(json.dumps({HEALTHY: healthy, "faulty": faulty, "huge": huge}[sys.argv[1]](nodes)))


main()
