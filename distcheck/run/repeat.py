"""Repeats the smallest case that failed or was slow with one setting changed at a time: which transport is at fault?

A case that fails as it was and passes with one setting, twice each and in turn, is caused by what that setting avoids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from distcheck.collectives.plan import Plan, label, moved_bytes
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives
from distcheck.facts.members import Members
from distcheck.facts.repeated import Repeat, Repeated
from distcheck.isolation.round import NodeGroup, Round
from distcheck.rules.collectives.figures import busbw
from distcheck.rules.diagnose import diagnose
from distcheck.run.group_tests import GroupTests
from distcheck.run.progress import StageView
from distcheck.selection.alternatives import alternatives

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distcheck.facts.isolation import Fault
    from distcheck.facts.job import Job, Measurement
    from distcheck.facts.rank import RankRun
    from distcheck.rules.finding import Finding
    from distcheck.run.context import Session

_RESERVE_SECONDS = 4.0
"""Kept back from --timeout for the report."""
_ON_CPUS_SECONDS, _ON_GPUS_SECONDS = 8.0, 20.0
"""Limit for one repetition, forks and connections included; a case that hangs takes all of it."""
_LEAST_SECONDS = 3.0
_FASTER = 1.5
"""A slow case passes if it becomes this many times as fast; the same case repeated differs by less."""
_BAD = frozenset({"failed", "wrong", "hung", "slow"})
_MOST_WORDS = 4
_BELOW = ("perf-below-min-busbw", "perf-below-baseline", "perf-below-expectation")
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS")
"""Signals with which a library ends its process; the kernel and people send others."""


def settings(job: Job, backend: str, nodes: Iterable[str]) -> tuple[dict[str, str], ...]:
    """Return the settings with which a case on these nodes can be repeated, one variable each."""
    chosen = set(nodes)
    there = [node for node in job.nodes if job.node_names[node.key] in chosen]
    return alternatives(backend, there, [rank.environment for rank in job.ranks_on(*there)])


async def repeat(run: Session, backend: str, slow: Measurement | None = None) -> Repeated | None:
    """Repeat the smallest case that failed, or the slow one; None if there is no setting to change, or no time."""
    job = run.record.job()
    members = Members(job)
    nodes = smallest_case(job, tuple(members.by_node))
    waiting = list(settings(job, backend, nodes))
    if not waiting or not set(nodes) <= members.by_node.keys():
        return None
    plan = slow_part(run.plan(backend), slow) if slow else failed_part(run.plan(backend), job)
    # Fewer nodes have another figure, so only the next ones are compared with it.
    before = busbw(slow) if slow and len(nodes) == len(members.by_node) else None
    number = job.isolation.rounds if isinstance(job.isolation, Isolation) else 0
    repeats: list[Repeat] = []

    async def once(variables: Mapping[str, str]) -> Repeat | None:
        nonlocal number, before
        left = run.remaining(_RESERVE_SECONDS)
        if left < _LEAST_SECONDS:
            return None
        number += 1
        changed = " ".join(f"{name}={value}" for name, value in variables.items()) or "no change"
        text = f"repeating {plan.operations[0]} on {', '.join(nodes)} with {changed}"
        run.progress.begin(text, lambda: StageView("isolation", text))
        limit = _ON_CPUS_SECONDS if backend == "gloo" else _ON_GPUS_SECONDS
        step = Round(number, (NodeGroup(nodes, "again"),))
        tests = GroupTests(run, run.server, members, backend, step, min(limit, left), plan=plan, variables=variables)
        results = await tests.hold()
        variable, value = next(iter(variables.items()), ("", ""))
        ended: Fault = results[0].ended if results else "untested"
        figure = results[0].busbw_GBps if results and slow else None
        if figure is not None:
            ended = "passed" if before is not None and figure >= _FASTER * before else "slow"
            before = before if variables else figure
        elif slow and ended == "passed":
            ended = "untested"
        words = results[0].said[:_MOST_WORDS] if results else ()
        repeats.append(Repeat(ended, variable, value, words, figure))
        return None if ended == "untested" else repeats[-1]

    last = await once({})
    while last is not None and last.outcome in _BAD and waiting:
        last = await once(waiting[0])
        if last is None:
            break
        changed = waiting.pop(0)
        if last.outcome == "passed":  # perhaps by chance, if the case fails only sometimes
            again = await once({})
            if again is not None and again.outcome in _BAD:
                await once(changed)
    return Repeated(
        nodes=nodes,
        operation=label(plan.operations[0], plan.dtypes[0]),
        repeats=tuple(repeats),
        untried=tuple(f"{name}={value}" for variables in waiting for name, value in variables.items()),
    )


def worth_repeating(job: Job) -> bool:
    """Return whether a collective failed in a way that a setting may change.

    A rank that was stopped, killed or never started fails with any setting. What failed only in the groups of a mesh is
    not repeated: a repetition has no groups.
    """
    if not isinstance(job.collectives, Collectives):
        return False
    runs = [rank.run for rank in job.ranks if rank.run is not None]
    if any(_ended_otherwise(run) for run in runs):
        return False
    return any((run.outcome != "done" and not run.place) or _wrong_in_world(run) for run in runs)


def _wrong_in_world(run: RankRun) -> bool:
    return any(count for op, count in run.wrong.items() if " in " not in op)


def _ended_otherwise(run: RankRun) -> bool:
    if run.outcome == "died":
        return not any(signal in run.detail for signal in _CRASHES)
    return run.outcome in {"stopped", "not started"} or run.detail.startswith("unavailable")


def slow_figure(job: Job) -> Measurement | None:
    """Return a figure that fails the run, or that is far below the usual one; None if there is none.

    A job that is a little slower than usual may start, and no setting could make it so much faster.
    """
    if not isinstance(job.collectives, Collectives):
        return None
    below = diagnose(job, select=_BELOW).findings
    found = [(f.evidence.get("op"), f.evidence.get("bytes")) for f in below if f.severity == "error" or _far_below(f)]
    rows = [row for row in job.collectives.measurements if row.group == "world" and (row.op, row.bytes) in found[:1]]
    return max(rows, key=lambda row: max(row.seconds_by_rank), default=None)


def _far_below(finding: Finding) -> bool:
    reached, usual = finding.evidence.get("busbw_GBps"), finding.evidence.get("expected_GBps")
    return isinstance(reached, float) and isinstance(usual, float) and _FASTER * reached <= usual


def smallest_case(job: Job, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fewest nodes of which a group test failed; all nodes if none was made."""
    found = job.isolation
    if not isinstance(found, Isolation):
        return nodes
    evidence = [test for culprit in found.culprits for test in culprit.evidence]
    evidence += [test for suspects in found.undecided for test in suspects.evidence]
    failed = [test.nodes for test in evidence if test.outcome in _BAD]
    return min(failed, key=len, default=nodes)


