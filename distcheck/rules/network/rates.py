"""Transfer rates between the nodes, and which nodes are far slower than the others."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.rules.network.attempts import Way, Ways
from distcheck.rules.network.losses import lossy
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.network import Transfer

_SLOW = 0.2
"""Share of the others' median rate; on shared machines rates differ by half of that."""
_MOST_SLOW = 16
"""Nodes that are compared with the others, the slowest first."""
_LATENCY = "link speed not judged: with such a long round trip 2 MB take as long on any link"
_ONCE = "link speed not judged: one transfer was slow, and there was no time to repeat it"
Word = Literal["to", "from"]
_WORDS: tuple[Word, ...] = ("to", "from")


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


class _Path(NamedTuple):
    rate: float
    """Bytes per second, without the time in which the receiver waited for a CPU."""
    counted: float
    """Bytes per second at which it counts for the others: the time of waiting excuses it at most twofold."""
    sent: list[Transfer]

    @property
    def again(self) -> bool:
        """Whether it was measured again."""
        return any(s.repeats for s in self.sent)

    @property
    def distant(self) -> bool:
        """Whether the round trip decides how long the transfer takes."""
        return any(s.latency_bound for s in self.sent)


_rate = itemgetter(0)


def _median_without(ordered: Sequence[float], own: Iterable[float]) -> float:
    """Return the median of ordered numbers without some of them, 0 if none is left."""
    others = list(ordered)
    for number in own:
        del others[bisect_left(others, number)]
    middle = len(others) // 2
    return (others[middle] + others[~middle]) / 2 if others else 0.0


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
    own: defaultdict[tuple[str, Word], list[_Path]] = defaultdict(list)
    ordered = []
    for (source, target), trials in ways.tried.items():
        sent = [t.transfer for t in trials if t.transfer and not t.transfer.stalled and t.transfer.seconds > 0]
        if not sent or (losing and not losing.isdisjoint(((source, target), (target, source)))):
            continue
        # CPU wait excuses a side, but must not raise the others' rates far above the measured ones.
        speeds = [(s.rate, 2 * s.bytes / s.seconds) for s in sent]
        path = _Path(max(speeds)[0], max(map(min, speeds)), sent)
        own[source, "to"].append(path)
        own[target, "from"].append(path)
        ordered.append(path.counted)
    fastest: dict[str, dict[Word, _Path]] = {side: {} for side in sorted({side for side, _ in own})}
    for (side, word), several in own.items():
        if len(several) > 1:
            fastest[side][word] = max(several, key=_rate)
    found = Rates({}, {})
    slowest_first = sorted(fastest, key=lambda side: min(map(_rate, fastest[side].values()), default=math.inf))
    ordered.sort()
    for side in slowest_first[:_MOST_SLOW]:
        usual = _median_without(ordered, [p.counted for word in _WORDS for p in own.get((side, word), ())])
        slow = {word: path for word, path in fastest[side].items() if path.rate < _SLOW * usual}
        near = {word: path for word, path in slow.items() if not path.distant}
        sure = {word: path.rate for word, path in near.items() if any(p.again for p in own[side, word])}
        if sure:
            found.slow[side] = Slow(sure, usual)
        elif slow:
            found.unsure.setdefault(_ONCE if near else _LATENCY, set()).add(side)
    return found
