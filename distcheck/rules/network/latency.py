"""Rules about how long the nodes take to answer each other."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import median

from distcheck.facts import Job, Use
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix, NotChecked
from distcheck.rules.network.attempts import Ways
from distcheck.rules.wording import found

_LONG_SECONDS = 10e-3
"""A ring all_reduce over 8 nodes then takes a tenth of a second longer for every bucket of gradients."""
_NOTICED_SECONDS = 2e-3
_TIMES = 20
"""Of the shortest round trip between any two nodes; switches and a busy host make less of a difference."""
_MOST_SHOWN = 8
Pair = frozenset[str]


@rule("peers")
def net_high_latency(job: Job) -> Iterator[Outcome]:
    """A node answers much later than the others.

    Every step of a ring or tree waits for the slowest answer: a ring all_reduce over 8 nodes passes each of them 14
    times, so that 10 ms on the way to one node cost 0.1 s for every bucket of gradients, whatever the link carries.
    A node in another site or zone, a tunnel, a detour in the routing, a shaped or overloaded interface.

    Found by the shortest round trip that the kernel measured on the connections between each two nodes (TCP_INFO's
    min_rtt), which does not depend on how busy the processes are. More than 2 ms and 20 times the shortest round trip
    of the job is a warning, from 10 ms an error. It is a warning too where the job is spread over equally large sites,
    or where all nodes answer each other after 10 ms or more: some jobs are meant to span sites.

    Fix: find where the path to the node gets long.
    """
    ways = Ways(job)
    pairs = _round_trips(ways)
    if ways.tried and not pairs:
        yield NotChecked(reason="the kernel reported no round trips (TCP_INFO)", required=False)
    if not pairs:
        return
    shortest = min(pairs.values())
    limit = max(_NOTICED_SECONDS, _TIMES * shortest)
    far = {pair: seconds for pair, seconds in pairs.items() if seconds > limit}
    if far:
        yield from _compared(ways, pairs, far)
    elif shortest >= _LONG_SECONDS:
        sides = ways.among(_sides(pairs))
        words = f"{ways.name(sides)} answer each other after {_ms(shortest)}"
        if len(sides) > 2:
            words = f"any two of the {len(sides)} nodes answer each other after {_ms(shortest)} or more"
        yield _finding(ways, sides, shortest, words, pairs, may_be_meant=True)


def _compared(ways: Ways, pairs: Mapping[Pair, float], far: Mapping[Pair, float]) -> Iterator[Finding]:
    """Name the nodes that are far from most others, or the sites where none is the largest, and the pairs besides."""
    groups = _near_each_other(ways, pairs, far)
    group_of = {side: n for n, group in enumerate(groups) for side in group}
    across = {pair: seconds for pair, seconds in far.items() if len({group_of[side] for side in pair}) > 1}
    usual = median([seconds for pair, seconds in pairs.items() if pair not in far])
    if len(groups) > 1 and len(groups[0]) > len(groups[1]):
        for group in groups[1:]:
            own = {pair: seconds for pair, seconds in across.items() if not pair.isdisjoint(group)}
            if own:
                seconds, answer = min(own.values()), "answers" if len(group) == 1 else "answer"
                words = f"{ways.name(group)} {answer} after {_ms(seconds)}, the others after {_ms(usual)}"
                yield _finding(ways, group, seconds, words, own)
    elif across:
        seconds = min(across.values())
        sites = " | ".join(ways.name(group) for group in groups)
        words = f"the nodes are {len(groups)} groups that answer each other after {_ms(seconds)}"
        words += f", each within itself after {_ms(usual)}: {sites}"
        yield _finding(ways, ways.among(_sides(across)), seconds, words, across, may_be_meant=True)
    detours = {pair: seconds for pair, seconds in far.items() if pair not in across}
    if detours:
        longest = max(detours, key=lambda pair: detours[pair])
        words = f"{ways.name(ways.among(longest))} answer each other after {_ms(detours[longest])}"
        words += f", other nodes after {_ms(usual)}"
        if len(detours) > 1:
            words += f"; {len(detours) - 1} more {'pair' if len(detours) == 2 else 'pairs'} likewise"
        yield _finding(ways, ways.among(_sides(detours)), detours[longest], words, detours, link=True)


def _finding(
    ways: Ways,
    sides: Sequence[str],
    seconds: float,
    message: str,
    shown: Mapping[Pair, float],
    *,
    link: bool = False,
    may_be_meant: bool = False,
) -> Finding:
    text = "Look where the path gets long, and for a shaped or overloaded interface at its end."
    if may_be_meant:
        text = f"No action if the job is meant to span sites; otherwise: {text[0].lower()}{text[1:]}"
    target = ways.name(sides[-1:]) if len(ways.job.nodes) > 1 else "localhost"
    return found(
        ways.job,
        ways.ranks(sides),
        message,
        Fix(text, (f"tracepath {target}", f"ssh {target} tc -s qdisc show")),
        severity="warning" if may_be_meant or seconds < _LONG_SECONDS else "error",
        scope="link" if link or may_be_meant else "node",
        owner="admin",
        confirmed=False,
        evidence={ways.name(ways.among(pair)): _ms(took) for pair, took in islice(shown.items(), _MOST_SHOWN)}
        | ({"more_pairs": len(shown) - _MOST_SHOWN} if len(shown) > _MOST_SHOWN else {}),
    )


def _sides(pairs: Iterable[Pair]) -> set[str]:
    return {side for pair in pairs for side in pair}


def _round_trips(ways: Ways) -> dict[Pair, float]:
    """Return the shortest round trip in seconds between each two sides; of several networks in use, the slowest's."""
    shortest: dict[tuple[Pair, Use], float] = {}
    for way, trials in ways.tried.items():
        for t in trials:
            for use in t.uses if t.round_trip_seconds is not None else ():
                key = frozenset(way), use
                shortest[key] = min(shortest.get(key, math.inf), t.round_trip_seconds or 0.0)
    pairs: dict[Pair, float] = {}
    for (pair, _), seconds in shortest.items():
        pairs[pair] = max(pairs.get(pair, 0.0), seconds)
    return pairs


def _near_each_other(ways: Ways, pairs: Iterable[Pair], far: Container[Pair]) -> list[list[str]]:
    """Return the groups of nodes that short round trips connect, the largest first."""
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
    """Write a round trip: 300 ms, 0.12 ms."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
