"""The device tests of a job: ranks whose own work is slow, by a model's floor and against the other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.expectation.devices import Floor, floor_of
from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.rules.wording import grouped, once, unread

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import NotChecked

SLOW = 0.5
"""Below this share of the other GPUs' median a GPU is slow; healthy ones of a model differ by a few per cent."""
SLOW_CPU = 0.2
"""The same for CPUs: threads of one core, unequal clocks and other machines of a hypervisor make large differences."""
_FEW = 16
"""Up to this many figures alike, a figure's own influence on the median matters."""


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


@once
def tested(job: Job) -> dict[tuple[str, str, int], list[Tested]]:
    """Return the device tests, grouped by device and work: only these are alike."""
    all_of_them = (
        Tested(rank, rank.run.device, rank.run.device_test)
        for rank in job.ranks
        if rank.run is not None and isinstance(rank.run.device_test, DeviceTest)
    )
    return grouped(all_of_them, lambda t: (t.device, t.test.dtype, t.test.order))


def untested(job: Job, *, gpus: bool) -> Iterator[NotChecked]:
    """Yield the ranks without a device test, and why there is none."""
    yield from unread(
        job,
        (
            (rank, rank.run.device_test.reason)
            for rank in job.ranks
            if rank.run is not None and isinstance(rank.run.device_test, Missing) and (rank.run.device != "cpu") == gpus
        ),
    )


def slow_gpus(
    job: Job, figure: Callable[[DeviceTest], float | None], floor: Callable[[Floor], float]
) -> Iterator[SlowDevice]:
    """Yield the GPUs that are below their model's floor, or far below the others of their model."""
    for (device, _, _), alike in tested(job).items():
        if device != "cpu":
            known = floor_of(device)
            least = None if known is None else floor(known)
            shared = _shared(job)
            yield from _slow([t for t in alike if _gpu(t.rank) not in shared] if shared else alike, figure, least, SLOW)


def slow_cpus(job: Job, figure: Callable[[DeviceTest], float | None]) -> Iterator[SlowDevice]:
    """Yield the ranks on CPUs that are far below the others."""
    for (device, _, _), alike in tested(job).items():
        if device == "cpu":
            yield from _slow(alike, figure, None, SLOW_CPU)


@once
def _shared(job: Job) -> set[str]:
    """Return the GPUs that several ranks use: each gets a part of it."""
    taken = list(map(_gpu, job.ranks))
    return set() if len(set(taken)) == len(taken) else {gpu for gpu, users in Counter(taken).items() if users > 1}


def _gpu(rank: RankFacts) -> str:
    """Return the UUID of a rank's GPU, as torch reports it or as predicted; a name of its own if it is not known."""
    return (rank.run and rank.run.gpu) or rank.gpu or f"of {rank.process} {rank.placement.rank}"


def _slow(
    alike: list[Tested],
    figure: Callable[[DeviceTest], float | None],
    floor: float | None,
    share: float,
) -> Iterator[SlowDevice]:
    figures = [(t, value) for t in alike if (value := figure(t.test)) is not None]
    values = [value for _, value in figures]
    middle = median(values) if values else 0.0
    others = len(values) - 1
    bound = max(share * middle, floor or 0.0)
    for number, (one, value) in enumerate(figures):
        if others >= _FEW and value >= bound:
            continue
        usual = None if not others else middle
        if 0 < others < _FEW:
            usual = median(values[:number] + values[number + 1 :])
        below = floor is not None and value < floor
        odd = usual is not None and value < share * usual
        if below or odd:
            all_slow = below and not odd and usual is not None and floor is not None and usual < floor
            yield SlowDevice(one, value, usual, others, floor, all_slow)
