"""What each rank's device reached by itself: a row for each rank in JSON, a row for each figure elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.device import DeviceTest
from distcheck.report.schema.document import Document
from distcheck.report.schema.figures import DeviceBurn, DeviceRow
from distcheck.report.schema.part import part_of
from distcheck.rules.wording import grouped

if TYPE_CHECKING:
    from distcheck.facts.job import Job


class Figures(NamedTuple):
    """One figure over all ranks with such a device."""

    device: str
    figure: str
    """What was measured, with its unit."""
    ranks: int
    lowest: float
    median: float
    highest: float
    lowest_rank: int | None
    slow: int | None
    """How many GPUs are below `SLOW` of the median; None on CPUs, which differ more."""


def device_rows(job: Job) -> Iterator[DeviceRow]:
    """Yield the device test of every rank that has one, in the order of ranks."""
    names = job.node_names
    for rank, _, node in job.placed:
        run = rank.run
        if run is None or not isinstance(run.device_test, DeviceTest):
            continue
        test = run.device_test
        burn = test.burn and part_of(DeviceBurn, test.burn)
        yield part_of(DeviceRow, test, rank=rank.placement.rank, node=names[node.key], device=run.device, burn=burn)


def figures(report: Document) -> list[Figures]:
    """Return the figures of all devices, by device, each over the ranks."""
    kinds = grouped(report.devices, lambda row: (row.device, row.dtype))
    return [made for (device, dtype), rows in kinds.items() for made in _figures(device, dtype, rows)]


def _figures(device: str, dtype: str, rows: list[DeviceRow]) -> Iterator[Figures]:
    from statistics import median  # imports fractions and random, which a report without figures does not need

    on_cpu = device == "cpu"
    unit, factor = ("GFLOPS", 1e3) if on_cpu else ("TFLOPS", 1)
    burns = [None if on_cpu else row.burn for row in rows]
    columns: tuple[tuple[str, Sequence[float | None]], ...] = (
        (f"{dtype} matrix speed, {unit}", [row.matmul_TFLOPS * factor for row in rows]),
        ("memory, GB/s", [row.memory_GBps for row in rows]),
        ("from host, GB/s", [row.h2d_GBps for row in rows]),
        ("to host, GB/s", [row.d2h_GBps for row in rows]),
        ("at the start of the burn, TFLOPS", [b.first_TFLOPS if b else None for b in burns]),
        ("at the end of the burn, TFLOPS", [b.last_TFLOPS if b else None for b in burns]),
    )
    from distcheck.expectation.devices import SLOW  # only needed for measurements

    for name, column in columns:
        known = [number for number in column if number is not None]
        if known:
            lowest, middle = min(known), median(known)
            slow = None if on_cpu else sum(number < SLOW * middle for number in known)
            rank = rows[column.index(lowest)].rank
            yield Figures(device, name, len(known), lowest, middle, max(known), rank, slow)
