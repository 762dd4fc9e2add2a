"""The time line: when each node began each stage of the run; nodes that are like the others are folded."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple, get_args

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.rank import ProcessFacts, RankFacts, RankRun, Stage
from distcheck.report.figures import figure
from distcheck.report.node_names import fold_nodes
from distcheck.rules.wording import grouped

FEW = 8
"""With more nodes than this, those that are as fast as the others are folded into one row."""
ROWS = 24
"""Most nodes that are shown."""
_LATE_SECONDS, _LATE_SHARE, _SPREADS = 0.5, 0.1, 5
"""How far beyond the median a node stands out: by this time, this share, and so many median deviations."""
_STAGES: tuple[Stage, ...] = get_args(Stage)


class Bar(NamedTuple):
    """One stage; left and width are percentages of the whole run."""

    stage: Stage
    left: float
    width: float
    meaning: str


class NodeLine(NamedTuple):
    """One node's stages, and how long its slowest rank took for each step of the start-up; or those of several."""

    name: str
    bars: list[Bar]
    began: list[str]
    """For each of the line's stages."""
    steps: list[str]


class TimeLine(NamedTuple):
    """The nodes to show over one axis, which begins when the first process started."""

    end: float
    stages: list[Stage]
    steps: list[str]
    rows: list[NodeLine]
    summary: str
    notes: list[str]


class _Times(NamedTuple):
    """When one node began each stage, and its slowest rank's time for each step; None where it did not."""

    name: str
    began: tuple[float | None, ...]
    steps: tuple[float | None, ...]


def time_line(job: Job) -> TimeLine | None:
    """Return the time line; None if no process noted when it began its stages."""
    first: dict[str, ProcessFacts] = {}
    for process in job.processes:
        if process.began_seconds:
            first.setdefault(process.node, process)
    if not first:
        return None
    ranks = grouped(job.ranks, lambda rank: job.process_of(rank).node)
    steps = _steps([rank.run for rank in job.ranks if rank.run is not None])
    every = [at for process in first.values() for at in process.began_seconds.values()]
    zero = min(0.0, *every)  # on the leader's clock; a process may have started before the leader
    stages = [stage for stage in _STAGES if any(stage in process.began_seconds for process in first.values())]
    nodes = [
        _Times(
            job.node_names[node],
            tuple(None if (at := process.began_seconds.get(stage)) is None else at - zero for stage in stages),
            tuple(_slowest(step, ranks.get(node, [])) for step in steps.values()),
        )
        for node, process in first.items()
    ]
    odd = nodes if len(nodes) <= FEW else _standing_out(nodes)
    names = {node.name for node in odd}
    rest = [node for node in nodes if node.name not in names]
    shown = [*([node] for node in odd[:ROWS]), *([rest] if rest else [])]
    end = max(job.seconds, *every) - zero or 1.0
    joined = {
        process.began_seconds.get("meeting", zero) - zero: job.node_names[node] for node, process in first.items()
    }
    return TimeLine(
        end=end,
        stages=stages,
        steps=list(steps),
        rows=[_line(group, stages, end) for group in shown],
        summary=f"The last node, {joined[max(joined)]}, joined the roll call after {max(joined):.2f} s.",
        notes=[f"{count(len(odd) - ROWS, 'more node')} stand out"] if len(odd) > ROWS else [],
    )


def _standing_out(nodes: list[_Times]) -> list[_Times]:
    """Return the nodes that were later or slower than the others, or lack a stage that most have; the latest first."""
    lateness = [0.0] * len(nodes)
    for column in zip(*(node.began + node.steps for node in nodes), strict=True):
        known = [at for at in column if at is not None]
        if len(known) * 2 <= len(nodes):
            continue
        usual = median(known)
        spread = median(abs(at - usual) for at in known)
        limit = usual + max(_LATE_SECONDS, _LATE_SHARE * usual, _SPREADS * spread)
        late = [float("inf") if at is None else at - limit for at in column]
        lateness = [max(pair) for pair in zip(lateness, late, strict=True)]
    order = sorted(range(len(nodes)), key=lambda n: -lateness[n])
    return [nodes[n] for n in order if lateness[n] > 0]


def _line(nodes: list[_Times], stages: list[Stage], end: float) -> NodeLine:
    """Return one node as a row, or several as one: with the ranges of their times, and bars of their medians."""
    name = nodes[0].name
    if len(nodes) > 1:
        name = f"{fold_nodes(node.name for node in nodes)} ({count(len(nodes), 'node')})"
    began = [[at for at in column if at is not None] for column in zip(*(node.began for node in nodes), strict=True)]
    steps = [[at for at in column if at is not None] for column in zip(*(node.steps for node in nodes), strict=True)]
    usual = [(stage, median(known)) for stage, known in zip(stages, began, strict=True) if known]
    return NodeLine(
        name, _bars(usual, end), [_range(known, "{:.2f}".format) for known in began], [_range(s, figure) for s in steps]
    )


def _range(known: list[float], shown: Callable[[float], str]) -> str:
    texts = dict.fromkeys(map(shown, (min(known), max(known)))) if known else {"-": None}
    return "-".join(texts)


def _bars(began: list[tuple[Stage, float]], end: float) -> list[Bar]:
    ordered = sorted(began, key=lambda one: one[1])
    bars = []
    for (stage, at), (_, until) in zip(ordered, [*ordered[1:], ("done", end)], strict=True):
        if stage != "done":
            bars.append(Bar(stage, round(100 * at / end, 2), round(100 * (until - at) / end, 2), f"{stage} {at:.2f}"))
    return bars


def _steps(runs: list[RankRun]) -> dict[str, str]:
    """Return the titles of the start-up's steps that any rank took, with the operation for first calls."""
    found = {"import torch": "import"} if any(run.import_seconds is not None for run in runs) else {}
    if any(run.joined_seconds is not None for run in runs):
        found["process group"] = "join"
    return found | {f"first {op}": op for op in dict.fromkeys(op for run in runs for op in run.first_call_seconds)}


def _slowest(step: str, ranks: list[RankFacts]) -> float | None:
    taken = [_seconds(rank.run, step) for rank in ranks if rank.run is not None]
    return max((one for one in taken if one is not None), default=None)


def _seconds(run: RankRun, step: str) -> float | None:
    if step == "import":
        return run.import_seconds
    return run.joined_seconds if step == "join" else run.first_call_seconds.get(step)
