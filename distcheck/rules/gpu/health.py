"""Rules about GPUs that are broken or need a reset."""

from __future__ import annotations

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.readings import Reading, each_gpu, memory_failed, number
from distcheck.rules.wording import listed

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
_REPLACE = Fix(
    "Drain the node and have the GPU replaced; it can no longer repair its memory.", ("nvidia-smi -q -d ROW_REMAPPER",)
)


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_ecc_uncorrected(_: Job, reading: Reading) -> Answer:
    """A GPU's memory has had errors that ECC could not correct since its last reset.

    Data was lost. You would see ``CUDA error: uncorrectable ECC error encountered``, Xid 48, 94 or 95 in the
    kernel log, or a job that died without a message. The next job on this GPU is likely to die as well.

    Found by NVML's volatile count of uncorrected errors, before and after the collectives; on AMD's GPUs by amdgpu's
    counts (``ue``) of all RAS blocks, among them umc, the memory, and xgmi_wafl, the links. Errors before the last
    reset (the aggregate count) and corrected errors do not count. The node goes on the exclude list.

    Fix: Drain the node, reset the GPU or reboot, and run NVIDIA's diagnostics; replace the GPU if it recurs.

        sudo nvidia-smi --gpu-reset -i {gpu}
        sudo reboot
        dcgmi diag -r 3

    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    before, load = reading.health.ecc.uncorrected_volatile, reading.gpu.load
    if isinstance(before, Missing):
        return before
    new = int(number(load.uncorrected_ecc)) if load is not None else 0
    of_these = f", {new} of them while the collectives ran" if new else ""
    errors, since = count(before + new, "uncorrected ECC error"), "since its last reset"
    if reading.health.amd is not None:
        since = f"in {listed(list(reading.health.amd.uncorrected))} since the driver was loaded"
    return f"{errors} {since}{of_these}; 0 expected" if before + new else None


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_row_remap_pending(_: Job, reading: Reading) -> Answer:
    """Bad rows of a GPU's memory wait to be remapped, or no spare row is left.

    Pending rows are remapped when the GPU is reset; until then the job works around them. When no spare row is left the
    memory can no longer be repaired, and you will see ``uncorrectable ECC error encountered``.

    Found by nvmlDeviceGetRemappedRows, which NVML does not answer in MIG mode. Pending rows are a warning; a failed
    remapping is an error that puts the node on the exclude list.

    Fix: pending: reset the GPU (``nvidia-smi --gpu-reset``) or reboot when the node is free. Failed: have it replaced.

    See: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
    """
    rows = reading.health.remapped_rows
    if isinstance(rows, Missing):
        return rows
    if rows.failure:
        remapped = f"{rows.uncorrected + rows.corrected} rows are remapped"
        return Fault(f"a bad row of memory could not be remapped: no spare row is left; {remapped}", _REPLACE)
    if not rows.pending or memory_failed(reading) or number(reading.health.recovery_action) > 0:
        return None
    return Fault("bad rows of memory wait for a reset to be remapped", _RESET, severity="warning")


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_retired_pages(_: Job, reading: Reading) -> Answer:
    """Bad pages of a GPU's memory wait for a reboot to be retired.

    GPUs before Ampere retire pages where later ones remap rows. Until the reboot the bad page may be used, and you
    would see ``uncorrectable ECC error encountered`` or Xid 63 and 64.

    Found by nvmlDeviceGetRetiredPagesPendingStatus, which later GPUs do not answer; on AMD's GPUs by the pages that
    ras/gpu_vram_bad_pages marks as pending.

    Fix: Drain the node and reboot it; have the GPU replaced when it has retired dozens of pages.

        nvidia-smi -q -d PAGE_RETIREMENT
        sudo reboot

    See: https://docs.nvidia.com/deploy/dynamic-page-retirement/
    """
    pending = reading.health.retired_pages_pending
    if isinstance(pending, Missing):
        return pending
    return "bad pages of memory wait for a reboot to be retired" if pending else None


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_needs_reset(_: Job, reading: Reading) -> Answer:
    """The driver requests a reset of a GPU, or a reboot of its node, before further use.

    After many Xids the GPU still answers NVML, but work on it fails: ``CUDA error: unspecified launch failure``, ``an
    illegal instruction was encountered``, or a hang in the first kernel.

    Found by the recovery action that drivers from branch 570 on report. Any action puts the node on the exclude list,
    except the recovery of an IMEX domain, which concerns several nodes, and actions that this version of distcheck does
    not know. A change of the ECC mode that waits for a reset is an info finding.

    Fix: Drain the node, then do what the driver requests: reset the GPU, or reboot; replace the GPU if it recurs.

        sudo nvidia-smi --gpu-reset -i {gpu}
        sudo reboot
        dcgmi diag -r 3

    See: https://docs.nvidia.com/deploy/xid-errors/
    """
    action, ecc = reading.health.recovery_action, reading.health.ecc
    if not isinstance(action, Missing) and action and not memory_failed(reading):
        step = f": {_ACTIONS[action]}" if action in _ACTIONS else f" recovery action {action}"
        return Fault(f"the driver requests{step}", confirmed=action in _ACTIONS and action != _RECOVER_IMEX)
    now, then = ecc.enabled, ecc.enabled_after_reset
    if isinstance(now, Missing) or isinstance(then, Missing) or now is then:
        return action if isinstance(action, Missing) else None
    words = f"ECC is {'on' if now else 'off'} and will be {'on' if then else 'off'} after a reset"
    return Fault(words, severity="info")
