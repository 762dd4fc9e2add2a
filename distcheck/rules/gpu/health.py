"""Rules about GPUs that are broken, need a reset, or are slowed down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.gpu.loads import (
    HARDWARE_SLOWDOWN,
    HARDWARE_THERMAL,
    POWER_BRAKE,
    SOFTWARE_THERMAL,
    held,
    held_by_brake,
    held_clocks,
    slowed_by_heat,
    usual_clocks,
    usual_power_limits,
)
from distcheck.rules.gpu.readings import Reading, findings, judged, memory_failed, number, readings

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACTIONS = {
    1: "reset this GPU",
    2: "reboot the node",
    3: "end the processes that use its peer-to-peer access, then reset this GPU",
    4: "drain the node and reset its GPUs",
    5: "recover the IMEX domain",
    6: "reset this GPU on the PCI bus",
    7: "reboot the whole system",
}
"""nvmlDeviceGpuRecoveryAction of nvml.h."""
_RECOVER_IMEX = 5
_NOTICEABLE = 0.98
"""A power limit below this share of the default was set on purpose; above it the difference is rounding."""
_RESET = Fix(
    "Drain the node, reset the GPU or reboot, and run NVIDIA's diagnostics; replace the GPU if it recurs.",
    ("sudo nvidia-smi --gpu-reset -i {gpu}", "sudo reboot", "dcgmi diag -r 3"),
)


@rule("gpu", scope="gpu")
def gpu_ecc_uncorrected(job: Job) -> Iterator[Outcome]:
    """A GPU's memory has had errors that ECC could not correct since its last reset.

    Data was lost. The user would have seen ``CUDA error: uncorrectable ECC error encountered``, Xid 48, 94 or 95 in the
    kernel log, or a job that died without a message. The next job on this GPU is likely to die as well.

    Found by NVML's volatile count of uncorrected errors, before and after the collectives. Errors before the last reset
    (the aggregate count) and corrected errors do not count. The node goes on the exclude list.

    Fix: drain the node, reset the GPU (``nvidia-smi --gpu-reset``) or reboot; have the GPU replaced if it recurs.

    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """

    def say(reading: Reading) -> str | Missing:
        before = reading.health.ecc.uncorrected_volatile
        if isinstance(before, Missing):
            return before
        new = int(number(reading.gpu.load.uncorrected_ecc)) if reading.gpu.load is not None else 0
        count, of_these = before + new, f", {new} of them while the collectives ran" if new else ""
        errors = "error" if count == 1 else "errors"
        return f"{count} uncorrected ECC {errors} since its last reset{of_these}; 0 expected" if count else ""

    counted = [
        r
        for r in readings(job)
        if r.health.ecc.uncorrected_volatile or (r.gpu.load is not None and r.gpu.load.uncorrected_ecc)
    ]
    yield from judged(job, say, _RESET, among=counted, severity="error", confirmed=True)


@rule("gpu", scope="gpu")
def gpu_row_remap_pending(job: Job) -> Iterator[Outcome]:
    """Bad rows of a GPU's memory wait to be remapped, or no spare row is left.

    Pending rows are remapped when the GPU is reset; until then the job works around them. When no spare row is left the
    memory can no longer be repaired, and the user will see ``uncorrectable ECC error encountered``.

    Found by nvmlDeviceGetRemappedRows, which NVML does not answer in MIG mode. Pending rows are a warning; a failed
    remapping is an error that puts the node on the exclude list.

    Fix: pending: reset the GPU (``nvidia-smi --gpu-reset``) or reboot when the node is free. Failed: have it replaced.

    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """

    def failed(reading: Reading) -> str | Missing:
        rows = reading.health.remapped_rows
        if isinstance(rows, Missing):
            return rows
        remapped = f"{rows.uncorrected + rows.corrected} rows are remapped"
        return f"a bad row of memory could not be remapped: no spare row is left; {remapped}" if rows.failure else ""

    def pending(reading: Reading) -> str:
        rows = reading.health.remapped_rows
        reported = memory_failed(reading) or number(reading.health.recovery_action) > 0
        if isinstance(rows, Missing) or not rows.pending or reported:
            return ""
        return "bad rows of memory wait for a reset to be remapped"

    odd = [
        r for r in readings(job) if isinstance(rows := r.health.remapped_rows, Missing) or rows.failure or rows.pending
    ]
    yield from judged(
        job,
        failed,
        Fix(
            "Drain the node and have the GPU replaced; it can no longer repair its memory.",
            ("nvidia-smi -q -d ROW_REMAPPER",),
        ),
        among=odd,
        severity="error",
        confirmed=True,
    )
    yield from findings(judged(job, pending, _RESET, among=odd))


@rule("gpu", severity="warning", scope="gpu")
def gpu_retired_pages(job: Job) -> Iterator[Outcome]:
    """Bad pages of a GPU's memory wait for a reboot to be retired.

    GPUs before Ampere retire pages where later ones remap rows. Until the reboot the bad page may be used, and the user
    would see ``uncorrectable ECC error encountered`` or Xid 63 and 64.

    Found by nvmlDeviceGetRetiredPagesPendingStatus; later GPUs do not answer it.

    Fix: drain the node and reboot it; have the GPU replaced when it has retired dozens of pages.

    See: https://docs.nvidia.com/deploy/dynamic-page-retirement/
    """

    def say(reading: Reading) -> str | Missing:
        pending = reading.health.retired_pages_pending
        if isinstance(pending, Missing):
            return pending
        return "bad pages of memory wait for a reboot to be retired" if pending else ""

    yield from judged(
        job,
        say,
        Fix("Drain the node and reboot it.", ("nvidia-smi -q -d PAGE_RETIREMENT", "sudo reboot")),
        among=[r for r in readings(job) if r.health.retired_pages_pending],
    )


@rule("gpu", scope="gpu")
def gpu_needs_reset(job: Job) -> Iterator[Outcome]:
    """The driver requests a reset of a GPU, or a reboot of its node, before further use.

    After many Xids the GPU still answers NVML, but work on it fails: ``CUDA error: unspecified launch failure``, ``an
    illegal instruction was encountered``, or a hang in the first kernel.

    Found by the recovery action that drivers from branch 570 on report. Any action puts the node on the exclude list,
    except the recovery of an IMEX domain, which concerns several nodes, and actions that this version of distcheck does
    not know. A change of the ECC mode that waits for a reset is an info finding.

    Fix: do what the driver requests: ``sudo nvidia-smi --gpu-reset -i 3``, or drain the node and ``sudo reboot``.

    See: https://docs.nvidia.com/deploy/xid-errors/
    """

    def requested(reading: Reading, *, confirmed: bool) -> str | Missing:
        action = reading.health.recovery_action
        if isinstance(action, Missing):
            return action
        known = action in _ACTIONS and action != _RECOVER_IMEX
        if not action or known is not confirmed or memory_failed(reading):
            return ""
        step = _ACTIONS.get(action)
        return f"the driver requests: {step}" if step else f"the driver requests recovery action {action}"

    def ecc(reading: Reading) -> str:
        now, then = reading.health.ecc.enabled, reading.health.ecc.enabled_after_reset
        if isinstance(now, Missing) or isinstance(then, Missing) or now is then:
            return ""
        return f"ECC is {'on' if now else 'off'} and will be {'on' if then else 'off'} after a reset"

    due = [r for r in readings(job) if r.health.recovery_action]
    yield from judged(job, lambda r: requested(r, confirmed=True), _RESET, among=due, severity="error", confirmed=True)
    yield from findings(judged(job, lambda r: requested(r, confirmed=False), _RESET, among=due, severity="error"))
    changed = [r for r in readings(job) if r.health.ecc.enabled is not r.health.ecc.enabled_after_reset]
    yield from findings(judged(job, ecc, _RESET, among=changed, severity="info"))


@rule("gpu", severity="warning", scope="gpu")
def gpu_thermal_throttle(job: Job) -> Iterator[Outcome]:
    """A GPU is slowed down because it is too hot.

    In a job of many ranks the slowest GPU sets the pace of all. One blocked fan or one dry cold plate slows every
    all_reduce, and no network test explains it.

    Found in two ways. While the collectives run: by how long NVML reports a thermal slowdown, more than 2 % of the
    time. Before them, when the GPU has nothing to do yet: by NVML's reasons for the current clocks (hardware slowdown,
    hardware and software thermal slowdown) and by the temperature against the slowdown threshold. A warning: the GPU
    may cool down. A few seconds of work do not heat up a cold GPU, so silence says little about the next hour.

    Fix: check fans, coolant and airflow; drain the node if it goes on.

    See: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
    """

    def say(reading: Reading) -> str:
        health = reading.health
        reasons = int(number(health.clocks.event_reasons))
        celsius, limit = number(health.temperature_celsius), number(health.slowdown_celsius)
        words = ""
        if reasons & HARDWARE_THERMAL:
            words = "hardware thermal slowdown"
        elif reasons & SOFTWARE_THERMAL:
            words = "software thermal slowdown"
        elif reasons & HARDWARE_SLOWDOWN and not reasons & POWER_BRAKE:
            words = "hardware slowdown"
        elif limit > 0 and celsius >= limit:
            words = "at or above its slowdown threshold"
        heat = f", {celsius} C of {limit} C" if celsius and limit else ""
        return f"{words}{heat}" if words else slowed_by_heat(reading)

    yield from judged(
        job,
        say,
        Fix(
            "Check the node's cooling; drain the node if the GPU stays hot.",
            ("nvidia-smi -q -d TEMPERATURE,PERFORMANCE",),
        ),
        among=held(job),
    )


@rule("gpu", severity="warning", scope="gpu")
def gpu_power_cap(job: Job) -> Iterator[Outcome]:
    """A GPU's power limit is below its default, or the power brake slows it down.

    It is then slower than its peers, and so is every job that waits for it. A low limit is left behind by ``nvidia-smi
    -pl`` or set by the site; the node's power supplies trigger the power brake.

    Found by comparing the limit in force with the default and with the limit that most GPUs of the model have on other
    nodes, and by the power brake among NVML's reasons for the current clocks, before and during the collectives. It is
    a warning where GPUs of the job differ or there is only one node. Where all GPUs on several nodes have the same cap,
    it is the site's choice and an info finding.

    Fix: ``sudo nvidia-smi -i 3 -pl 700``; for the power brake check the node's power supplies.
    """
    usual = usual_power_limits(job)

    def words(name: str, limit: float, default: float) -> str:
        if 0 < limit < _NOTICEABLE * default:
            return f"its power is limited to {limit:g} W; the default is {default:g} W"
        others = usual.get(name, 0)
        if 0 < limit < _NOTICEABLE * others:
            return f"its power is limited to {limit:g} W; most GPUs of its model have {others:g} W"
        return ""

    def braked(reading: Reading) -> str:
        reasons = int(number(reading.health.clocks.event_reasons))
        return "slowed by the system's power brake" if reasons & POWER_BRAKE else held_by_brake(reading)

    caps = {
        (name, limit, default): words(str(name), number(limit), number(default))
        for name, limit, default in {_limits(reading) for reading in readings(job)}
    }
    low = [r for r in readings(job) if caps[_limits(r)]] if any(caps.values()) else []
    sites = len(job.nodes) > 1 and len(set(caps.values())) == 1
    yield from judged(
        job,
        lambda r: caps[_limits(r)],
        Fix(
            "Restore the GPU's default limit, unless the site set this one on purpose.",
            ("nvidia-smi -q -d POWER", "sudo nvidia-smi -i {gpu} -pl WATTS"),
        ),
        among=low,
        severity="info" if sites else "warning",
    )
    yield from findings(
        judged(
            job,
            braked,
            Fix("Check the node's power supplies and cables.", ("sudo ipmitool sdr type 'Power Supply'",)),
            among=held(job),
        )
    )


def _limits(reading: Reading) -> tuple[str | Missing, float | Missing, float | Missing]:
    """Return a GPU's model, its power limit and the default limit, in watts."""
    health = reading.health
    return reading.gpu.name, health.power_limit_watts, health.power_limit_default_watts


