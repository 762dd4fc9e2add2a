"""Which ways between nodes lose packets: told by a test over all ways into and out of a node, not way by way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.network.attempts import Way, Ways, nothing_arrived
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distcheck.facts import Job, PeerTrial

_HEALTHY = 0.005
"""Share of segments that may be sent again on a healthy network: the look itself fills its queues for a moment."""
_CHANCE = 1e-4
"""Of calling any way of a whole job lossy on which segments are lost that often, and independently."""
_FEWEST = 8
"""Segments that were sent again; fewer prove nothing."""
_ECHO = 0.4
_MANY = 1e4


class Lost(NamedTuple):
    """How many of the segments had to be sent again."""

    repeated: int
    segments: int
    ways: int = 1
    """That were counted together."""

    @property
    def share(self) -> float:
        """Return the share of the segments."""
        return self.repeated / self.segments if self.segments else 0.0


@once
def lossy(job: Job) -> dict[Way, Lost]:
    """Return the ways that lose packets, each with the counts that prove it.

    All ways into a node, and all out of it, are counted together, so that 2 % of loss are found among 4,000 segments
    although one way sends too few of them. They are proven together only where that holds without the worst of them as
    well, which may be a lossy pair; what one node explains proves nothing about another one.
    """
    ways = Ways(job, transferred=True)
    counts = {way: lost for way, trials in ways.tried.items() if (lost := _counted(trials)).segments > 0}
    worn = [way for way, lost in counts.items() if lost.repeated]
    ends = {(end, way[end]) for way in worn for end in (0, 1)}
    pools: dict[tuple[int, str], list[Way]] = {}
    for way in counts:
        for end in ends.intersection(enumerate(way)):
            pools.setdefault(end, []).append(way)
    groups = sorted([*pools.values(), *([way] for way in worn)], key=lambda group: -_excess(_sum(counts, group)))
    chance = _CHANCE / (3 * max(1, len(counts)))  # as many groups at most, whether or not anything was repeated
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


def echoes(share: float, ways: Ways, way: Way) -> bool:
    """Whether the other direction of a way loses so much more that this share is what becomes of it."""
    return _echo(share, _counted(ways.tried.get((way[1], way[0]), ())))


def _echo(share: float, back: Lost | None) -> bool:
    """Lost confirmations make the other side send a little again, or wait, as well; that is the same loss."""
    return back is not None and share < _ECHO * back.share


def _counted(trials: Iterable[PeerTrial]) -> Lost:
    """Return the counts of a way, of several networks in use those of the worst."""
    sent = [t.transfer for t in trials if t.transfer and not nothing_arrived(t.transfer)]
    return max((Lost(s.repeated, s.segments) for s in sent), key=_excess, default=Lost(0, 0))


def _sum(counts: Mapping[Way, Lost], group: Iterable[Way]) -> Lost:
    own = [counts[way] for way in group]
    return Lost(sum(lost.repeated for lost in own), sum(lost.segments for lost in own), len(own))


def _excess(lost: Lost) -> float:
    """Return by how many standard deviations more was sent again than on a healthy network."""
    expected = _HEALTHY * lost.segments
    return (lost.repeated - expected) / math.sqrt(max(expected, 1.0))


def _unlikely(lost: Lost, chance: float) -> bool:
    """Whether a healthy network would send that many again less often than `chance` (Poisson)."""
    expected = _HEALTHY * lost.segments
    if lost.repeated < max(_FEWEST, expected):
        return False
    if expected > _MANY:  # as good as normal by then, and quick to tell
        return math.erfc(_excess(lost) / math.sqrt(2)) / 2 < chance
    term = math.exp(lost.repeated * math.log(expected) - expected - math.lgamma(lost.repeated + 1))
    tail, n = 0.0, lost.repeated
    while term > chance / 1e6:
        tail, n = tail + term, n + 1
        term *= expected / n
    return tail < chance
