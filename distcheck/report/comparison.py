"""What differs between two judged jobs: findings, figures, hardware, software and variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from distcheck.expectation.baseline import compare, differences, of
from distcheck.facts.job import Collectives, Job
from distcheck.facts.ranges import numbered
from distcheck.report.attributes import Spread, absent, of_ranks, spread
from distcheck.report.node_names import fold_nodes
from distcheck.report.schema.comparison import Comparison, FactChange, FigureChange, FindingChange
from distcheck.report.schema.part import part_of
from distcheck.report.sections import where
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import SEVERITIES, Finding
from distcheck.rules.wording import grouped

_VALUES = 6
"""An attribute with more values than this differs from rank to rank anyway."""
_PIECES = 4
"""Most ranges of ranks that a value is shown with."""
_OF_THE_JOB = re.compile(
    r"^place: master port$|"
    r"^variable: (\w*_(JOB_?ID|STEP_?ID|TASK_PID|RUN_ID|NODELIST|LAUNCH_NODE_IPADDR|SRUN_COMM_PORT|COMM_HOST|JOBID)"
    r"|MASTER_PORT|HOSTNAME)$"
)
"""A port and variables that are of one job only."""
_FIGURE = re.compile(r"\d+\.\d+|\d+(?= ?(%|[mun]?s\b|[KMGT]i?B\b|GB/s|W\b|MHz|[GT]FLOPS|times|°C))")
"""A measured figure in a message."""


class Earlier(NamedTuple):
    """The run to compare with."""

    file: str
    job: Job
    diagnosis: Diagnosis


def comparison(before: Earlier, job: Job, diagnosis: Diagnosis) -> Comparison:
    """Return what differs between an earlier run and this one."""
    new, gone, unchanged = _matched(before.diagnosis.findings, diagnosis.findings)
    return Comparison(
        file=before.file,
        verdict=before.diagnosis.verdict.name,
        exit_code=before.diagnosis.verdict.exit_code,
        new=tuple(_changed(new)),
        gone=tuple(_changed(gone)),
        unchanged=tuple(_changed(unchanged)),
        not_comparable=tuple(differences(of(before.job, ""), of(job, ""))) if _measured(job, before.job) else (),
        figures=tuple(_figures(before.job, job)),
        facts=tuple(_facts(before.job, job)),
    )


def _matched(then: Iterable[Finding], now: Iterable[Finding]) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return the findings that are new, gone and unchanged.

    A finding is the same if its rule and place are. Several at one place are told apart by their messages, with or
    without measured figures, which differ from run to run.
    """
    before, after = grouped(then, _place), grouped(now, _place)
    new, gone, unchanged = [], [], []
    for place in dict.fromkeys((*after, *before)):
        old, fresh = list(before.get(place, ())), list(after.get(place, ()))
        same_if: list[Callable[[Finding], str]] = [lambda one: one.message, lambda one: _FIGURE.sub("#", one.message)]
        for same in same_if + [_alone] * (len(old) == len(fresh) == 1):
            for one in list(fresh):
                twin = next((each for each in old if same(each) == same(one)), None)
                if twin is not None:
                    old.remove(twin)
                    fresh.remove(one)
                    unchanged.append(one)
        new += fresh
        gone += old
    return new, gone, unchanged


def _place(one: Finding) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    return one.rule, tuple(sorted(one.ranks)), tuple(sorted(one.nodes))


def _alone(one: Finding) -> str:
    """Return what a single finding at its place is compared by; GPUs of a node may be named in the message only."""
    return one.message if one.scope == "gpu" and not one.ranks else ""


def _changed(findings: Iterable[Finding]) -> Iterator[FindingChange]:
    for one in sorted(findings, key=lambda f: SEVERITIES.index(f.severity)):
        yield part_of(FindingChange, one)


def _measured(*jobs: Job) -> bool:
    return all(isinstance(job.collectives, Collectives) and bool(job.collectives.measurements) for job in jobs)


def _figures(before: Job, job: Job) -> Iterator[FigureChange]:
    """Yield the change of each figure that both runs have; none if the runs are not comparable."""
    then = of(before, "")
    if not isinstance(job.collectives, Collectives) or differences(then, of(job, "")):
        return
    for change in compare(then, job.collectives.measurements):
        row, higher = change.row, change.share * (1 - change.noise) > 1
        yield part_of(
            FigureChange,
            row,
            before_seconds=row.seconds,
            now_seconds=change.seconds,
            share=change.share,
            noise=change.noise,
            change="lower" if change.fell else "higher" if higher else "same",
        )


def _facts(before: Job, job: Job) -> Iterator[FactChange]:
    """Yield what differs in the nodes and in the attributes of the ranks."""
    nodes = [fold_nodes(one.node_names.values()) for one in (before, job)]
    if nodes[0] != nodes[1]:
        yield FactChange("place: nodes", nodes[0], nodes[1])
    then, now = ({one.name: one for one in spread(of_ranks(each))} for each in (before, job))
    for name in dict.fromkeys((*now, *then)):
        old, new = then.get(name), now.get(name)
        if _OF_THE_JOB.match(name) or (old and new and _numbered(old, new)):
            continue
        pair = [_text(old, name), _text(new, name)]
        if pair[0] != pair[1] and None not in pair:
            yield FactChange(name, pair[0] or "", pair[1] or "")


def _numbered(then: Spread, now: Spread) -> bool:
    """Return whether each of several ranks has a value of its own, the same in both runs, as of RANK."""
    few, many = sorted(({ranks: value for value, ranks in each.values} for each in (then, now)), key=len)
    return len(few) > 1 and all(len(ranks) == 1 for ranks in many) and few.items() <= many.items()


def _text(found: Spread | None, name: str) -> str | None:
    """Return the values of an attribute with their ranks; None if it differs from rank to rank."""
    if found is None:
        return absent(name)
    if len(found.values) > _VALUES:
        return None
    if len(found.values) == 1:
        return found.values[0][0]
    return "; ".join(f"{value} ({numbered(ranks, _PIECES)})" for value, ranks in found.values)


def title(compared: Comparison) -> str:
    """Return a summary: compared with old.json: findings: 1 new, 2 gone, 1 unchanged; facts: 3 different."""
    return (
        f"compared with {compared.file} (exit code {compared.exit_code} then): findings: {len(compared.new)} new, "
        f"{len(compared.gone)} gone, {len(compared.unchanged)} unchanged; figures: "
        f"{_count(compared, 'lower')} lower, {_count(compared, 'higher')} higher, {_count(compared, 'same')} the same "
        f"within noise; facts: {len(compared.facts)} different"
    )


def _count(compared: Comparison, standing: str) -> int:
    return sum(change.change == standing for change in compared.figures)


def lines(compared: Comparison, *, everything: bool) -> list[str]:
    """Return new, gone and unchanged findings, one line each; info findings only when everything is shown."""
    found = []
    for kind in ("new", "gone", "unchanged"):
        changes: tuple[FindingChange, ...] = getattr(compared, kind)
        listed = [change for change in changes if change.severity != "info" or everything]
        for (severity, rule, message), same in grouped(listed, lambda c: (c.severity, c.rule, c.message)).items():
            place = where((r for c in same for r in c.ranks), (n for c in same for n in c.nodes))
            found.append(f"{kind}: {severity}: {rule}{' - ' + place if place else ''}: {message}")
    infos = sum(change.severity == "info" for change in (*compared.new, *compared.gone))
    if infos and not everything:
        found.append(f"{infos} more new or gone: info findings, shown with -v")
    return found + [f"figures are not compared: {reason}" for reason in compared.not_comparable]
