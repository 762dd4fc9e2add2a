"""Who is slow: figures against those of the same round, with a bound that noise does not reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log2
from statistics import median, median_high

from msgspec.structs import replace

from .round import WORST_FIRST, Compute, Group, Outcome, Result, Round, SlowRank, Test

SLOW = 0.8
"""Below this share of the others' median a group or rank is slow."""
SIGMAS = 4.0
"""And by so many standard deviations, told by the median absolute deviation."""
SIGMA_PER_MAD = 1.4826
"""Source: https://en.wikipedia.org/wiki/Median_absolute_deviation (normal distribution)"""
ENOUGH = 4
"""With fewer figures the best is what the others are held against: their median may be the slow ones' own."""
FEW_NODES = 8
"""Up to so many nodes a round has too few figures of its own, and those of all rounds are judged together."""

Kind = tuple[object, ...]


def tests_of(now: Round, results: Iterable[Result]) -> list[Test]:
    """Put what a round gave in the order of its groups; nothing is judged yet.

    Raises ValueError for a result that belongs to no group, or a second one of a group.
    """
    by_group: dict[int, Result] = {}
    for result in results:
        if not 0 <= result.group < len(now.groups) or result.group in by_group:
            raise ValueError(f"round {now.number} has no result to take for group {result.group}")
        by_group[result.group] = result
    return [_test(now.number, group, by_group.get(i)) for i, group in enumerate(now.groups)]


def judge(now: Sequence[Test], before: Iterable[Test], floor: float | None = None) -> list[Test]:
    """Say which of a round's tests, rails and ranks were slow; `floor` is a bus bandwidth in GB/s between nodes."""
    speeds, rails, work = _Pool(), _Pool(), _Pool()
    for tests, current in ((before, False), (now, True)):
        for test in tests:
            if test.speed is not None:
                speeds.add(_kind(test), test.speed, current=current)
            for _, speed in test.rail_speeds:
                rails.add(_kind(test), speed, current=current)
            for name, rank, speed in _work(test.compute):
                work.add((name, rank.device), speed, current=current)
    return [_judged(test, speeds, rails, work, floor) for test in now]


class _Pool:
    """Figures by what they may be compared with: of this round, and of all rounds."""

    def __init__(self) -> None:
        self._now: dict[Kind, list[float]] = {}
        self._ever: dict[Kind, list[float]] = {}
        self._known: dict[Kind, tuple[float, float]] = {}

    def add(self, kind: Kind, speed: float, *, current: bool) -> None:
        self._ever.setdefault(kind, []).append(speed)
        if current:
            self._now.setdefault(kind, []).append(speed)

    def held_against(self, kind: Kind, speed: float) -> tuple[float, bool]:
        """Return the share of what the others show, and whether that is slow."""
        if kind not in self._known:
            now, ever = self._now.get(kind, []), self._ever[kind]
            # A round that only repeats the suspects has nobody to hold them against.
            self._known[kind] = reference(now if len(now) >= max(ENOUGH, len(ever) / 8) else ever)
        middle, sigma = self._known[kind]
        return speed / middle, speed < SLOW * middle and middle - speed > SIGMAS * sigma


def reference(speeds: Sequence[float]) -> tuple[float, float]:
    """Return what others are held against, and its standard deviation (0 where there are too few to tell)."""
    if len(speeds) < ENOUGH:
        return max(speeds), 0.0
    middle = median_high(speeds)
    # Only the upper half tells of noise: the lower one may be the slow ones.
    return middle, SIGMA_PER_MAD * median(s - middle for s in speeds if s >= middle)


def _test(number: int, group: Group, result: Result | None) -> Test:
    if result is None:
        return Test(number, group.nodes, group.purpose, "untested")
    speed = result.busbw_GBps
    if speed is None and result.seconds:
        speed = 1 / result.seconds
    bad = [r for r in result.rails if r.ended not in {"passed", "untested"}]
    outcome: Outcome = result.ended
    if outcome == "passed" and bad:
        outcome = next(w for w in WORST_FIRST if any(r.ended == w for r in bad))
    return Test(
        number, group.nodes, group.purpose, outcome, outcome,
        rails=tuple(sorted(r.local_rank for r in bad)) if len(bad) < len(result.rails) else (),
        speed=speed if outcome == "passed" and speed and speed > 0 else None,
        like=result.like,
        rail_speeds=tuple((r.local_rank, r.busbw_GBps) for r in result.rails if r.ended == "passed" and r.busbw_GBps),
        compute=result.compute,
        said=result.said,
    )  # fmt: skip


def _kind(test: Test) -> Kind:
    """Groups whose sizes differ by less than a third or so are alike."""
    return test.like, round(log2(len(test.nodes)) * 2)


def _work(compute: Iterable[Compute]) -> Iterable[tuple[str, Compute, float]]:
    for rank in compute:
        for name, seconds in (("matmul", rank.matmul_seconds), ("copy", rank.copy_seconds)):
            if seconds is not None and seconds > 0:
                yield name, rank, 1 / seconds


def _judged(test: Test, speeds: _Pool, rails: _Pool, work: _Pool, floor: float | None) -> Test:
    if test.speed is None and not test.rail_speeds and not test.compute:
        return test
    outcome, ratio, bad_rails = test.ended, None, test.rails
    if test.speed is not None:
        ratio, slow = speeds.held_against(_kind(test), test.speed)
        if floor and len(test.nodes) > 1 and test.speed < floor:
            ratio, slow = min(ratio, test.speed / floor), True
        outcome = "slow" if slow else outcome
    if test.ended == "passed":
        held = [(rail, *rails.held_against(_kind(test), speed)) for rail, speed in test.rail_speeds]
        found = [(rail, share) for rail, share, slow in held if slow]
        if found:
            outcome, ratio = "slow", min(share for _, share in found)
        bad_rails = tuple(rail for rail, _ in found) if len(found) < len(held) else ()
    slow_ranks: list[SlowRank] = []
    for name, rank, speed in _work(test.compute):
        share, slow = work.held_against((name, rank.device), speed)
        if slow:
            slow_ranks.append(SlowRank(rank.node, rank.local_rank, "matmul" if name == "matmul" else "copy", share))
    return replace(test, outcome=outcome, ratio=ratio, rails=bad_rails, slow_ranks=tuple(slow_ranks))
