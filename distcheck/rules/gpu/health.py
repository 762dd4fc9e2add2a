"""Rules about GPUs that are broken, wait for a reset, or run slower than they could."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts import Job, Missing, RemappedRows
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.gpu.loads import (
    HARDWARE_SLOWDOWN,
    HARDWARE_THERMAL,
    POWER_BRAKE,
    SOFTWARE_THERMAL,
    held_by_brake,
    held_clocks,
    slowed_by_heat,
)
from distcheck.rules.gpu.readings import Reading, findings, judged, number, readings
from distcheck.rules.wording import grouped, majority

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACTIONS = {
    1: "reset this GPU",
    2: "reboot the node",
    3: "end what uses its peer-to-peer access, then reset this GPU",
    4: "drain the node and reset its GPUs",
    5: "recover the IMEX domain",
    6: "reset this GPU on the PCI bus",
    7: "reboot the whole system",
}
"""nvmlDeviceGpuRecoveryAction of nvml.h."""
_RECOVER_IMEX = 5
_NOTICEABLE = 0.98
"""A power limit below this share of the default is somebody's choice and no rounding."""
_RESET = Fix(
    "Drain the node, reset the GPU or reboot, and run NVIDIA's diagnostics; replace the GPU if it comes again.",
    ("sudo nvidia-smi --gpu-reset -i {gpu}", "sudo reboot", "dcgmi diag -r 3"),
)


def _broken(reading: Reading) -> bool:
    """Whether its memory has failed; a finding of its own says so, and that a reset is due goes without saying."""
    rows = reading.health.remapped_rows
    failure = isinstance(rows, RemappedRows) and rows.failure
    return failure or number(reading.health.ecc.uncorrected_volatile) > 0


@rule("gpu")
def gpu_ecc_uncorrected(job: Job) -> Iterator[Outcome]:
    """A GPU's memory has had errors that ECC could not correct since the GPU was last reset.

    Data was lost. The user would have seen ``CUDA error: uncorrectable ECC error encountered``, Xid 48, 94 or 95 in
    the kernel's log, or a job that died without a reason; the next one on this GPU is likely to.

    Found by NVML's volatile count of uncorrected errors, before and after the collectives. Errors before the last reset
    (the aggregate count) are not held against a GPU, nor are corrected ones. The node goes on the exclude list.

    Fix: drain the node, reset the GPU (``nvidia-smi --gpu-reset``) or reboot; have the GPU replaced if it comes again.

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

    yield from judged(job, say, _RESET, severity="error", confirmed=True)


@rule("gpu")
def gpu_row_remap_pending(job: Job) -> Iterator[Outcome]:
    """Bad rows of a GPU's memory wait to be replaced by spare ones, or there are no spare ones left.

    Rows that wait are replaced when the GPU is reset; until then the job works around them. When no spare row was
    left, the memory can no longer be mended, and the user will see ``uncorrectable ECC error encountered``.

    Found by nvmlDeviceGetRemappedRows, which NVML does not answer in MIG mode. Pending rows are a warning; a failed
    replacement is an error that puts the node on the exclude list.

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
        told = _broken(reading) or number(reading.health.recovery_action) > 0
        if isinstance(rows, Missing) or not rows.pending or told:
            return ""
        return "bad rows of memory are remapped at the next reset, which is due"

    yield from judged(
        job,
        failed,
        Fix(
            "Drain the node and have the GPU replaced; it can no longer mend its memory.",
            ("nvidia-smi -q -d ROW_REMAPPER",),
        ),
        severity="error",
        confirmed=True,
    )
    yield from findings(judged(job, pending, _RESET))


