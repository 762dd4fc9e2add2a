"""The time line: when each node began each stage of the run."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, get_args

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.rank import ProcessFacts, RankFacts, RankRun, Stage
from distcheck.report.measured import figure

ROWS = 24
"""With more nodes than this, those that arrived last and first are shown."""
_STAGES: tuple[Stage, ...] = get_args(Stage)


class Bar(NamedTuple):
    """One stage; left and width are percentages of the whole run."""

    stage: Stage
    left: float
    width: float
    meaning: str


class NodeLine(NamedTuple):
    """One node's stages, and how long its slowest rank took for each step of the start-up."""

    name: str
    bars: list[Bar]
    began: list[str]
    """For each of the line's stages."""
    steps: list[str]


class TimeLine(NamedTuple):
    """The nodes to show over one axis."""

    end: float
    stages: list[Stage]
    steps: list[str]
    rows: list[NodeLine]
    summary: str
    notes: list[str]


def time_line(job: Job) -> TimeLine | None:
    """Return the time line; None if no process noted when it began its stages, as in older files."""
    first: dict[str, ProcessFacts] = {}
    for process in job.processes:
        if process.began_seconds:
            first.setdefault(process.node, process)
    if not first:
        return None
    names = job.node_names
    ranks: defaultdict[str, list[RankFacts]] = defaultdict(list)
    for rank in job.ranks:
        ranks[job.process_of(rank).node].append(rank)
    steps = _steps([rank.run for rank in job.ranks if rank.run is not None])
    met = {node: process.began_seconds.get("meeting", 0.0) for node, process in first.items()}
    order = list(first)
    notes = []
    if len(order) > ROWS:
        last = sorted(order, key=lambda node: -met[node])
        order = [*last[: ROWS - 4], *last[-4:]]
        hidden = count(len(first) - ROWS, "more node")
        notes.append(f"{hidden} joined between {met[last[-5]]:.2f} s and {met[last[ROWS - 4]]:.2f} s")
    stages = [stage for stage in _STAGES if any(stage in process.began_seconds for process in first.values())]
    end = max([job.seconds, *(at for process in first.values() for at in process.began_seconds.values())]) or 1.0
    latest = max(met, key=lambda node: met[node])
    return TimeLine(
        end=end,
        stages=stages,
        steps=list(steps),
        rows=[
            NodeLine(
                names[node],
                _bars(first[node], end),
                [f"{at:.2f}" if (at := first[node].began_seconds.get(stage)) is not None else "-" for stage in stages],
                [_slowest(steps[name], ranks[node]) for name in steps],
            )
            for node in order
        ],
        summary=f"The last node, {names[latest]}, joined the roll call after {met[latest]:.2f} s.",
        notes=notes,
    )


def _bars(process: ProcessFacts, end: float) -> list[Bar]:
    began = sorted(process.began_seconds.items(), key=lambda item: (item[1], _STAGES.index(item[0])))
    bars = []
    for n, (stage, at) in enumerate(began):
        until = began[n + 1][1] if n + 1 < len(began) else end
        if stage != "done":
            left = max(0.0, at)
            width = max(0.0, until - left)
            bars.append(Bar(stage, round(100 * left / end, 2), round(100 * width / end, 2), f"{stage} {at:.2f}"))
    return bars


def _steps(runs: list[RankRun]) -> dict[str, str]:
    """Return the titles of the start-up's steps that any rank took, with the operation for first calls."""
    found = {"import torch": "import"} if any(run.import_seconds is not None for run in runs) else {}
    if any(run.joined_seconds is not None for run in runs):
        found["process group"] = "join"
    return found | {f"first {op}": op for op in dict.fromkeys(op for run in runs for op in run.first_call_seconds)}


def _slowest(step: str, ranks: list[RankFacts]) -> str:
    taken = [_seconds(rank.run, step) for rank in ranks if rank.run is not None]
    return figure(max((one for one in taken if one is not None), default=None))


def _seconds(run: RankRun, step: str) -> float | None:
    if step == "import":
        return run.import_seconds
    return run.joined_seconds if step == "join" else run.first_call_seconds.get(step)
