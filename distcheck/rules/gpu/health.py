"""Rules about GPUs that are broken or need a reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
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
_RESET = Fix(
    "Drain the node, reset the GPU or reboot, and run NVIDIA's diagnostics; replace the GPU if it recurs.",
    ("sudo nvidia-smi --gpu-reset -i {gpu}", "sudo reboot", "dcgmi diag -r 3"),
)


@rule("gpu", scope="gpu")
def gpu_ecc_uncorrected(job: Job) -> Iterator[Outcome]:
    """A GPU's memory has had errors that ECC could not correct since its last reset.

    Data was lost. You would see ``CUDA error: uncorrectable ECC error encountered``, Xid 48, 94 or 95 in the
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
    memory can no longer be repaired, and you will see ``uncorrectable ECC error encountered``.

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

    GPUs before Ampere retire pages where later ones remap rows. Until the reboot the bad page may be used, and you
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
