"""Transfer rates between the nodes: which nodes are far slower than the others, or than their own adapters."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from heapq import nsmallest
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.expectation.outside import real_speed
from distcheck.rules.job.addresses import canonical
from distcheck.rules.network.attempts import interface_name
from distcheck.rules.network.interface_choices import interfaces_of, link_of, within
from distcheck.rules.network.losses import lossy
from distcheck.rules.network.trials import Way, between_nodes, by_way
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.network import PeerTrial, Transfer
    from distcheck.facts.node import NodeFacts

_SLOW = 0.2
"""Share of the others' median rate, or of the adapters'; on shared machines rates differ by half of that."""
_MOST_SLOW = 16
"""Nodes that are compared with the others, the slowest first."""
_LATENCY = "link speed not judged: with such a long round trip 2 MB take as long on any link"
ONCE = "link speed not judged: one transfer was slow, and there was no time to repeat it"
_WIRELESS_MBPS = 1_000
"""A wireless adapter has no rate of its own; it replaces a wired one of this rate at least."""
_MOST_MBPS = 2_000
"""Faster adapters are held to this rate; with ten busy processes per core one connection moved 0.4 of it (measured)."""
_BYTES_PER_MBIT = 125_000
_LONG_SECONDS = 0.5
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


class _Measured(NamedTuple):
    """A path with the best of its rates in bytes per second."""

    rate: float
    """Without the time in which a process waited for a CPU."""
    counted: float
    """The rate at which it counts for the others: CPU wait excuses a side, but must not raise theirs far."""
    sent: list[Transfer]


@once
def _paths(job: Job) -> dict[Way, _Measured]:
    """Return the paths that have a rate.

    Lossy paths and their reverse direction are slow for another reason and do not count.
    """
    losing = {way for way, lost in lossy(job).items() if lost.ways > 1}
    found = {}
    for way, trials in by_way(job).items():
        sent = [t.transfer for t in trials if t.transfer and not t.transfer.stalled and t.transfer.seconds > 0]
        if sent and losing.isdisjoint((way, way[::-1])):
            counted = max(min(s.rate, 2 * s.bytes / s.seconds) for s in sent)
            found[way] = _Measured(max(s.rate for s in sent), counted, sent)
    return found


def _median_without(ordered: Sequence[float], own: Iterable[float]) -> float:
    """Return the median of ordered numbers without some of them, 0 if none is left."""
    others = list(ordered)
    for number in own:
        del others[bisect_left(others, number)]
    return median(others) if others else 0.0


@once
def of(job: Job) -> Rates:
    """Return the slow sides of a job, compared by their fastest path in each direction.

    A queue in one direction delays the ACKs of the other, so usually both are slow. A direction with a single path does
    not count: whether the side or the path is slow is unknown.
    """
    found, own = Rates({}, {}), defaultdict[str, dict[Word, list[_Measured]]](lambda: {"to": [], "from": []})
    for way, path in _paths(job).items() if len(job.nodes) > 2 else ():
        for side, word in zip(way, _WORDS, strict=True):
            own[side][word].append(path)
    fastest = {
        side: {word: max(several, key=attrgetter("rate")) for word, several in mine.items() if len(several) > 1}
        for side, mine in own.items()
    }
    lowest = {side: min(path.rate for path in paths.values()) for side, paths in fastest.items() if paths}
    ordered = sorted(path.counted for path in _paths(job).values())
    for side in nsmallest(_MOST_SLOW, lowest, key=lambda side: (lowest[side], side)):
        mine = own[side]
        usual = _median_without(ordered, [path.counted for several in mine.values() for path in several])
        slow = {word: path for word, path in fastest[side].items() if path.rate < _SLOW * usual}
        near = {word: path for word, path in slow.items() if not any(s.latency_bound for s in path.sent)}
        again = {word for word in near if any(s.repeats for path in mine[word] for s in path.sent)}
        if again:
            found.slow[side] = Slow({word: near[word].rate for word in again}, usual)
        elif slow:
            found.unsure.setdefault(ONCE if near else _LATENCY, set()).add(side)
    return found


class Adapter(NamedTuple):
    """The end of a path: an interface of a node whose rate is known."""

    node: str
    interface: str
    wireless: bool
    speed_Mbps: int  # noqa: N815 the unit's own spelling

    @property
    def text(self) -> str:
        """Its interface and rate: eth0 (10000 Mbit/s)."""
        return f"{self.interface} ({'wireless' if self.wireless else f'{self.speed_Mbps} Mbit/s'})"

    @property
    def weight(self) -> tuple[bool, int]:
        """What orders adapters: the weaker one of a slow path is suspected alone."""
        return not self.wireless, self.speed_Mbps


class Path(NamedTuple):
    """A transfer between two adapters, and what they should carry."""

    sent: Transfer
    ends: tuple[Adapter, Adapter]
    least: float
    """Bytes per second."""

    @property
    def share(self) -> float:
        """What was reached of it."""
        return self.sent.rate / self.least

    @property
    def sure(self) -> bool:
        """Whether it was slow twice, or for so long that no moment's disturbance explains it."""
        return self.sent.repeats or self.sent.seconds - self.sent.waited_seconds >= _LONG_SECONDS

    @property
    def weaker(self) -> set[Adapter]:
        """Its weaker end, or both where they are alike."""
        least = min(end.weight for end in self.ends)
        return {end for end in self.ends if end.weight == least}


