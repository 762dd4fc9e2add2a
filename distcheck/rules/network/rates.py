"""Transfer rates between the nodes, and which nodes are far slower than the others."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.rules.network.attempts import Way, Ways
from distcheck.rules.network.losses import lossy
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from distcheck.facts.job import Job

_SLOW = 0.2
"""Share of the others' median rate; on shared machines rates differ by half of that."""
_MOST_SLOW = 16
"""Nodes that are compared with the others, the slowest first."""
_LATENCY = "link speed not judged: with such a long round trip 2 MB take as long on any link"
_ONCE = "link speed not judged: one transfer was slow, and there was no time to repeat it"
Word = Literal["to", "from"]


class Slow(NamedTuple):
    """A side whose paths in these directions are all far slower than those of the others."""

    rates: dict[Word, float]
    """Rate of the fastest path in bytes per second: "to" and "from" the others."""
    usual: float

    @property
    def text(self) -> str:
        """How slow the side is, for a message."""
        return (
            f"at most {max(self.rates.values()) / 1e6:.0f} MB/s {' and '.join(sorted(self.rates, reverse=True))} "
            f"the others; median between the others: {self.usual / 1e6:.0f} MB/s"
        )


class Rates(NamedTuple):
    """The slow sides of a job, by their transfer rates."""

    slow: dict[str, Slow]
    unsure: dict[str, set[str]]
    """Sides that may be slow, by the reason why this is not certain."""

    def is_slow(self, way: Way) -> bool:
        """Whether one end of a path is slow in this direction."""
        ends: tuple[tuple[str, Word], ...] = ((way[0], "to"), (way[1], "from"))
        return any(word in self.slow[side].rates for side, word in ends if side in self.slow)


@once
def of(job: Job) -> Rates:
    """Return the slow sides of a job, compared by their fastest path in each direction.

    A queue in one direction delays the ACKs of the other, so usually both are slow. Lossy paths and their reverse
    direction are slow for another reason and do not count.
    """
    ways = Ways(job)
    if len(job.nodes) < 3:
        return Rates({}, {})
    losing = {way for way, lost in lossy(job).items() if lost.ways > 1}
    rates, seen = {}, {}
    again: set[Way] = set()
    distant: set[Way] = set()
    for way, trials in ways.tried.items():
        sent = [t.transfer for t in trials if t.transfer and not t.transfer.stalled and t.transfer.seconds > 0]
        if sent and losing.isdisjoint((way, way[::-1])):
            again |= {way} if any(s.repeats for s in sent) else set()
            distant |= {way} if any(s.latency_bound for s in sent) else set()
            # CPU wait excuses a side, but must not raise the others' rates far above the measured ones.
            rates[way] = max(s.rate for s in sent)
            seen[way] = max(min(s.rate, 2 * s.bytes / s.seconds) for s in sent)
    own: dict[str, dict[Word, list[Way]]] = {}
    for way in rates:
        own.setdefault(way[0], {}).setdefault("to", []).append(way)
        own.setdefault(way[1], {}).setdefault("from", []).append(way)
    fastest = {
        side: {word: max(several, key=rates.__getitem__) for word, several in both.items() if len(several) > 1}
        for side, both in sorted(own.items())
    }
    found = Rates({}, {})
    slowest_first = sorted(fastest, key=lambda side: min((rates[w] for w in fastest[side].values()), default=math.inf))
    for side in slowest_first[:_MOST_SLOW]:
        usual = median([rate for way, rate in seen.items() if side not in way] or [0.0])
        slow = {word: way for word, way in fastest[side].items() if rates[way] < _SLOW * usual}
        near = {word: way for word, way in slow.items() if way not in distant}
        sure = {word: rates[way] for word, way in near.items() if not again.isdisjoint(own[side][word])}
        if sure:
            found.slow[side] = Slow(sure, usual)
        elif slow:
            found.unsure.setdefault(_ONCE if near else _LATENCY, set()).add(side)
    return found
