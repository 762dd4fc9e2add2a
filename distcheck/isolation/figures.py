"""Judges speeds against those of the same round, with a bound that noise does not reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import exp, log, log2
from statistics import median, median_high
from typing import Literal, NamedTuple

from msgspec.structs import replace

from distcheck.isolation.round import WORST_FIRST, Compute, NodeGroup, Outcome, Result, Round, SlowRank, Trial

SLOW = 0.8
"""Below this share of the others' median a group or rank is slow, unless the settings have a smaller one."""
SIGMAS = 4.0
"""And by this many standard deviations of the logarithms, estimated by their median absolute deviation."""
SIGMA_PER_MAD = 1.4826
"""Source: https://en.wikipedia.org/wiki/Median_absolute_deviation (normal distribution)"""
VERY_SLOW = 0.1
"""Below this share it is slow, whatever the spread of the others."""
SLOW_OF_FEW = 0.5
"""The same with too few figures to estimate noise."""
ENOUGH = 6
"""Figures that suffice to estimate noise."""
MANY = 16
"""From this many figures of one round on, a few slow ones do not move the median."""
FEW_NODES = 2 * MANY
"""Up to this many nodes, earlier measurements are judged again together with later ones."""

_SLOW_PARTNERS = 2
"""With so many others that are not slow themselves, a node is slow."""

_CPU = "gloo"
"""The device of ranks that compute on CPUs."""

Kind = tuple[object, ...]
Figure = tuple[tuple[str, ...], float]


class Norm(NamedTuple):
    """The reference for figures, as ratios, because noise slows each figure by some factor."""

    middle: float
    sigma: float
    """The standard deviation of the logarithms."""
    share: float
    """Below this share of the middle, and far from it in sigmas, a figure is slow."""

    def slow_below(self, most: float) -> float:
        """Return the share of the middle below which a figure is slow, at most `most`."""
        return min(self.share, most, max(exp(-SIGMAS * self.sigma), VERY_SLOW))


def trials_of(now: Round, results: Iterable[Result]) -> list[Trial]:
    """Return a round's results in the order of its groups, not judged yet.

    Raises ValueError for a result that belongs to no group, or a second one of a group.
    """
    by_group: dict[int, Result] = {}
    for result in results:
        if not 0 <= result.group < len(now.groups) or result.group in by_group:
            raise ValueError(f"round {now.number} has no result to take for group {result.group}")
        by_group[result.group] = result
    return [_trial(now.number, group, by_group.get(i)) for i, group in enumerate(now.groups)]


def mark_slow(
    now: Sequence[Trial],
    before: Iterable[Trial],
    *,
    together: bool = False,
    slow_share: float = SLOW,
    slow_work_share: float = SLOW,
) -> list[Trial]:
    """Return a round's tests with slow tests, rails and ranks marked.

    With `together` these are the tests of several rounds, because one round has too few figures.
    """
    shares = (slow_share, slow_share, slow_work_share)
    speeds, rails, work = (_Pool(together=together, most=share) for share in shares)
    earlier = list(before)
    by_rail = _more_than_two_nodes(chain(earlier, now))
    kinds, timed = {_kind(test) for test in now}, any(test.compute for test in now)
    for tests, current in ((earlier, False), (now, True)):
        for test in tests:
            if (test.speed or test.rail_speeds) and (kind := _kind(test)) in kinds:
                if test.speed is not None:
                    speeds.add(kind, test.nodes, test.speed, current=current)
                for rail, speed in test.rail_speeds:
                    rails.add(_rail_kind(kind, rail, by_rail=by_rail), test.nodes, speed, current=current)
            for rank in test.compute if timed else ():
                for name, speed in _work(rank):
                    work.add((name, rank.device), (f"{rank.node} {rank.local_rank}",), speed, current=current)
    return [_marked(test, speeds, rails, work, by_rail=by_rail) for test in now]