@once
def below(job: Job) -> dict[Adapter, Path]:
    """Return the adapters that no path in a direction brings to `_SLOW` of their rate, with the fastest such path."""
    least = _SLOW * _MOST_MBPS * _BYTES_PER_MBIT
    trials = [(a, b, t, t.transfer) for a, b, t in between_nodes(job) if t.transfer and not t.transfer.stalled]
    touched = {end for a, b, _, sent in trials if sent.rate < least for end in (a, b)}
    if not touched:
        return {}
    losing = {way for way, lost in lossy(job).items() if lost.ways > 1}
    nodes = {node.key: node for node in job.nodes}
    ways: dict[tuple[Adapter, int], Path] = {}
    for source, target, trial, sent in trials:
        if touched.isdisjoint((source, target)) or sent.latency_bound or not losing.isdisjoint(_both(source, target)):
            continue
        if path := _between(job, nodes[source], nodes[target], trial, sent):
            for way in zip(path.ends, (0, 1), strict=True):
                ways[way] = max(path, ways.get(way, path), key=lambda each: each.share)
    return {end: path for (end, _), path in ways.items() if path.share < 1 and end in path.weaker}


def _both(source: str, target: str) -> set[Way]:
    return {(source, target), (target, source)}


def _between(job: Job, source: NodeFacts, target: NodeFacts, trial: PeerTrial, sent: Transfer) -> Path | None:
    ends = _adapter(job, source, trial.address, own=False), _adapter(job, target, trial.address, own=True)
    if ends[0] is None or ends[1] is None:
        return None
    speed = min(_MOST_MBPS, *(end.speed_Mbps for end in ends if end))
    return Path(sent, (ends[0], ends[1]), _SLOW * speed * _BYTES_PER_MBIT)


def _adapter(job: Job, node: NodeFacts, address: str, *, own: bool) -> Adapter | None:
    """Return the adapter of a node that has an address, or that leads to it; None if its rate is unknown."""
    links = node.network.links if node.network and isinstance(node.network.links, tuple) else ()
    fits = (i.name for i in interfaces_of(node) if (canonical(i.address) == address if own else within(i, address)))
    name = next(fits, None) or interface_name(job, node)
    link = link_of(node, name)
    speed = real_speed(link, links) if link else None
    if link is not None and link.wireless:
        return Adapter(node.key, name, wireless=True, speed_Mbps=_WIRELESS_MBPS)
    return Adapter(node.key, name, wireless=False, speed_Mbps=speed) if speed else None
