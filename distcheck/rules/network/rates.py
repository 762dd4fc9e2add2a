"""Transfer rates between the nodes: which nodes are far slower than the others, or than their own adapters."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.expectation.outside import real_speed
from distcheck.rules.job.addresses import canonical
from distcheck.rules.network.attempts import interface_name
from distcheck.rules.network.interface_choices import interfaces_of, link_of, within
from distcheck.rules.network.losses import lossy
from distcheck.rules.network.trials import Way, between_nodes, between_sides, by_way
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


_Path = tuple[float, float, Way]
"""The rate of a path in bytes per second, without the time in which a process waited for a CPU; the rate at which it
counts for the others; and the path."""
_rate: Callable[[_Path], float] = itemgetter(0)


def _paths(job: Job) -> list[_Path]:
    """Return the paths that have a rate, each with the best of its rates.

    Lossy paths and their reverse direction are slow for another reason and do not count.
    """
    losing = {way for way, lost in lossy(job).items() if lost.ways > 1}
    best: dict[Way, tuple[float, float]] = {}
    for source, target, trial in between_sides(job):
        sent, way = trial.transfer, (source, target)
        if not sent or sent.stalled or sent.seconds <= 0 or (losing and not losing.isdisjoint((way, way[::-1]))):
            continue
        # CPU wait excuses a side, but must not raise the others' rates far above the measured ones.
        rate = sent.rate
        counted = min(rate, 2 * sent.bytes / sent.seconds)
        known = best.get(way)
        best[way] = (rate, counted) if known is None else (max(known[0], rate), max(known[1], counted))
    return [(rate, counted, way) for way, (rate, counted) in best.items()]


def _sent(job: Job, path: _Path) -> list[Transfer]:
    """Return the transfers on a path."""
    return [t.transfer for t in by_way(job)[path[2]] if t.transfer and not t.transfer.stalled]


def _median_without(ordered: Sequence[float], own: Iterable[float]) -> float:
    """Return the median of ordered numbers without some of them, 0 if none is left."""
    others = list(ordered)
    for number in own:
        del others[bisect_left(others, number)]
    middle = len(others) // 2
    return (others[middle] + others[~middle]) / 2 if others else 0.0


def _lowest(paths: list[_Path]) -> dict[str, float]:
    """Return the rate of each side's fastest path, in its slower direction.

    A direction with a single path does not count: whether the side or the path is slow is unknown.
    """
    lowest: dict[str, float] = {}
    for end in range(len(_WORDS)):
        number = Counter([path[2][end] for path in paths])
        fastest: dict[str, float] = {}
        for rate, _, way in paths:
            if rate > fastest.get(way[end], -1.0):
                fastest[way[end]] = rate
        for side, rate in fastest.items():
            if number[side] > 1:
                lowest[side] = min(rate, lowest.get(side, rate))
    return lowest


@once
def of(job: Job) -> Rates:
    """Return the slow sides of a job, compared by their fastest path in each direction.

    A queue in one direction delays the ACKs of the other, so usually both are slow.
    """
    found, paths = Rates({}, {}), _paths(job) if len(job.nodes) > 2 else []
    ordered = sorted([counted for _, counted, _ in paths])
    lowest = _lowest(paths)
    may_be_slow = [side for side, rate in lowest.items() if rate < _SLOW * ordered[-1]]
    slowest = nsmallest(_MOST_SLOW, may_be_slow, key=lambda side: (lowest[side], side))
    own: dict[str, dict[Word, list[_Path]]] = {side: {"to": [], "from": []} for side in slowest}
    for path in paths if own else ():
        for side, word in zip(path[2], _WORDS, strict=True):
            if side in own:
                own[side][word].append(path)
    for side, mine in own.items():
        usual = _median_without(ordered, [counted for several in mine.values() for _, counted, _ in several])
        fastest = {word: max(several, key=_rate) for word, several in mine.items() if len(several) > 1}
        slow = {word: path for word, path in fastest.items() if _rate(path) < _SLOW * usual}
        near = {word: path for word, path in slow.items() if not any(s.latency_bound for s in _sent(job, path))}
        again = {word for word in near if any(s.repeats for path in mine[word] for s in _sent(job, path))}
        sure = {word: _rate(path) for word, path in near.items() if word in again}
        if sure:
            found.slow[side] = Slow(sure, usual)
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