def failed_part(plan: Plan, job: Job) -> Plan:
    """Return the plan cut to the first operation and size at which a rank failed; its smallest part if unknown."""
    runs = [rank.run for rank in job.ranks if rank.run is not None]
    steps = {run.step for run in runs if run.outcome != "done"}
    wrong = {op for run in runs for op, count in run.wrong.items() if count}
    ranks = job.world_size or 1
    for op in plan.operations:
        for dtype in plan.dtypes:
            name = label(op, dtype)
            sizes = [s for s in plan.sizes_bytes if f"{name} {moved_bytes(op, s, ranks, dtype)} B" in steps]
            if sizes or name in wrong or f"check {name}" in steps:
                return _only(plan, op, dtype, min(sizes, default=min(plan.sizes_bytes)))
    return smallest_part(plan)


def smallest_part(plan: Plan) -> Plan:
    """Return the plan cut to its first operation and smallest size."""
    return _only(plan, plan.operations[0], plan.dtypes[0], min(plan.sizes_bytes))


def slow_part(plan: Plan, row: Measurement) -> Plan:
    """Return the plan cut to one figure, which is timed as it was."""
    part = _only(plan, row.op, row.dtype, row.bytes)
    return replace(part, iterations=plan.iterations, size_seconds=plan.size_seconds)


def _only(plan: Plan, op: str, dtype: str, size: int) -> Plan:
    return replace(
        plan,
        operations=(op,),
        dtypes=(dtype,),
        sizes_bytes=(size,),
        iterations=1,
        size_seconds=0.0,
        compute=False,
        device_seconds=0.0,
        training=False,
        mesh=None,
    )