@rule("gpu")
def gpu_retired_pages(job: Job) -> Iterator[Outcome]:
    """Bad pages of a GPU's memory wait for a reboot to be taken out of use.

    GPUs before Ampere retire pages where later ones remap rows. Until then the bad page may be used, and the user
    would see ``uncorrectable ECC error encountered`` or Xid 63 and 64.

    Found by nvmlDeviceGetRetiredPagesPendingStatus; later GPUs do not answer it.

    Fix: drain the node and reboot it; have the GPU replaced when it has retired dozens of pages.

    See: https://docs.nvidia.com/deploy/dynamic-page-retirement/
    """

    def say(reading: Reading) -> str | Missing:
        pending = reading.health.retired_pages_pending
        if isinstance(pending, Missing):
            return pending
        return "bad pages of memory are retired at the next reboot, which is due" if pending else ""

    yield from judged(
        job, say, Fix("Drain the node and reboot it.", ("nvidia-smi -q -d PAGE_RETIREMENT", "sudo reboot"))
    )


@rule("gpu")
def gpu_needs_reset(job: Job) -> Iterator[Outcome]:
    """The driver says that a GPU must be reset, or its node rebooted, before it is used again.

    After many an Xid the GPU still answers NVML, and work on it fails: ``CUDA error: unspecified launch failure``,
    ``an illegal instruction was encountered``, or a hang in the first kernel.

    Found by the recovery action that drivers from branch 570 on name. Any action puts the node on the exclude list,
    but for the recovery of an IMEX domain, which concerns several nodes, and for actions that this version of
    distcheck does not know. A change of the ECC mode that waits for a reset is a remark.

    Fix: do what the driver asks: ``sudo nvidia-smi --gpu-reset -i 3``, or drain the node and ``sudo reboot``.

    See: https://docs.nvidia.com/deploy/xid-errors/
    """

    def action(reading: Reading, *, sure: bool) -> str | Missing:
        asked = reading.health.recovery_action
        if isinstance(asked, Missing):
            return asked
        known = asked in _ACTIONS and asked != _RECOVER_IMEX
        if not asked or known is not sure or _broken(reading):
            return ""
        return f"the driver asks to {_ACTIONS[asked]}" if asked in _ACTIONS else f"the driver asks for action {asked}"

    def ecc(reading: Reading) -> str:
        now, then = reading.health.ecc.enabled, reading.health.ecc.enabled_after_reset
        if isinstance(now, Missing) or isinstance(then, Missing) or now is then:
            return ""
        return f"ECC is {'on' if now else 'off'} and will be {'on' if then else 'off'} after a reset"

    yield from judged(job, lambda r: action(r, sure=True), _RESET, severity="error", confirmed=True)
    yield from findings(judged(job, lambda r: action(r, sure=False), _RESET, severity="error"))
    yield from findings(judged(job, ecc, _RESET, severity="info"))


