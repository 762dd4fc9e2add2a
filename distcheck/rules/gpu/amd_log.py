"""A rule about the errors that AMD's driver reports in the kernel log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import DriverError
from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import SEVERITIES, Fault, Fix, Severity
from distcheck.rules.gpu.nodes import about_nodes, gpu_nodes, nodes_unread
from distcheck.rules.gpu.readings import Reading, each_gpu, memory_failed, readings
from distcheck.rules.wording import brief, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.node import NodeFacts

_RECENT_SECONDS = 2 * 3600
_MOST = 16
_MEANINGS: dict[str, tuple[str, Severity]] = {
    "uncorrectable": ("an uncorrectable hardware error", "error"),
    "reset failed": ("a reset that failed or lost the memory", "error"),
    "start": ("the driver could not start the GPU", "error"),
    "xgmi": ("an XGMI error", "warning"),
    "hang": ("the GPU did not finish its work", "warning"),
    "reset": ("the driver reset the GPU", "warning"),
}
_PROGRAM = Fix(
    "Look for the fault in the program first; drain the node and run AMD's validation suite (rvs) if it recurs.",
    ("sudo dmesg -T | grep -i amdgpu", "amd-smi bad-pages"),
)


@rule("gpu", scope=("node", "gpu"), owner="admin")
def gpu_amdgpu_error_recent(job: Job) -> Iterator[Outcome]:
    """AMD's driver reported an error of a GPU in the kernel log within the last 2 hours.

    An error where the hardware failed or the GPU is not usable (uncorrectable errors, a failed reset, a failed start),
    a warning where it may go on: a ring or queue that timed out, which a program may cause, and a reset after it. One
    reset in a hive resets all its GPUs.

    Found in /dev/kmsg, which most systems show only to root (kernel.dmesg_restrict) and containers do not show. Lines
    that give the all-clear, correctable errors and soft recoveries do not count. Where the counters show the same
    errors, gpu-ecc-uncorrected reports them and this is an info finding; so is the error of a GPU that is not listed.
    An error never puts a node on the exclude list, because the log does not show what was done since.

    Fix: Drain the node, reset the GPU or reboot, unless done since; have the GPU replaced if it recurs.

        sudo dmesg -T | grep -i amdgpu
        amd-smi bad-pages
        sudo reboot

    See: https://docs.kernel.org/gpu/amdgpu/ras.html
    """
    nodes = [node for node in gpu_nodes(job) if node.accelerator == "amd"]
    unread = ((node, node.driver_errors.reason) for node in nodes if isinstance(node.driver_errors, Missing))
    yield from nodes_unread(job, unread, required=False)
    yield from (outcome for outcome in each_gpu(job, _worst) if isinstance(outcome, Fault))
    known = {(reading.node.key, reading.gpu.pci) for reading in readings(job)}
    for node in nodes:
        strange = [error for error in _recent(node) if (node.key, error.pci) not in known]
        if strange:
            words = [f"{error.pci or 'a GPU'}: {_text(error)}" for error in strange[-_MOST:]]
            severity: Severity = "info" if all(error.pci for error in strange) else "warning"
            fault = Fault(f"errors of GPUs that are not listed: {listed(words, most=2)}", _PROGRAM, severity=severity)
            yield about_nodes(job, [node], fault)


def _recent(node: NodeFacts) -> list[DriverError]:
    errors = node.driver_errors if isinstance(node.driver_errors, tuple) else ()
    return [error for error in errors if (error.seconds_ago or 0) <= _RECENT_SECONDS]


def _worst(reading: Reading) -> Fault | None:
    """Return the decisive error of a GPU, and what else its driver reported."""
    found = [error for error in _recent(reading.node) if error.pci == reading.gpu.pci]
    if not found:
        return None
    first, *rest = sorted(found, key=lambda error: SEVERITIES.index(_MEANINGS[error.kind][1]))
    also = f"; also {listed([_MEANINGS[error.kind][0] for error in rest], most=2)}" if rest else ""
    severity = "info" if memory_failed(reading) else _MEANINGS[first.kind][1]
    fix = None if _MEANINGS[first.kind][1] == "error" else _PROGRAM
    return Fault(f"{_text(first)}{also}", fix, {}, severity, "gpu", confirmed=False)


def fatal_text(error: DriverError) -> str:
    """Return what an error says after which a GPU does not go on by itself; empty if it is none."""
    meaning, severity = _MEANINGS[error.kind]
    return f"{meaning}: {brief(error.text, 60)}" if severity == "error" else ""


def _text(error: DriverError) -> str:
    ago = error.seconds_ago
    when = "at an unknown time" if ago is None else f"{round(ago / 60)} min ago" if ago >= 30 else "just now"
    return f"{_MEANINGS[error.kind][0]} {when}: {brief(error.text, 40)}"
