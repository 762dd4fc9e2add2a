"""How fast data goes between the nodes, and which nodes are far slower than the others."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.rules.network.attempts import Way, Ways
from distcheck.rules.network.losses import lossy
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from distcheck.facts import Job

_SLOW = 0.2
"""Of the others' median rate; on machines that others use as well rates differ by half of that."""
_MOST_SLOW = 16
"""Nodes that are compared with the others, the slowest first."""
_LATENCY = "link speed not judged: over so long a round trip 2 MB take as long on any link"
_ONCE = "link speed not judged: one transfer was slow, and there was no time to repeat it"
Word = Literal["to", "from"]


class Slow(NamedTuple):
    """A side of which every way in these directions is far slower than the ways between the others."""

    rates: dict[Word, float]
    """Of the fastest way, in bytes per second: "to" and "from" the others."""
    usual: float

    @property
    def words(self) -> str:
        """Say how slow."""
        return (
            f"at most {max(self.rates.values()) / 1e6:.0f} MB/s {' and '.join(sorted(self.rates, reverse=True))} "
            f"the others, between which {self.usual / 1e6:.0f} MB/s are usual"
        )


class Rates(NamedTuple):
    """What the rates tell of the sides of a job."""

    slow: dict[str, Slow]
    unsure: dict[str, set[str]]
    """Sides that seem slow and may not be, by the reason."""

    def is_slow(self, way: Way) -> bool:
        """Whether one of a way's ends is slow in this direction."""
        ends: tuple[tuple[str, Word], ...] = ((way[0], "to"), (way[1], "from"))
        return any(word in self.slow[side].rates for side, word in ends if side in self.slow)


@once
def of(job: Job) -> Rates:
    """Compare the sides by the fastest of their ways in each direction.

    What a device queues in one direction delays the answers to the other, so that mostly both are slow. Ways that lose
    packets, and the answers to what they carry, are slow for another reason.
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
            # Waiting for a CPU excuses a side; it does not make the others much faster than they were seen to be.
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