def settled(tests: Sequence[Trial], most: float) -> list[Trial]:
    """Return the tests of few nodes; those of a slow node's pairs that were not slow are slow now.

    A node is slow if it is slow with two others that are not, and all its figures are below `most`. Noise lowers the
    bound for all, so that by chance one of its figures may be above it.
    """
    partners: dict[str, set[str]] = {}
    best: dict[str, float] = {}
    pairs = [test for test in tests if len(test.nodes) == 2 and test.ratio is not None]
    for test in pairs:
        for node in test.nodes:
            best[node] = max(best.get(node, 0.0), test.ratio or 0.0)
            if test.outcome == "slow":
                partners.setdefault(node, set()).add(test.other(node))
    below = min(most, SLOW_OF_FEW)
    working = {n for n, ratio in best.items() if ratio >= below}
    slow = {n for n, its in partners.items() if n not in working and len(its & working) >= _SLOW_PARTNERS}
    passed = {id(test) for test in pairs if test.outcome == "passed" and not slow.isdisjoint(test.nodes)}
    return [replace(test, outcome="slow") if id(test) in passed else test for test in tests]


def _more_than_two_nodes(tests: Iterable[Trial]) -> bool:
    nodes: set[str] = set()
    for test in tests:
        nodes.update(test.nodes)
        if len(nodes) > 2:
            return True
    return False


class _Pool:
    """Figures grouped by comparability, each with the members that share it."""

    def __init__(self, *, together: bool, most: float) -> None:
        self.together, self.most = together, most
        self._now: dict[Kind, list[float]] = {}
        self._all: dict[Kind, list[Figure]] = {}
        self._known: dict[Kind, tuple[float, float]] = {}

    def add(self, kind: Kind, members: tuple[str, ...], speed: float, *, current: bool) -> None:
        self._all.setdefault(kind, []).append((members, speed))
        if current:
            self._now.setdefault(kind, []).append(speed)

    def held_against(self, kind: Kind, speed: float) -> tuple[float, bool]:
        """Return the figure's share of the reference, and whether it is slow."""
        if kind not in self._known:
            now = self._now.get(kind, [])
            # A round that mostly repeats suspects has no reference for them.
            many = len(now) >= max(MANY, len(self._all[kind]) / 8) and not self.together
            norm = of_many(now) if many else of_few(self._all[kind], self.most)
            self._known[kind] = norm.middle, norm.slow_below(self.most) * norm.middle
        middle, below = self._known[kind]
        return speed / middle, speed < below


def shares(speeds: Sequence[float], most: float, judged: Sequence[float] = ()) -> list[tuple[float, bool]]:
    """Return each comparable speed's share of their reference, and whether it is slow; `most` is the largest such.

    With `judged`, these speeds are held against that reference in their place.
    """
    pool = _Pool(together=False, most=most)
    for number, speed in enumerate(speeds):
        pool.add((), (str(number),), speed, current=True)
    return [pool.held_against((), speed) for speed in judged or speeds]


def of_many(speeds: Sequence[float]) -> Norm:
    """Return a round's reference; only the upper half, free of slow figures, shows the noise."""
    middle = median_high(speeds)
    return Norm(middle, SIGMA_PER_MAD * median(log(s / middle) for s in speeds if s >= middle), SLOW)


def of_few(figures: Sequence[Figure], most: float = SLOW) -> Norm:
    """Return the reference for few figures: those among members whose best figure is not slow.

    With three nodes, a slow node is in two of the three pairs, but each other node has one good figure.
    """
    best = _best(figures)
    least = most * median_high(best.values())
    good = {m for m, speed in best.items() if speed >= least}
    among = [speed for members, speed in figures if good.issuperset(members)]
    shown = among or [speed for _, speed in figures if speed >= least]
    middle = median_high(shown)
    # A small sample underestimates the spread.
    sigma = SIGMA_PER_MAD * median(abs(log(s / middle)) for s in shown) * (1 + 2 / len(shown))
    return Norm(middle, sigma, SLOW if len(shown) >= ENOUGH else SLOW_OF_FEW)


