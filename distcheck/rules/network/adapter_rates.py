"""Nodes whose transfers are far below the rates of their own adapters, with or without other nodes to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.expectation.outside import real_speed
from distcheck.facts.base import Missing
from distcheck.rules.job.addresses import canonical
from distcheck.rules.network.attempts import interface_name
from distcheck.rules.network.interface_choices import within
from distcheck.rules.network.losses import lossy
from distcheck.rules.network.trials import Way, between_nodes
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.network import PeerTrial, Transfer
    from distcheck.facts.node import NodeFacts

SHARE = 0.2
"""Below this share of its adapters' rate a path is slow."""
WIRELESS_MBPS = 1_000
"""A wireless adapter has no rate of its own; it replaces a wired one of this rate at least."""
MOST_MBPS = 2_000
"""Faster adapters are held to this rate; with ten busy processes per core one connection moved 0.4 of it (measured)."""
_BYTES_PER_MBIT = 125_000
_LONG_SECONDS = 0.5


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
    """Return the adapters that no path in a direction brings to `SHARE` of their rate, with the fastest such path."""
    least = SHARE * MOST_MBPS * _BYTES_PER_MBIT
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
        if path := _path(job, nodes[source], nodes[target], trial, sent):
            for way in zip(path.ends, (0, 1), strict=True):
                ways[way] = max(path, ways.get(way, path), key=lambda each: each.share)
    return {end: path for (end, _), path in ways.items() if path.share < 1 and end in path.weaker}


def _both(source: str, target: str) -> set[Way]:
    return {(source, target), (target, source)}


def _path(job: Job, source: NodeFacts, target: NodeFacts, trial: PeerTrial, sent: Transfer) -> Path | None:
    ends = _adapter(job, source, trial.address, own=False), _adapter(job, target, trial.address, own=True)
    if ends[0] is None or ends[1] is None:
        return None
    speed = min(MOST_MBPS, *(end.speed_Mbps for end in ends if end))
    return Path(sent, (ends[0], ends[1]), SHARE * speed * _BYTES_PER_MBIT)


def _adapter(job: Job, node: NodeFacts, address: str, *, own: bool) -> Adapter | None:
    """Return the adapter of a node that has an address, or that leads to it; None if its rate is unknown."""
    if node.network is None or isinstance(node.network.links, Missing) or isinstance(node.interfaces, Missing):
        return None
    fits = (i.name for i in node.interfaces if (canonical(i.address) == address if own else within(i, address)))
    name = next(fits, None) or interface_name(job, node)
    link = next((link for link in node.network.links if link.name == name), None)
    speed = real_speed(link, node.network.links) if link else None
    if link is not None and link.wireless:
        return Adapter(node.key, name, wireless=True, speed_Mbps=WIRELESS_MBPS)
    return Adapter(node.key, name, wireless=False, speed_Mbps=speed) if speed else None
