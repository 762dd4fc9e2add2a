"""Rules about GPUs that are slowed down: by heat, by a power limit, or by the clocks that somebody set."""

from __future__ import annotations

from distcheck.facts.base import Missing
from distcheck.facts.gpu import HARDWARE_SLOWDOWN, HARDWARE_THERMAL, POWER_BRAKE, SOFTWARE_THERMAL, GpuLoad
from distcheck.facts.job import Job
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.readings import FEWEST_LOOKS, Reading, each_gpu, number, readings
from distcheck.rules.wording import grouped, majority, once

_POWER_LIMIT = 0x4
"""One of NVML's reasons for the current clocks."""
_NOTICEABLE_SHARE, _NOTICEABLE_SECONDS = 0.02, 0.1
"""Share of the watched time; less does not slow a job noticeably."""
_SHARE_OF_LOOKS = 0.1
_USUAL_CLOCK_SHARE = 0.9
_SLOW_LEVELS = {"low", "profile_min_sclk", "profile_min_mclk"}
"""amdgpu's performance levels that hold clocks at their lowest (docs.kernel.org/gpu/amdgpu/thermal.html)."""
_NOTICEABLE = 0.98
"""A power limit below this share of the default was set on purpose; above it the difference is rounding."""
_SUPPLIES = Fix("Check the node's power supplies and cables.", ("sudo ipmitool sdr type 'Power Supply'",))


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_thermal_throttle(job: Job, reading: Reading) -> Answer:
    """A GPU is slowed down because it is too hot.

    In a job of many ranks the slowest GPU sets the pace of all. One blocked fan or one dry cold plate slows every
    all_reduce, and no network test explains it.

    Found in two ways. While the collectives run: by how long NVML reports a thermal slowdown, more than 2 % of the
    time. Before them, when the GPU has nothing to do yet: by NVML's reasons for the current clocks (hardware slowdown,
    hardware and software thermal slowdown) and by the temperature against the slowdown threshold. Of AMD's GPUs the
    sensor nearest to its critical temperature counts, and from MI300 on what the firmware counts as PROCHOT, by which
    the board slows it down, or as heat of its socket, memory or voltage regulators, before and during the collectives.
    A warning: the GPU may cool down. A few seconds of work do not heat up a cold GPU, so silence says little about the
    next hour.

    Fix: Check the node's cooling: fans, coolant and airflow; drain the node if the GPU stays hot.

        nvidia-smi -q -d TEMPERATURE,PERFORMANCE

    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
    """
    health = reading.health
    reasons = int(number(health.clocks.event_reasons))
    celsius, limit = number(health.temperature_celsius), number(health.slowdown_celsius)
    by_hardware, by_software = _slowdowns(reading)
    if reasons & HARDWARE_THERMAL:
        words = by_hardware
    elif reasons & SOFTWARE_THERMAL:
        words = by_software
    elif reasons & HARDWARE_SLOWDOWN and not reasons & POWER_BRAKE:
        words = "hardware slowdown"
    elif 0 < limit <= celsius:
        words = "at or above its slowdown threshold"
    elif (least := job.asked.site(reading.node.name).threshold.gpu_celsius) is not None and least <= celsius:
        return f"{celsius:g} C; the site's policy allows less than {least} C"
    else:
        unknown = health.clocks.event_reasons if isinstance(health.clocks.event_reasons, Missing) else None
        return _slowed_by_heat(reading) or unknown
    return f"{words}, {celsius} C of {limit} C" if celsius and limit else words


def _slowdowns(reading: Reading) -> tuple[str, str]:
    """Return the words for a slowdown by the hardware's signal and by the driver or the firmware."""
    if reading.health.amd is not None:
        return "slowed down by PROCHOT", "slowed down by heat"
    return "hardware thermal slowdown", "software thermal slowdown"