def too_few(tests: Iterable[Trial], most: float = SLOW) -> bool:
    """Whether more pairs may show that a node is slow: all its figures are low, and there are few of the others."""
    pairs: dict[Kind, list[Figure]] = {}
    for test in tests:
        if test.speed is not None and len(test.nodes) == 2:
            pairs.setdefault(_kind(test), []).append((test.nodes, test.speed))
    for figures in pairs.values():
        norm, best = of_few(figures, most), _best(figures)
        below = min(most, SLOW) * norm.middle
        if norm.share == SLOW_OF_FEW and any(SLOW_OF_FEW * norm.middle <= b < below for b in best.values()):
            return True
    return False


def _best(figures: Iterable[Figure]) -> dict[str, float]:
    """Return the best figure of each member."""
    best: dict[str, float] = {}
    for members, speed in figures:
        for member in members:
            if best.get(member, 0.0) < speed:
                best[member] = speed
    return best


def _trial(number: int, group: NodeGroup, result: Result | None) -> Trial:
    if result is None:
        return Trial(number, group.nodes, group.purpose, "untested")
    speed = result.busbw_GBps
    if speed is None and result.seconds:
        speed = 1 / result.seconds
    bad = [r for r in result.rails if r.ended not in {"passed", "untested"}]
    outcome: Outcome = result.ended
    if outcome == "passed" and bad:
        outcome = next(w for w in WORST_FIRST if any(r.ended == w for r in bad))
    return Trial(
        number, group.nodes, group.purpose, outcome, outcome,
        rails=tuple(sorted(r.local_rank for r in bad)) if len(bad) < len(result.rails) else (),
        speed=speed if outcome == "passed" and speed and speed > 0 else None,
        like=result.like,
        rail_speeds=tuple((r.local_rank, r.busbw_GBps) for r in result.rails if r.ended == "passed" and r.busbw_GBps),
        compute=result.compute,
        said=result.said,
    )  # fmt: skip


def _kind(test: Trial) -> Kind:
    """Return a test's comparison class; sizes that differ by less than a third are alike."""
    return test.like, round(log2(len(test.nodes)) * 2)


def _rail_kind(kind: Kind, rail: int, *, by_rail: bool) -> Kind:
    """Return a rail's comparison class: the same rail elsewhere; for two nodes, all rails."""
    return (*kind, rail) if by_rail else kind


def _work(rank: Compute) -> Iterable[tuple[Literal["matmul", "copy"], float]]:
    times: tuple[tuple[Literal["matmul", "copy"], float | None], ...]
    times = (("matmul", rank.matmul_seconds), ("copy", rank.copy_seconds))
    return ((name, 1 / seconds) for name, seconds in times if seconds is not None and seconds > 0)


def _marked(test: Trial, speeds: _Pool, rails: _Pool, work: _Pool, *, by_rail: bool) -> Trial:
    if test.speed is None and not test.rail_speeds and not test.compute:
        return test
    outcome, ratio, bad_rails, kind = test.ended, None, test.rails, _kind(test)
    if test.speed is not None:
        ratio, slow = speeds.held_against(kind, test.speed)
        outcome = "slow" if slow else outcome
    if test.ended == "passed":
        held = [
            (rail, *rails.held_against(_rail_kind(kind, rail, by_rail=by_rail), speed))
            for rail, speed in test.rail_speeds
        ]
        found = [(rail, share) for rail, share, slow in held if slow]
        if found:
            outcome, ratio = "slow", min(share for _, share in found)
        bad_rails = tuple(rail for rail, _ in found) if len(found) < len(held) else ()
    slow_ranks: list[SlowRank] = []
    for rank in test.compute:
        held_work = [(name, *work.held_against((name, rank.device), speed)) for name, speed in _work(rank)]
        slow_work = [SlowRank(rank.node, rank.local_rank, name, share) for name, share, slow in held_work if slow]
        # Whatever limits a CPU slows products and copies; other processes often slow its memory alone.
        if rank.device != _CPU or len(slow_work) == len(held_work):
            slow_ranks += slow_work
    return replace(test, outcome=outcome, ratio=ratio, rails=bad_rails, slow_ranks=tuple(slow_ranks))
