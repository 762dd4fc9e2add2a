"""Rules about what earlier runs found on the same nodes (``--history``)."""

from __future__ import annotations

import time
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.history import Failure, History, PastFigure
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import by_name, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.expectation.past import NodeFigure

FAILED = 3
"""So many failures in the last `RECENT` runs of a command are reported."""
LEFT, LEFT_ON_CPUS = 0.9, 0.5
"""A figure at this share of the earlier ones, or more, is not reported."""
_SHOWN = 5


@rule(
    "gpu",
    severity="warning",
    scope="node",
    also=("peers", "node", "collectives", "isolation"),
    always=True,
    owner="admin",
)
def host_failed_before(job: Job) -> Iterator[Outcome]:
    """Earlier runs found the node, or a GPU of it, confirmed bad several times.

    A fault that comes and goes passes the next check and stops the job hours later. Meta removed nodes with such a
    record, and the share of its large jobs that failed fell from 14 % to 4 %.

    Found with ``--history DIR``: of the last 10 runs of one command on the node, all within 30 days, 3 or more
    reported an error of scope node or gpu for it that was confirmed.

    Fix: Drain the node and find out why it fails; remove its file from the history after the repair.

        distcheck report --history {folder|DIR}
        distcheck explain {rule|RULE}

    See: https://arxiv.org/abs/2410.21680
    """
    past = job.history
    if past is None:
        return
    yield from _unread(past)
    if isinstance(past, Missing):
        return
    names = {node.name for node in job.nodes}
    for recent in past.recent:
        if len(recent.failures) < FAILED or recent.node not in names:
            continue
        last = recent.failures[-1]
        rules = dict.fromkeys(name for failure in reversed(recent.failures) for name in failure.rules)
        yield Fault(
            f"{recent.node} was confirmed bad in {len(recent.failures)} of its last "
            f"{count(recent.runs, f'{recent.command} run')}, the last time on {moment(last)} ({listed(last.rules)})",
            evidence=by_name((moment(failure), ", ".join(failure.rules)) for failure in recent.failures[-_SHOWN:]),
            nodes=(recent.node,),
            values={"folder": (quote(past.folder),), "rule": tuple(map(quote, rules))},
        )


def _unread(past: History | Missing) -> Iterator[NotChecked]:
    """Yield what the history did not show."""
    if isinstance(past, Missing):
        yield NotChecked(reason=f"--history: {past.reason}", required=False)
        return
    if past.newer:
        lines = f"{past.newer} {'line' if past.newer == 1 else 'lines'}"
        reason = f"{lines} of a newer distcheck in {past.folder}: install its version to read them"
        yield NotChecked(reason=reason, required=False)
    if past.unread:
        yield NotChecked(reason=f"not read in {past.folder}: {listed(past.unread)}", required=False)


@rule(
    "collectives",
    severity="warning",
    scope=("node", "link"),
    always=True,
    unless=("gpu-slow-compute", "gpu-slow-memory", "gpu-slow-host-copy", "perf-below-baseline"),
    owner="unknown",
)
def perf_below_history(job: Job) -> Iterator[Outcome]:
    """A collective, or a GPU's own work, is slower than in the earlier runs on the same nodes.

    A node or network that becomes slower shows no error. Typical causes: an update of driver or firmware, a link that
    retrains at a lower rate, thermal throttling.

    Found with ``--history DIR``, from the bus bandwidth of each operation and size in runs on the same nodes with the
    same ranks, models of GPU and backend, and from the device test of each GPU. The median of the newest 3 values, this
    run's included, is compared with the median of at least 5 and at most 28 earlier ones. It is reported if it is lower
    by more than 4 standard deviations of the earlier values (estimated from the median absolute deviation of their
    logarithms), and below 0.9 of their median, with Gloo below 0.5. One slow run is not reported, and this run's own
    value must be that low, too. A drop that lasts becomes the usual value after about 15 runs.

    Fix: Find out what has changed since the earlier runs, and whether a node or link is slow.

        distcheck isolate
        distcheck report --history {folder|DIR}
    """
    past, ran = job.history, job.collectives
    if not isinstance(past, History) or not isinstance(ran, Collectives):
        return
    from distcheck.expectation.past import fell, figures  # imported late: most jobs have no history

    before = {(figure.node, figure.name): figure for figure in past.figures}
    least = LEFT_ON_CPUS if ran.backend == "gloo" else LEFT
    fallen = [
        (figure, earlier)
        for figure in figures(job)
        if (earlier := before.get((figure.node, figure.name))) is not None
        and fell(earlier.values, figure.value, LEFT if figure.ranks else least)
    ]
    for them in grouped(fallen, lambda pair: (pair[0].kind, pair[0].nodes)).values():
        yield _slower(them, past.folder)


def _slower(fallen: list[tuple[NodeFigure, PastFigure]], folder: str) -> Fault:
    """Return the finding about one kind of work, judged at the size or GPU with the largest drop."""
    from distcheck.expectation.past import usual

    def share(pair: tuple[NodeFigure, PastFigure]) -> float:
        return pair[0].value / usual(pair[1].values)

    figure, earlier = worst = min(fallen, key=share)
    alone = len(figure.nodes) == 1
    return Fault(
        f"{figure.label}: {figure.value:.3g} {figure.unit} on {listed(figure.nodes)}; in earlier runs the "
        f"median was {usual(earlier.values):.3g} {figure.unit}: {1 - share(worst):.0%} lower",
        evidence={
            f"{figure.label}, {figure.unit}": ", ".join(f"{v:.3g}" for v in (*earlier.values[-7:], figure.value))
            for figure, earlier in fallen
        }
        | ({"earlier versions": earlier.versions} if earlier.versions else {}),
        scope="node" if alone else "link",
        confirmed=False,
        ranks=tuple(sorted({rank for pair in fallen for rank in pair[0].ranks})),
        nodes=figure.nodes if alone else (),
        values={"folder": (quote(folder),)},
    )


def moment(failure: Failure) -> str:
    """Return when a run failed: 2026-11-22 14:03 UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(failure.time))
