"""What differs between two judged jobs: findings, figures, hardware, software and variables."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from distcheck.expectation.baseline import Change, compare, differences, of
from distcheck.facts.job import Collectives, Job
from distcheck.facts.ranges import fold
from distcheck.report.attributes import ABSENT, Spread, of_ranks, spread
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema import Comparison, FactChange, FigureChange, FindingChange
from distcheck.report.sections import where
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import SEVERITIES, Finding

_VALUES = 6
"""An attribute with more values than this differs from rank to rank anyway."""
_PIECES = 4
"""Most ranges of ranks that a value is shown with."""
_OF_THE_JOB = re.compile(
    r"^variable: (\w*_(JOB_?ID|STEP_?ID|TASK_PID|RUN_ID|NODELIST|LAUNCH_NODE_IPADDR|SRUN_COMM_PORT|COMM_HOST|JOBID)"
    r"|MASTER_PORT|HOSTNAME)$"
)
"""Variables that are of one job only."""
_NUMBER = re.compile(r"\d[\d.]*")


class Earlier(NamedTuple):
    """The run to compare with."""

    file: str
    job: Job
    diagnosis: Diagnosis


def comparison(before: Earlier, job: Job, diagnosis: Diagnosis) -> Comparison:
    """Return what differs between an earlier run and this one."""
    then, now = _keyed(before.diagnosis.findings, diagnosis.findings)
    return Comparison(
        file=before.file,
        verdict=before.diagnosis.verdict.name,
        exit_code=before.diagnosis.verdict.exit_code,
        new=tuple(_changed(now[key] for key in now if key not in then)),
        gone=tuple(_changed(then[key] for key in then if key not in now)),
        unchanged=tuple(_changed(now[key] for key in now if key in then)),
        not_comparable=tuple(differences(of(before.job, ""), of(job, ""))) if _measured(job, before.job) else (),
        figures=tuple(_figures(before.job, job)),
        facts=tuple(_facts(before.job, job)),
    )


_Key = tuple[str, tuple[int, ...], tuple[str, ...], str]


def _keyed(then: Iterable[Finding], now: Iterable[Finding]) -> tuple[dict[_Key, Finding], dict[_Key, Finding]]:
    """Return the findings of two runs by rule and place; several at one place by their messages without numbers.

    A message has figures, which differ from run to run.
    """
    runs = [list(then), list(now)]
    several = {place for run in runs for place, number in Counter(map(_place, run)).items() if number > 1}
    then_by, now_by = (
        {(*place, _NUMBER.sub("#", f.message) if place in several else ""): f for f in run for place in [_place(f)]}
        for run in runs
    )
    return then_by, now_by


def _place(one: Finding) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    return one.rule, tuple(sorted(one.ranks)), tuple(sorted(one.nodes))


def _changed(findings: Iterable[Finding]) -> Iterator[FindingChange]:
    for one in sorted(findings, key=lambda f: SEVERITIES.index(f.severity)):
        yield FindingChange(one.rule, one.severity, one.ranks, one.nodes, one.message)


def _measured(*jobs: Job) -> bool:
    return all(isinstance(job.collectives, Collectives) and bool(job.collectives.measurements) for job in jobs)


def _figures(before: Job, job: Job) -> Iterator[FigureChange]:
    """Yield the change of each figure that both runs have; none if the runs are not comparable."""
    then = of(before, "")
    if not isinstance(job.collectives, Collectives) or differences(then, of(job, "")):
        return
    for change in compare(then, job.collectives.measurements):
        row = change.row
        yield FigureChange(
            row.op, row.dtype, row.bytes, row.group, row.seconds, change.seconds, change.share, change.noise,
            _standing(change),
        )  # fmt: skip


def _standing(change: Change) -> Literal["lower", "same", "higher"]:
    if change.fell:
        return "lower"
    return "higher" if change.share * (1 - change.noise) > 1 else "same"


def _facts(before: Job, job: Job) -> Iterator[FactChange]:
    """Yield what differs in the nodes and in the attributes of the ranks."""
    nodes = [fold_nodes(one.node_names.values()) for one in (before, job)]
    if nodes[0] != nodes[1]:
        yield FactChange("place: nodes", nodes[0], nodes[1])
    then, now = ({one.name: one for one in spread(of_ranks(each))} for each in (before, job))
    for name in dict.fromkeys((*now, *then)):
        if _OF_THE_JOB.match(name):
            continue
        pair = [_text(each.get(name)) for each in (then, now)]
        if pair[0] != pair[1] and None not in pair:
            yield FactChange(name, pair[0] or "", pair[1] or "")


def _text(found: Spread | None) -> str | None:
    """Return the values of an attribute with their ranks; None if it differs from rank to rank."""
    if found is None:
        return ABSENT
    if len(found.values) > _VALUES:
        return None
    if len(found.values) == 1:
        return found.values[0][0]
    return "; ".join(
        f"{value} ({'ranks' if len(ranks) > 1 else 'rank'} {fold(ranks, _PIECES)})" for value, ranks in found.values
    )


def title(compared: Comparison) -> str:
    """Return a summary: compared with old.json: 1 new finding, 2 gone, 1 unchanged, 3 facts differ."""
    return (
        f"compared with {compared.file} (exit code {compared.exit_code} then): findings: {len(compared.new)} new, "
        f"{len(compared.gone)} gone, {len(compared.unchanged)} unchanged; figures: "
        f"{_count(compared, 'lower')} lower, {_count(compared, 'higher')} higher, {_count(compared, 'same')} the same "
        f"within noise; {len(compared.facts)} facts differ"
    )


def _count(compared: Comparison, standing: str) -> int:
    return sum(change.change == standing for change in compared.figures)


def lines(compared: Comparison, *, everything: bool) -> list[str]:
    """Return new, gone and unchanged findings, one line each; info findings only when everything is shown."""
    kinds = {"new": compared.new, "gone": compared.gone, "unchanged": compared.unchanged}
    found = []
    for kind, changes in kinds.items():
        grouped: defaultdict[tuple[str, str, str], list[FindingChange]] = defaultdict(list)
        for change in changes:
            if change.severity != "info" or everything:
                grouped[change.severity, change.rule, change.message].append(change)
        for (severity, rule, message), same in grouped.items():
            place = where((r for c in same for r in c.ranks), (n for c in same for n in c.nodes))
            found.append(f"{kind}: {severity}: {rule}{' - ' + place if place else ''}: {message}")
    return found + [f"figures are not compared: {reason}" for reason in compared.not_comparable]