@rule("gpu", severity="warning", scope="gpu")
def gpu_clocks_locked(job: Job) -> Iterator[Outcome]:
    """A GPU's application clocks are below their default, or it runs slower than the others.

    Low clocks are left behind by a benchmark or a test (``nvidia-smi -ac``, ``nvidia-smi -lgc``) and make the GPU
    slower than its peers.

    Found by comparing the application clocks with their default, and the highest clock under load with the clock that
    most GPUs of the model reach (less than 0.9 of it). Where heat or the power brake is the cause, their own rules
    report it.

    Fix: ``sudo nvidia-smi -i 3 -rac`` and ``sudo nvidia-smi -i 3 -rgc``.
    """

    def say(reading: Reading) -> str:
        clocks = reading.health.clocks
        now, usual = clocks.sm_application_MHz, clocks.sm_application_default_MHz
        if isinstance(now, Missing) or isinstance(usual, Missing) or not 0 < now < usual:
            return held_clocks(reading, usual_clocks(job))
        return f"application clocks of {now} MHz; the default is {usual} MHz"

    yield from judged(
        job,
        say,
        Fix("Reset the clocks.", ("sudo nvidia-smi -i {gpu} -rac", "sudo nvidia-smi -i {gpu} -rgc")),
        among=[
            r
            for r in readings(job)
            if r.gpu.load is not None or (c := r.health.clocks).sm_application_MHz != c.sm_application_default_MHz
        ],
    )