def _slowed_by_heat(reading: Reading) -> str:
    """Return for how long a GPU was too hot, '' if it was not."""
    load, limit = reading.gpu.load, number(reading.health.slowdown_celsius)
    if load is None:
        return ""
    if reading.health.amd is not None and 0 < limit <= number(load.temperature_celsius):
        return f"up to {number(load.temperature_celsius):g} C of {limit:g} C while the collectives ran"
    by_hardware, by_software = _slowdowns(reading)
    for words, seconds, bits in (
        (by_hardware, load.hardware_thermal_seconds, HARDWARE_THERMAL),
        (by_software, load.software_thermal_seconds, SOFTWARE_THERMAL),
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


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_power_cap(job: Job, reading: Reading) -> Answer:
    """A GPU's power limit is below its default, or the power brake slows it down.

    It is then slower than its peers, and so is every job that waits for it. A low limit is left behind by ``nvidia-smi
    -pl`` or set by the site; the node's power supplies trigger the power brake.

    Found by comparing the limit in force with the default and with the limit that most GPUs of the model have on other
    nodes, and by the power brake among NVML's reasons for the current clocks, before and during the collectives. It is
    a warning where GPUs of the job differ or there is only one node. Where all GPUs on several nodes have the same cap,
    it is the site's choice and an info finding.

    Fix: ``sudo nvidia-smi -i 3 -pl 700``; for the power brake check the node's power supplies.
    """
    words, watts = _cap(job, reading)
    if words:
        restore = Fix(
            "Restore the GPU's usual limit, unless the site set this one on purpose.",
            ("nvidia-smi -q -d POWER", f"sudo nvidia-smi -i {{gpu}} -pl {watts:g}"),
        )
        return Fault(words, restore, severity="info" if len(job.nodes) > 1 and len(_caps(job)) == 1 else None)
    reasons = int(number(reading.health.clocks.event_reasons))
    words = "slowed by the system's power brake" if reasons & POWER_BRAKE else held_by_brake(reading)
    return Fault(words, _SUPPLIES) if words else None


def _cap(job: Job, reading: Reading) -> tuple[str, float]:
    """Return what is wrong with a GPU's power limit, '' if nothing is, and the limit to set instead."""
    health = reading.health
    limit, default = number(health.power_limit_watts), number(health.power_limit_default_watts)
    if 0 < limit < _NOTICEABLE * default:
        return f"its power is limited to {limit:g} W; the default is {default:g} W", default
    others = _usual_limits(job).get(reading.gpu.name, 0)
    if 0 < limit < _NOTICEABLE * others:
        return f"its power is limited to {limit:g} W; most GPUs of its model have {others:g} W", others
    return "", 0


@once
def _caps(job: Job) -> set[tuple[str, float]]:
    return {_cap(job, reading) for reading in readings(job)}


@once
def _usual_limits(job: Job) -> dict[str | Missing, float]:
    """Return by model the power limit in watts that its GPUs have on most nodes, if most agree."""
    highest: dict[tuple[str, str | Missing], float] = {}
    for reading in readings(job):
        place = reading.node.key, reading.gpu.name
        highest[place] = max(number(reading.health.power_limit_watts), highest.get(place, 0))
    models = grouped(highest.items(), lambda item: item[0][1])
    return {name: majority(grouped(nodes, lambda item: item[1])) or 0 for name, nodes in models.items()}


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_clocks_locked(job: Job, reading: Reading) -> Answer:
    """A GPU's application clocks are below their default, or it runs slower than the others.

    Low clocks are left behind by a benchmark or a test (``nvidia-smi -ac``, ``nvidia-smi -lgc``) and make the GPU
    slower than its peers.

    Found by comparing the application clocks with their default, and the highest clock under load with the clock that
    most GPUs of the model reach (less than 0.9 of it); on AMD's GPUs by the performance level, which ``rocm-smi
    --setperflevel low`` leaves behind. Where heat or the power brake is the cause, their own rules
    report it. A GPU that runs at its power limit most of the time is not compared: heavy work alone lowers its clock,
    that of an H200 from 1980 to 1470 MHz.

    Fix: Reset the clocks.

        sudo nvidia-smi -i {gpu} -rac
        sudo nvidia-smi -i {gpu} -rgc
    """
    clocks = reading.health.clocks
    now, default = clocks.sm_application_MHz, clocks.sm_application_default_MHz
    if not isinstance(now, Missing) and not isinstance(default, Missing) and 0 < now < default:
        return f"application clocks of {now} MHz; the default is {default} MHz"
    if reading.health.amd is not None and reading.health.amd.performance_level in _SLOW_LEVELS:
        return f"performance level {reading.health.amd.performance_level}; auto expected"
    load, others = reading.gpu.load, _usual_clocks(job).get(reading.gpu.name, 0)
    if load is None or load.busy < FEWEST_LOOKS or not 0 < number(load.sm_MHz) < _USUAL_CLOCK_SHARE * others:
        return None
    if load.event_reasons.get(_POWER_LIMIT, 0) > load.busy / 2:  # heavy work: an H200 then runs at 1470 of 1980 MHz
        return None
    if _slowed_by_heat(reading) or held_by_brake(reading):
        return None
    return f"at most {number(load.sm_MHz):g} MHz under load; others of its model reach {others:g} MHz"


@once
def _usual_clocks(job: Job) -> dict[str | Missing, float]:
    """Return by model the clock in MHz that its GPUs reach under load, if more than two were seen at work."""
    at_work = [(r.gpu.name, load) for r in readings(job) if (load := r.gpu.load) and load.busy >= FEWEST_LOOKS]
    models = grouped(at_work, lambda gpu: gpu[0])
    clocks = {name: sorted(number(load.sm_MHz) for _, load in gpus) for name, gpus in models.items()}
    return {name: each[len(each) // 2] for name, each in clocks.items() if len(each) > 2}
