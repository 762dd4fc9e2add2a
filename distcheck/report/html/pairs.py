"""The pair matrix: which node reached which, and how fast."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Literal, NamedTuple

from distcheck.facts.job import Job
from distcheck.facts.network import PeerTrial
from distcheck.facts.quantities import count
from distcheck.report.figures import figure
from distcheck.rules.wording import grouped

SIDE = 24
"""With more nodes than this, only those with a bad pair are in the matrix."""
_SLOW = 0.5
"""Share of the median rate below which a pair stands out."""


class PairCell(NamedTuple):
    """What one node found on its way to another."""

    text: str
    kind: Literal["met", "slow", "failed", "untested", "self"]
    meaning: str


class Matrix(NamedTuple):
    """A row for each node that connects, a column for each node that it connects to."""

    nodes: tuple[str, ...]
    rows: tuple[tuple[PairCell, ...], ...]
    summary: str
    notes: tuple[str, ...]


def matrix(job: Job) -> Matrix | None:
    """Return the matrix; None if no node tried another."""
    names = job.node_names
    on = {process.uid: names[process.node] for process in job.processes}
    tried = grouped(job.peers, lambda t: (on.get(t.source, t.source), on.get(t.target, t.target)))
    tried = {pair: trials for pair, trials in tried.items() if pair[0] != pair[1]}
    if not tried:
        return None
    rates = {pair: rate for pair, trials in tried.items() if (rate := _rate(trials)) is not None}
    usual = median(rates.values()) if rates else 0.0
    cells = {pair: _cell(pair, trials, rates.get(pair), usual) for pair, trials in tried.items()}
    bad = [pair for pair, cell in cells.items() if cell.kind != "met"]
    ends = dict.fromkeys(name for pair in tried for name in pair)
    order = [name for name in names.values() if name in ends] + sorted(ends.keys() - set(names.values()))
    notes = []
    if len(order) > SIDE:
        count_of = Counter(name for pair in bad for name in pair)
        kept = set(sorted(count_of, key=lambda name: (-count_of[name], name))[:SIDE])
        if len(count_of) > SIDE:
            notes.append(f"{count(len(count_of) - SIDE, 'more node')} with a failed or slow pair")
        order = [name for name in order if name in kept]
    met = sum(cell.kind in {"met", "slow"} for cell in cells.values())
    if rates:
        notes.append(
            f"Rate of one TCP connection, GB/s: median {figure(usual / 1e9)}, "
            f"lowest {figure(min(rates.values()) / 1e9)}, highest {figure(max(rates.values()) / 1e9)}. "
            "A pair below half of the median is marked slow."
        )
    return Matrix(
        tuple(order),
        tuple(tuple(cells.get((source, target)) or _untested(source, target) for target in order) for source in order),
        f"{met} of {count(len(tried), 'tested path')} between {count(len(ends), 'node')} reachable"
        + (f", {slow} slow" if (slow := sum(cell.kind == "slow" for cell in cells.values())) else ""),
        tuple(notes),
    )


def _untested(source: str, target: str) -> PairCell:
    if source == target:
        return PairCell("", "self", "the same node")
    return PairCell("·", "untested", f"{source} to {target}: not tested")


def _rate(trials: list[PeerTrial]) -> float | None:
    """Return the lowest rate in bytes per second that the network determined."""
    known = [t.transfer.rate for t in trials if t.transfer is not None and not t.transfer.latency_bound]
    return min(known, default=None)


def _cell(pair: tuple[str, str], trials: list[PeerTrial], rate: float | None, usual: float) -> PairCell:
    path = f"{pair[0]} to {pair[1]}"
    failed = next((trial for trial in trials if trial.outcome != "met"), None)
    if failed is not None:
        detail = f" ({failed.detail})" if failed.detail else ""
        return PairCell(f"✗ {failed.outcome}", "failed", f"{path}: {failed.outcome} at {failed.address}{detail}")
    stalled = any(trial.transfer is not None and trial.transfer.stalled for trial in trials)
    if rate is None:
        text = "! stalled" if stalled else "✓"
        return PairCell(text, "slow" if stalled else "met", f"{path}: {'data stalled' if stalled else 'reachable'}")
    slow = stalled or rate < _SLOW * usual
    return PairCell(
        f"{'!' if slow else '✓'} {figure(rate / 1e9)}",
        "slow" if slow else "met",
        f"{path}: {figure(rate / 1e9)} GB/s{', data stalled' if stalled else ''}",
    )
