"""What GPUs showed during the collectives, as text for the rules; '' if nothing is wrong."""

from __future__ import annotations

from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuLoad
from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.rules.gpu.readings import Reading, number, on_grace, readings
from distcheck.rules.wording import grouped, once

POWER_LIMIT = 0x4
HARDWARE_SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
"""NVML's reasons for the current clocks."""
_NOTICEABLE_SHARE, _NOTICEABLE_SECONDS = 0.02, 0.1
"""Share of the watched time; less does not slow a job noticeably."""
_SHARE_OF_LOOKS = 0.1
_FEWEST_LOOKS = 4
"""A GPU seen at work less often is not judged."""
_REPLAYS_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""Per minute, by generation: a bit error rate of 1e-12, which NVIDIA's DCGM still accepts."""
_CHECKSUM_ERRORS_PER_SECOND = 100.0
"""DCGM's limit for checksum errors on NVLinks; a single replay or recovery already counts."""
_USUAL_CLOCK_SHARE = 0.9
_RESENT = frozenset({"replay", "recovery", "failed recovery"})


def slowed_by_heat(reading: Reading) -> str:
    """Return for how long a GPU was too hot, '' if it was not."""
    load = reading.gpu.load
    if load is None:
        return ""
    for words, seconds, bits in (
        ("hardware thermal slowdown", load.hardware_thermal_seconds, HARDWARE_THERMAL),
        ("software thermal slowdown", load.software_thermal_seconds, SOFTWARE_THERMAL),
    ):
        if share := _slowed(load, seconds, bits):
            heat = number(load.temperature_celsius)
            return f"{words} for {share} of the collectives' run{f', up to {heat:g} C' if heat else ''}"
    return ""


def held_by_brake(reading: Reading) -> str:
    """Return for how long the power brake slowed a GPU, '' if it did not."""
    load = reading.gpu.load
    share = _slowed(load, load.power_brake_seconds, POWER_BRAKE) if load is not None else ""
    return f"slowed by the system's power brake for {share} of the collectives' run" if share else ""


def _slowed(load: GpuLoad, seconds: float | Missing, bit: int) -> str:
    """Return for which part of the run a GPU was slowed, by NVML's timer, else by samples."""
    if not isinstance(seconds, Missing):
        enough = seconds >= max(_NOTICEABLE_SECONDS, _NOTICEABLE_SHARE * load.seconds)
        return f"{seconds:.1f} of {load.seconds:.1f} s" if enough else ""
    seen = load.event_reasons.get(bit, 0)
    return f"{seen / load.busy:.0%}" if load.busy and seen >= 2 and seen >= _SHARE_OF_LOOKS * load.busy else ""


def trained_low(reading: Reading) -> str:
    """Return that a busy GPU's PCIe link ran at a lower generation than possible, else ''."""
    load, most = reading.gpu.load, reading.health.pcie.max_generation
    if load is None or load.busy < _FEWEST_LOOKS or on_grace(reading):
        return ""
    seen = load.pcie_generation
    if isinstance(seen, Missing) or isinstance(most, Missing) or not 0 < seen < most:
        return ""
    return f"PCIe generation {seen} under load; {most} is possible"


def replayed(reading: Reading) -> str:
    """Return that a GPU resent more packets over PCIe than a good link in a minute, else ''."""
    load, pcie = reading.gpu.load, reading.health.pcie
    if load is None or isinstance(load.replays, Missing):
        return ""
    lanes = number(pcie.width) or 16
    usual = _REPLAYS_PER_LANE.get(int(number(pcie.max_generation)), max(_REPLAYS_PER_LANE.values())) * lanes
    if load.replays <= usual * max(1.0, load.seconds / 60):
        return ""
    return f"PCIe resent {count(load.replays, 'packet')} in {load.seconds:.1f} s of collectives"


def failing_link(reading: Reading) -> str:
    """Return the NVLink whose errors grew most, '' if none did."""
    load = reading.gpu.load
    if load is None:
        return ""
    grown = [
        (row.counter in _RESENT, count, link, row.counter)
        for row in load.nvlink_errors
        for link, count in enumerate(row.by_link)
        if count and (row.counter in _RESENT or count >= _CHECKSUM_ERRORS_PER_SECOND * load.seconds)
    ]
    if not grown:
        return ""
    _, count, link, counter = max(grown)
    links = len({link for _, _, link, _ in grown})
    more = f", and on {links - 1} more" if links > 1 else ""
    return f"{count} {counter} errors on NVLink {link}{more} in {load.seconds:.1f} s of collectives"


@once
def _usual_clocks(job: Job) -> dict[str | Missing, float]:
    """Return by model the clock in MHz that its GPUs reach under load, if more than two were seen at work."""
    at_work = [(r.gpu.name, load) for r in readings(job) if (load := r.gpu.load) and load.busy >= _FEWEST_LOOKS]
    models = grouped(at_work, lambda gpu: gpu[0])
    clocks = {name: sorted(number(load.sm_MHz) for _, load in gpus) for name, gpus in models.items()}
    return {name: each[len(each) // 2] for name, each in clocks.items() if len(each) > 2}


def held_clocks(job: Job, reading: Reading) -> str:
    """Return that a busy GPU clocked below its peers without heat, power limit or power brake, else ''."""
    load, others = reading.gpu.load, _usual_clocks(job).get(reading.gpu.name, 0)
    if load is None or load.busy < _FEWEST_LOOKS or not 0 < number(load.sm_MHz) < _USUAL_CLOCK_SHARE * others:
        return ""
    if load.event_reasons.get(POWER_LIMIT, 0) > load.busy / 2:  # heavy work: an H200 then runs at 1470 of 1980 MHz
        return ""
    if slowed_by_heat(reading) or held_by_brake(reading):
        return ""
    return f"at most {number(load.sm_MHz):g} MHz under load; others of its model reach {others:g} MHz"
