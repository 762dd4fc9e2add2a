"""Rules that compare a run with an earlier one (``--baseline``)."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.collectives.plan import label
from distcheck.expectation.baseline import Change, compare, differences, of, without_counterpart
from distcheck.facts.asked import Baseline
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import size
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_WARNING, _ERROR = 0.9, 0.8


@rule("collectives", scope="link", owner="unknown")
def perf_below_baseline(job: Job) -> Iterator[Outcome]:
    """An operation is slower than it was in the run that ``--baseline`` names.

    A cluster that has become slower shows no error. Typical causes: a driver or firmware update, a link that retrains
    at a lower rate, a moved cable, other jobs on the same switch.

    Found by comparing the figures of both runs, operation by operation and size by size, with their uncertainty. Less
    than 0.9 of what it was is a warning, and less than 0.8 an error, if the drop exceeds the uncertainty of both runs.
    Less than 0.8 within that uncertainty makes the verdict unknown. Runs on different numbers of ranks or nodes, other
    GPUs or another backend are not compared.

    Fix: Find the slow node or link, and what has changed since the baseline: drivers, firmware, NCCL.

        distcheck isolate
        distcheck report {baseline|BASELINE.json}
    """
    before = job.asked.baseline
    if before is None:
        return
    ran = job.collectives
    if not isinstance(ran, Collectives) or not ran.measurements:
        yield NotChecked(reason=f"nothing was measured to compare with {before.file}")
        return
    other = differences(before, of(job, ""))
    if other:
        yield NotChecked(reason=f"{before.file} is not comparable with this run: {listed(other)}")
        return
    changes = compare(before, ran.measurements)
    if not changes:
        yield NotChecked(reason=f"{before.file} has no figure for any operation and size of this run")
        return
    absent = [f"{label(m.op, m.dtype)} of {size(m.bytes)}" for m in without_counterpart(before, ran.measurements)]
    if absent:
        yield NotChecked(reason=f"{before.file} has no figure for {listed(absent)}")
    lower = [change for change in changes if change.share < _WARNING]
    for name, fallen in grouped((change for change in lower if change.fell), lambda change: change.name).items():
        yield _finding(before, name, fallen, ran)
    doubtful = [change for change in lower if not change.fell]
    if doubtful:
        names = listed([f"{change.name} of {size(change.row.bytes)}" for change in doubtful])
        yield NotChecked(
            required=any(change.share < _ERROR for change in doubtful),
            reason=f"{names}: slower than in {before.file}, but within the uncertainty of the figures; a higher "
            "--time-limit reduces it",
        )


def _finding(before: Baseline, name: str, fallen: list[Change], ran: Collectives) -> Fault:
    """Return the finding about one operation, judged at the size with the largest drop."""
    worst = min(fallen, key=lambda change: change.share)
    versions = {"torch": (before.torch, ran.torch), "NCCL": (before.nccl, ran.nccl)}
    changed = {name: f"{then}, now {now}" for name, (then, now) in versions.items() if then != now}
    return Fault(
        severity="error" if worst.share < _ERROR else "warning",
        confirmed=False,
        message=f"{name} of {size(worst.row.bytes)} takes {worst.seconds * 1e3:.3g} ms; in {before.file} "
        f"it took {worst.row.seconds * 1e3:.3g} ms: bandwidth is {1 - worst.share:.0%} lower",
        evidence={"op": worst.row.op, "bytes": worst.row.bytes}
        | {
            size(change.row.bytes): f"{change.share:.0%} of the baseline; up to {change.noise:.0%} may be noise"
            for change in fallen
        }
        | changed,
        values={"baseline": (quote(before.file),)},
    )
