"""Which paths between nodes lose packets, tested over all paths of a node together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.network.attempts import nothing_arrived
from distcheck.rules.network.trials import Way, transferred
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.network import PeerTrial

_HEALTHY = 0.005
"""Share of segments that a healthy network may retransmit: the test itself briefly fills its queues."""
_CHANCE = 1e-4
"""Chance of reporting any path of a whole job as lossy when segments are lost at that share, independently."""
_FEWEST = 8
"""Retransmitted segments; fewer prove nothing."""
_ECHO = 0.4
_MANY = 1e4


class Lost(NamedTuple):
    """How many of the segments were retransmitted."""

    repeated: int
    segments: int
    ways: int = 1
    """Paths that were counted together."""

    @property
    def share(self) -> float:
        """Return the share of retransmitted segments."""
        return self.repeated / self.segments if self.segments else 0.0


@once
def lossy(job: Job) -> dict[Way, Lost]:
    """Return the paths that lose packets, each with the counts that prove it.

    All paths into a node, and all paths out of it, are counted together, so that a loss of 2 % is found in 4,000
    segments although a single path sends too few. A group is proven lossy only if it is also lossy without its worst
    path, which may be a lossy pair. Losses that one node explains prove nothing about another node.
    """
    if not any(t.transfer is not None and t.transfer.repeated for t in job.peers):
        return {}
    counts = {way: lost for way, trials in transferred(job).items() if (lost := _counted(trials)).segments > 0}
    worn = [way for way, lost in counts.items() if lost.repeated]
    ends = {(end, way[end]) for way in worn for end in (0, 1)}
    pools: dict[tuple[int, str], list[Way]] = {}
    for way in counts:
        for end in ends.intersection(enumerate(way)):
            pools.setdefault(end, []).append(way)
    groups = sorted([*pools.values(), *([way] for way in worn)], key=lambda group: -_excess(_sum(counts, group)))
    chance = _CHANCE / (3 * max(1, len(counts)))  # the most groups there can be, with or without retransmissions
    proven: dict[Way, Lost] = {}
    for group in groups:
        if _excess(_sum(counts, group)) <= 0:
            break
        rest = [way for way in group if way not in proven]
        worst = max(rest, key=lambda way: counts[way].share, default=None)
        without = [way for way in rest if way != worst] if len(group) > 1 else rest
        if without and _unlikely(_sum(counts, without), chance):
            proven |= dict.fromkeys(rest, _sum(counts, rest))
    return {way: lost for way, lost in proven.items() if not _echo(lost.share, proven.get(way[::-1]))}


def echoes(share: float, tried: Mapping[Way, Iterable[PeerTrial]], way: Way) -> bool:
    """Whether this share is only a side effect of much larger losses in the other direction."""
    return _echo(share, _counted(tried.get(way[::-1], ())))


def _echo(share: float, back: Lost | None) -> bool:
    """Whether a share is a side effect of `back`: lost ACKs cause a few retransmissions."""
    return back is not None and share < _ECHO * back.share


def _counted(trials: Iterable[PeerTrial]) -> Lost:
    """Return the counts of a path; with several networks, those of the worst."""
    sent = [t.transfer for t in trials if t.transfer and not nothing_arrived(t.transfer)]
    return max((Lost(s.repeated, s.segments) for s in sent), key=_excess, default=Lost(0, 0))


def _sum(counts: Mapping[Way, Lost], group: Iterable[Way]) -> Lost:
    own = [counts[way] for way in group]
    return Lost(sum(lost.repeated for lost in own), sum(lost.segments for lost in own), len(own))


def _excess(lost: Lost) -> float:
    """Return the retransmissions above a healthy network's, in standard deviations."""
    expected = _HEALTHY * lost.segments
    return (lost.repeated - expected) / math.sqrt(max(expected, 1.0))


def _unlikely(lost: Lost, chance: float) -> bool:
    """Whether a healthy network would retransmit that many less often than `chance` (Poisson)."""
    expected = _HEALTHY * lost.segments
    if lost.repeated < max(_FEWEST, expected):
        return False
    if expected > _MANY:  # nearly a normal distribution, which is faster to compute
        return math.erfc(_excess(lost) / math.sqrt(2)) / 2 < chance
    term = math.exp(lost.repeated * math.log(expected) - expected - math.lgamma(lost.repeated + 1))
    tail, n = 0.0, lost.repeated
    while term > chance / 1e6:
        tail, n = tail + term, n + 1
        term *= expected / n
    return tail < chance
