"""The device tests of a job: ranks whose own work is slow, by a model's floor and against the other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import exp, log, sqrt
from statistics import NormalDist, median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.expectation.devices import SLOW, Floor, floor_of
from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.facts.gpu import Gpus
from distcheck.rules.wording import grouped, listed, nodes_of, once, rank_name, unread

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import NotChecked

VERY_SLOW = 0.7
"""Below this share of the other GPUs' median a second look confirms that it is at fault."""
SLOW_HOST_COPY = 0.5
"""`SLOW` and `VERY_SLOW` for copies from and to the host, which differ with the slot and are looked at once."""
SLOW_CPU = 0.2
"""`SLOW` for CPUs: threads of one core, unequal clocks and other machines of a hypervisor make large differences."""
SPREAD = 0.05
"""The standard deviation of the logarithms that is assumed of a few figures: good GPUs differ by 3 to 5 %."""
CHANCE = 1e-4
"""The share of healthy jobs in which noise shows a slow rank."""
_FEW = 16
"""Up to this many figures alike, a figure's own influence on the median matters; so many others outweigh `SPREAD`."""
_SIGMA_PER_MAD = 1.4826
_SMALLEST = 1e-12


Figure = Callable[[DeviceTest], tuple[float | None, float | None]]
"""Returns a figure of the best round of a device test, and of the worst; None if there was no second look."""


class Tested(msgspec.Struct, frozen=True, gc=False):
    """A rank and what its device reached."""

    rank: RankFacts
    device: str
    """The GPU's model, or cpu."""
    test: DeviceTest


class SlowDevice(NamedTuple):
    """A rank whose device is slow in one kind of work."""

    tested: Tested
    value: float
    usual: float | None
    """The median of the other ranks with such a device; None without others."""
    others: int
    floor: float | None
    """What a healthy GPU of the model reaches; None for other models and for CPUs."""
    all_slow: bool
    """Whether the others are below the floor as well."""
    severe: bool
    """Whether it is below the floor, or far below the others at a second look as well."""


@once
def tested(job: Job) -> dict[tuple[str, str, int], list[Tested]]:
    """Return the device tests, grouped by device and work: only these are alike."""
    runs = ((rank, rank.run) for rank in job.ranks if rank.run is not None)
    tests = (Tested(rank, run.device, run.device_test) for rank, run in runs if isinstance(run.device_test, DeviceTest))
    return grouped(tests, lambda t: (t.device, t.test.dtype, t.test.order))


def untested(job: Job, *, gpus: bool) -> Iterator[NotChecked]:
    """Yield the ranks without a device test, and why there is none."""
    runs = ((rank, rank.run) for rank in job.ranks if rank.run is not None and (rank.run.device != "cpu") == gpus)
    why = ((rank, run.device_test.reason) for rank, run in runs if isinstance(run.device_test, Missing))
    yield from unread(job, why)


def whose(job: Job, one: Tested) -> str:
    """Return a rank with its node and device: rank 6 (node2, NVIDIA H100 80GB HBM3)."""
    return f"{rank_name(job, one.rank)} ({listed(nodes_of(job, [one.rank]))}, {one.device})"


def slow_gpus(job: Job, figure: Figure, floor: Callable[[Floor], float], share: float = SLOW) -> Iterator[SlowDevice]:
    """Yield the GPUs that are below their model's floor, or below the others of their model and beyond their spread."""
    for (device, _, _), alike in tested(job).items():
        if device != "cpu":
            known = None if _in_partitions(job) else floor_of(device, job.asked.site().device)
            least = None if known is None else floor(known) or None
            if shared := _shared(job):
                alike = [t for t in alike if _gpu(t.rank) not in shared]  # noqa: PLW2901
            yield from _slow(alike, figure, least, share)


def slow_cpus(job: Job, figure: Figure) -> Iterator[SlowDevice]:
    """Yield the ranks on CPUs that are far below the others."""
    for (device, _, _), alike in tested(job).items():
        if device == "cpu":
            yield from _slow(alike, figure, None, SLOW_CPU)


@once
def _in_partitions(job: Job) -> bool:
    """Return whether AMD GPUs are partitioned: a partition has its card's name and a part of its work."""
    gpus = (gpu for node in job.nodes if isinstance(node.gpus, Gpus) for gpu in node.gpus.devices)
    modes = {gpu.health.amd.compute_partition for gpu in gpus if gpu.health is not None and gpu.health.amd is not None}
    return not modes <= {"", "SPX"}


@once
def _shared(job: Job) -> set[str]:
    """Return the GPUs that several ranks use: each gets a part of it."""
    taken = list(map(_gpu, job.ranks))
    return set() if len(set(taken)) == len(taken) else {gpu for gpu, users in Counter(taken).items() if users > 1}


def _gpu(rank: RankFacts) -> str:
    """Return the UUID of a rank's GPU, as torch reports it or as predicted; a name of its own if it is not known."""
    return (rank.run and rank.run.gpu) or rank.gpu or f"of {rank.process} {rank.placement.rank}"


def _slow(alike: list[Tested], figure: Figure, floor: float | None, share: float) -> Iterator[SlowDevice]:
    figures = [(t, value) for t in alike if (value := figure(t.test)[0]) is not None]
    values = [value for _, value in figures]
    others, least = len(values) - 1, floor or 0.0
    usual, bound = None, 0.0
    if others >= _FEW:
        usual = bound = median(values)
        if min(values) >= max(share * usual, least):
            return
        bound = slow_below(values, share)
    for number, (one, value) in enumerate(figures):
        if 0 < others < _FEW:
            without = values[:number] + values[number + 1 :]
            usual, bound = median(without), slow_below(without, share)
        below, odd = value < least, usual is not None and value < bound
        if below or odd:
            all_slow = below and not odd and usual is not None and usual < least
            again = figure(one.test)[1] is not None or share == SLOW_HOST_COPY
            far = usual is not None and value < min(VERY_SLOW, share) * usual
            yield SlowDevice(one, value, usual, others, floor, all_slow, below or (odd and far and again))


def slow_below(others: Sequence[float], share: float) -> float:
    """Return the figure below which one is slow: at most this share of the others' median, and beyond their spread.

    Of many figures the lower half shows the spread, because healthy devices have a common maximum and no minimum.
    """
    middle, number = median(others), len(others)
    off = [log(max(middle, _SMALLEST) / max(value, _SMALLEST)) for value in others]
    seen = _SIGMA_PER_MAD * median([d for d in off if d >= 0] if number >= _FEW else map(abs, off))
    # Few figures show little of their spread, and their median is uncertain, too.
    sigma = max(seen, sqrt((_FEW * SPREAD**2 + number * seen**2) / (_FEW + number))) * sqrt(1 + 1.5 / number)
    return middle * min(share, exp(-NormalDist().inv_cdf(1 - CHANCE / (number + 1)) * sigma))
