"""Rules about round-trip times between the nodes."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from shlex import quote
from statistics import median

from distcheck.facts.job import Job
from distcheck.facts.network import Use
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.network.attempts import Ways
from distcheck.rules.network.trials import between_sides, by_way
from distcheck.rules.wording import found

_LONG_SECONDS = 10e-3
"""At this round trip a ring all_reduce over 8 nodes takes 0.1 s longer for every bucket of gradients."""
_NOTICED_SECONDS = 2e-3
_TIMES = 20
"""Times the shortest round trip between any two nodes; switches and a busy host make less of a difference."""
_MOST_SHOWN = 8
Pair = frozenset[str]


@rule("peers", scope=("node", "link"), owner="admin")
def net_high_latency(job: Job) -> Iterator[Outcome]:
    """A node has a much longer round trip than the others.

    Every step of a ring or tree waits for the slowest node. A ring all_reduce over 8 nodes passes each of them 14
    times, so 10 ms on the path to one node cost 0.1 s for every bucket of gradients, at any link speed. Typical causes
    are a node in another site or zone, a tunnel, a routing detour, a shaped or overloaded interface.

    Found by the shortest round trip that the kernel measured between each two nodes (TCP_INFO's min_rtt). It does not
    depend on how busy the processes are. More than 2 ms and 20 times the shortest round trip of the job is a warning,
    from 10 ms an error. A job that spans equally large sites, or whose nodes are all far from each other, is meant to
    do so, and is silent.

    Fix: Find where the path becomes long, and check the interface at its end for shaping or overload.

        tracepath {target}
        ssh {target} tc -s qdisc show
    """
    trials = between_sides(job)
    measured = [trip for _, _, t in trials if t.uses and (trip := t.round_trip_seconds) is not None]
    if trials and not measured:
        yield NotChecked(reason="the kernel reported no round trips (TCP_INFO)", required=False)
    if max(measured, default=0.0) <= _NOTICED_SECONDS:
        return
    ways = Ways(job, by_way(job))
    pairs = _round_trips(ways)
    limit = max(_NOTICED_SECONDS, _TIMES * min(pairs.values()))
    far = {pair: seconds for pair, seconds in pairs.items() if seconds > limit}
    usual = _ms(median(seconds for pair, seconds in pairs.items() if pair not in far))
    largest, *groups = _near_each_other(ways, pairs, far)
    for group in groups if groups and len(largest) > len(groups[0]) else ():
        own = {pair: seconds for pair, seconds in far.items() if not pair.isdisjoint(group)}
        seconds = min(own.values())
        message = f"the round trip to {ways.name(group)} is {_ms(seconds)}, between the others {usual}"
        yield _finding(ways, group, seconds, message, own)
    near = {side: n for n, group in enumerate((largest, *groups)) for side in group}
    if detours := {pair: seconds for pair, seconds in far.items() if len({near[side] for side in pair}) == 1}:
        longest = max(detours, key=lambda pair: detours[pair])
        message = f"the round trip between {ways.name(ways.among(longest))} is {_ms(detours[longest])}"
        message += f", between other nodes {usual}"
        if len(detours) > 1:
            message += f"; similar for {len(detours) - 1} more {'pair' if len(detours) == 2 else 'pairs'}"
        yield _finding(ways, ways.among(_sides(detours)), detours[longest], message, detours, link=True)


def _finding(
    ways: Ways, sides: Sequence[str], seconds: float, message: str, shown: Mapping[Pair, float], *, link: bool = False
) -> Fault:
    target = quote(ways.name(sides[-1:])) if len(ways.job.nodes) > 1 else "localhost"
    return found(
        ways.job,
        ways.ranks(sides),
        message,
        severity="warning" if seconds < _LONG_SECONDS else "error",
        scope="link" if link else "node",
        confirmed=False,
        evidence={ways.name(ways.among(pair)): _ms(took) for pair, took in islice(shown.items(), _MOST_SHOWN)}
        | ({"more_pairs": len(shown) - _MOST_SHOWN} if len(shown) > _MOST_SHOWN else {}),
        values={"target": [target]},
    )


def _sides(pairs: Iterable[Pair]) -> set[str]:
    return {side for pair in pairs for side in pair}


def _round_trips(ways: Ways) -> dict[Pair, float]:
    """Return each pair's shortest round trip in seconds, on the slowest of its networks."""
    shortest: dict[tuple[Pair, Use], float] = {}
    for way, trials in ways.tried.items():
        both = frozenset(way)
        for t in trials:
            if t.round_trip_seconds is not None:
                for use in t.uses:
                    shortest[both, use] = min(shortest.get((both, use), math.inf), t.round_trip_seconds)
    pairs: dict[Pair, float] = {}
    for (pair, _), seconds in shortest.items():
        pairs[pair] = max(pairs.get(pair, 0.0), seconds)
    return pairs


def _near_each_other(ways: Ways, pairs: Iterable[Pair], far: Container[Pair]) -> list[list[str]]:
    """Return the groups of nodes connected by short round trips, the largest first."""
    near: dict[str, set[str]] = {side: set() for side in _sides(pairs)}
    for pair in pairs:
        if pair not in far:
            for side in pair:
                near[side] |= pair
    groups: list[list[str]] = []
    left = set(near)
    while left:
        group: set[str] = set()
        todo = {min(left)}
        while todo:
            group |= todo
            todo = {other for side in todo for other in near[side]} - group
        left -= group
        groups.append(ways.among(group))
    return sorted(groups, key=len, reverse=True)


def _ms(seconds: float) -> str:
    """Return a round trip in ms: 300 ms, 0.12 ms."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
