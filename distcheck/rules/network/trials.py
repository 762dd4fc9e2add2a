"""The peer round's trials between the sides of a job: its nodes, or on a single node its processes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from distcheck.rules.wording import once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.network import PeerTrial, Transfer

Way = tuple[str, str]
"""A path: the side it starts from and the side it leads to."""


@once
def side_by_process(job: Job) -> dict[str, str]:
    """Return the side of each process: its node, or on a single node the process."""
    alone = len(job.nodes) < 2
    return {p.uid: p.uid if alone else p.node for p in job.processes}


@once
def between_sides(job: Job) -> list[tuple[str, str, PeerTrial]]:
    """Return the trials between different sides, each with the one it starts from and the one it leads to."""
    side = side_by_process(job)
    ends = ((side.get(trial.source), side.get(trial.target), trial) for trial in job.peers)
    return [(source, target, trial) for source, target, trial in ends if source and target and source != target]


def between_nodes(job: Job) -> list[tuple[str, str, PeerTrial]]:
    """Return the trials between nodes, with the keys of the source and target nodes."""
    return between_sides(job) if len(job.nodes) > 1 else []


@once
def by_way(job: Job) -> dict[Way, list[PeerTrial]]:
    """Return the trials between sides, by path."""
    found: defaultdict[Way, list[PeerTrial]] = defaultdict(list)
    for source, target, trial in between_sides(job):
        found[source, target].append(trial)
    return dict(found)


@once
def transferred(job: Job) -> dict[Way, list[PeerTrial]]:
    """Return the trials with a transfer between sides, by path."""
    kept = {way: [t for t in trials if t.transfer is not None] for way, trials in by_way(job).items()}
    return {way: trials for way, trials in kept.items() if trials}


@once
def stalled(job: Job) -> dict[Way, list[Transfer]]:
    """Return the transfers that stalled, by path."""
    if not any(t.transfer is not None and t.transfer.stalled for t in job.peers):
        return {}
    found = {
        way: [t.transfer for t in trials if t.transfer is not None and t.transfer.stalled]
        for way, trials in transferred(job).items()
    }
    return {way: sent for way, sent in found.items() if sent}