@rule("gpu")
def gpu_thermal_throttle(job: Job) -> Iterator[Outcome]:
    """A GPU is slowed down because it is too hot.

    In a job of many ranks the slowest GPU sets the pace of all, so that one blocked fan or one dry cold plate is
    felt everywhere, as a slow all_reduce that no network test explains.

    Found by for how long NVML says that heat slowed the GPU while the collectives ran (more than 2 % of the time), and
    before them, when it has nothing to do yet, by its reasons for the present clocks (hardware slowdown, hardware and
    software thermal slowdown) and the temperature against the slowdown threshold. A warning: it may cool down. A few
    seconds of work do not heat a cold GPU up: that nothing is found says little of the next hour.

    Fix: look after fans, coolant and the air's way; drain the node if it goes on.

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
            words = "as hot as its slowdown threshold"
        heat = f", {celsius} C of {limit} C" if celsius and limit else ""
        return f"{words}{heat}" if words else slowed_by_heat(reading)

    yield from judged(
        job,
        say,
        Fix(
            "Look after the node's cooling; drain it if the GPU stays hot.",
            ("nvidia-smi -q -d TEMPERATURE,PERFORMANCE",),
        ),
    )


def _usual_limits(job: Job) -> dict[str, float]:
    """Return the power limit that the GPUs of a model have on most nodes, where most are alike."""
    models: dict[str, dict[float, list[str]]] = {}
    nodes = grouped(readings(job), lambda r: (r.node.key, str(r.gpu.name)))
    for (node, name), alike in nodes.items():
        highest = max(number(r.health.power_limit_watts) for r in alike)
        models.setdefault(name, {}).setdefault(highest, []).append(node)
    usual = ((name, majority(limits)) for name, limits in models.items())
    return {name: watts for name, watts in usual if watts is not None}


@rule("gpu")
def gpu_power_cap(job: Job) -> Iterator[Outcome]:
    """A GPU may draw less power than its model's default, or the system holds it back for want of power.

    It is then slower than its peers, and so is every job that waits for it. A limit is left behind by ``nvidia-smi
    -pl`` or set by the site; the power brake is pulled by the power supplies.

    Found by comparing the limit in force with the default and with the limit that most GPUs of the model have on
    other nodes, and by the power brake among NVML's reasons for the present clocks, before the collectives and while
    they run. A warning where GPUs of the job
    differ or there is one node only; where all GPUs on several nodes are capped alike, it is the site's choice and a
    remark.

    Fix: ``sudo nvidia-smi -i 3 -pl 700``; for the power brake look at the node's power supplies.
    """
    usual = _usual_limits(job)

    def capped(reading: Reading) -> str:
        limit, default = number(reading.health.power_limit_watts), number(reading.health.power_limit_default_watts)
        if 0 < limit < _NOTICEABLE * default:
            return f"its power is limited to {limit:g} W; the default is {default:g} W"
        others = usual.get(str(reading.gpu.name), 0)
        if 0 < limit < _NOTICEABLE * others:
            return f"its power is limited to {limit:g} W; most GPUs of its model have {others:g} W"
        return ""

    def braked(reading: Reading) -> str:
        reasons = int(number(reading.health.clocks.event_reasons))
        return "slowed by the power brake of the system" if reasons & POWER_BRAKE else held_by_brake(reading)

    everywhere = {capped(reading) for reading in readings(job)}
    sites = len(job.nodes) > 1 and len(everywhere) == 1
    yield from judged(
        job,
        capped,
        Fix(
            "Give the GPU its default limit again, unless the site wants it so.",
            ("nvidia-smi -q -d POWER", "sudo nvidia-smi -i {gpu} -pl WATTS"),
        ),
        severity="info" if sites else "warning",
    )
    yield from findings(
        judged(
            job,
            braked,
            Fix("Look at the node's power supplies and cables.", ("sudo ipmitool sdr type 'Power Supply'",)),
        )
    )


@rule("gpu")
def gpu_clocks_locked(job: Job) -> Iterator[Outcome]:
    """A GPU's application clocks are set below their default, or it works at a lower clock than the others.

    Such clocks are left behind by a benchmark or a test (``nvidia-smi -ac``, ``nvidia-smi -lgc``) and make the GPU
    slower than its peers.

    Found by comparing the application clocks with their default, and the highest clock under load with what most GPUs
    of the model reach, less than 0.9 of it. Where heat or the power brake is why, the rules about these say so.

    Fix: ``sudo nvidia-smi -i 3 -rac`` and ``sudo nvidia-smi -i 3 -rgc``.
    """

    def say(reading: Reading) -> str:
        clocks = reading.health.clocks
        now, usual = clocks.sm_application_MHz, clocks.sm_application_default_MHz
        if isinstance(now, Missing) or isinstance(usual, Missing) or not 0 < now < usual:
            return held_clocks(reading, readings(job))
        return f"application clocks of {now} MHz; the default is {usual} MHz"

    yield from judged(
        job,
        say,
        Fix("Reset the clocks.", ("sudo nvidia-smi -i {gpu} -rac", "sudo nvidia-smi -i {gpu} -rgc")),
    )
