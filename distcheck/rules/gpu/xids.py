"""A rule about Xids, the errors that NVIDIA's driver reports in the kernel log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import RemappedRows, Xid
from distcheck.facts.job import Job
from distcheck.facts.ranges import fold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import SEVERITIES, Fault, Fix, Severity
from distcheck.rules.gpu.nodes import about_nodes, gpu_nodes, nodes_unread, seen
from distcheck.rules.gpu.readings import Reading, each_gpu, number, readings
from distcheck.rules.wording import grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.node import NodeFacts

_RECENT_SECONDS = 2 * 3600
_MOST = 16
_FELL_OFF = 79
_Step = Literal["reset", "reboot", "watch", "links", "power", "application", "ask"]


class _Meaning(NamedTuple):
    words: str
    severity: Severity = "info"
    step: _Step = "application"


_MEANINGS: dict[int, _Meaning] = {
    46: _Meaning("the GPU stopped processing", "warning", "reset"),
    48: _Meaning("an uncorrectable memory error", "error", "reset"),
    54: _Meaning("auxiliary power is not connected", "error", "power"),
    61: _Meaning("a microcontroller of the GPU stopped", "warning", "reset"),
    62: _Meaning("a microcontroller of the GPU halted", "error", "reset"),
    63: _Meaning("a row or page of memory needs replacement", "warning", "watch"),
    64: _Meaning("a row or page of memory could not be replaced", "error", "reset"),
    74: _Meaning("an NVLink error", "warning", "links"),
    79: _Meaning("the GPU has fallen off the bus", "error", "reboot"),
    92: _Meaning("many correctable memory errors", "warning", "watch"),
    94: _Meaning("a memory error that hit one application", "warning", "watch"),
    95: _Meaning("a memory error that could not be contained", "error", "reset"),
    109: _Meaning("a context switch timed out", "warning", "reset"),
    110: _Meaning("a security fault", "warning", "reset"),
    119: _Meaning("the GPU's system processor (GSP) did not answer", "error", "reset"),
    120: _Meaning("the GPU's system processor (GSP) failed", "error", "reset"),
    121: _Meaning("an error of the link between CPU and GPU (C2C)", "warning", "watch"),
    136: _Meaning("a link could not be trained", "warning", "links"),
    137: _Meaning("a refused NVLink access", "warning", "links"),
    140: _Meaning("memory errors that ECC could not recover", "error", "reset"),
    143: _Meaning("the GPU could not be initialised", "error", "reset"),
    155: _Meaning("an NVLink error", "warning", "links"),
    156: _Meaning("a part of the GPU was retired", "warning", "reset"),
    157: _Meaning("a part of the GPU could not be retired", "warning", "watch"),
    158: _Meaning("a fatal GPU timeout", "error", "reset"),
    167: _Meaning("a fatal PCIe timeout", "error", "reboot"),
    171: _Meaning("an uncorrectable memory error", "warning", "reset"),
    172: _Meaning("an uncorrectable error of an on-chip memory", "warning", "reset"),
    **{n: _Meaning("an NVLink error", "warning", "links") for n in range(144, 151)},
    # Those below are caused by applications, or follow from another Xid.
    8: _Meaning("the GPU stopped processing"),
    11: _Meaning("a wrong command stream"),
    13: _Meaning("a fault in a CUDA kernel, such as an index out of range"),
    25: _Meaning("a wrong command stream"),
    31: _Meaning("an access to an invalid memory address"),
    32: _Meaning("a wrong command stream"),
    43: _Meaning("an application's fault stopped its work"),
    45: _Meaning("an application's work was removed from the GPU"),
    68: _Meaning("a fault of the video decoder"),
    69: _Meaning("a wrong command"),
    80: _Meaning("an incomplete command stream"),
}
_UNKNOWN = _Meaning("", step="ask")
_STEPS: dict[_Step, Fix] = {
    "reset": Fix(
        "Drain the node and reset the GPU or reboot, unless done since; run the diagnostics.",
        ("nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}", "sudo nvidia-smi --gpu-reset -i {gpu}", "dcgmi diag -r 3"),
    ),
    "reboot": Fix(
        "Drain the node and reboot it; power-cycle it if the GPU does not come back.",
        ("nvidia-smi -q -i {gpu}", "sudo reboot"),
    ),
    "watch": Fix(
        "No immediate action; reset the GPU when the node is free, and have it replaced if this continues.",
        ("nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu}", "dcgmi diag -r 3"),
    ),
    "links": Fix(
        "Check the links; reset the GPU if one is down, and drain the node if it recurs.",
        ("nvidia-smi nvlink -s -i {gpu}", "nvidia-smi nvlink -e -i {gpu}"),
    ),
    "power": Fix("Power the node off and check the GPU's power cables.", ("sudo poweroff",)),
    "application": Fix(
        "Look for the fault in the application; the GPU is rarely at fault, even if only one of many reports it.",
        ("compute-sanitizer python train.py",),
    ),
    "ask": Fix("Look it up in NVIDIA's Xid catalogue.", ("sudo dmesg | grep 'NVRM: Xid'", "nvidia-smi -q -i {gpu}")),
}


@rule("gpu", scope=("node", "gpu"), owner="admin")
def gpu_xid_recent(job: Job) -> Iterator[Outcome]:
    """The driver reported a GPU error (an Xid) in the kernel log within the last 2 hours.

    The Xid number decides the severity: an error where the GPU needs a reset or a reboot (48, 62, 64, 79, 95, 119, 120
    and others), a warning where it may go on (63, 74, 92, 94, 109, 121), and an info finding where applications are the
    cause or see it first (13, 31, 43, 45), where the number is unknown, and where the GPU is not in NVML's list.

    Found in /dev/kmsg, which most systems show only to root (kernel.dmesg_restrict) and containers do not show. The log
    does not show whether the GPU was reset since, so the finding gives the time of the Xid. If the driver reports
    recovery actions and requests none, an error becomes a warning. If it requests one, or memory counters show the same
    fault, that is the finding and the Xid is an info finding. A lost GPU is reported by gpu-fell-off-bus only. An error
    never puts a node on the exclude list.

    Fix: the finding names the fix for the Xid: reset the GPU, reboot the node, check the links, or check the
    application.

    See: https://docs.nvidia.com/deploy/xid-errors/
    """
    unread = ((node, node.xids.reason) for node in gpu_nodes(job) if isinstance(node.xids, Missing))
    yield from nodes_unread(job, unread, required=False)
    # A node whose GPUs NVML does not report has its Xids in the log, so nothing of it remains unchecked.
    yield from (outcome for outcome in each_gpu(job, _worst) if isinstance(outcome, Fault))
    yield from _elsewhere(job)


def fatal(xid: Xid) -> str:
    """Return what a fatal Xid means, such as Xid 79: the GPU has fallen off the bus; empty if it is none."""
    meaning = _MEANINGS.get(xid.number, _UNKNOWN)
    return f"Xid {xid.number}: {meaning.words}" if meaning.severity == "error" else ""


def _recent(node: NodeFacts) -> list[Xid]:
    return [x for x in node.xids if (x.seconds_ago or 0) <= _RECENT_SECONDS] if isinstance(node.xids, tuple) else []


def _worst(reading: Reading) -> Fault | None:
    """Return the decisive Xid of a GPU, and text that includes its other Xids."""
    xids = [x for x in _recent(reading.node) if x.pci == reading.gpu.pci]
    if not xids:
        return None
    first, *rest = sorted(xids, key=lambda x: (SEVERITIES.index(_severity(reading, x)), x.seconds_ago or 0))
    also = f"; also Xid {fold({x.number for x in rest})}" if rest else ""
    fix = _STEPS[_MEANINGS.get(first.number, _UNKNOWN).step]
    return Fault(f"{_text(first)}{also}", fix, {}, _severity(reading, first), "gpu", confirmed=False)


def _severity(reading: Reading, xid: Xid) -> Severity:
    severity = _MEANINGS.get(xid.number, _UNKNOWN).severity
    action, rows = reading.health.recovery_action, reading.health.remapped_rows
    ecc = number(reading.health.ecc.uncorrected_volatile) > 0
    if number(action) or ecc or (isinstance(rows, RemappedRows) and (rows.pending or rows.failure)):
        return "info"
    past = xid.seconds_ago is None or isinstance(action, int)  # the driver requests no recovery
    return "warning" if severity == "error" and past else severity


def _text(xid: Xid) -> str:
    words = _MEANINGS.get(xid.number, _UNKNOWN).words
    if xid.seconds_ago is None:
        when = "at an unknown time"
    else:
        minutes = round(xid.seconds_ago / 60)
        when = f"{minutes} min ago" if minutes else "less than a minute ago"
    return f"Xid {xid.number} {when}{f': {words}' if words else ''}"


def _elsewhere(job: Job) -> Iterator[Fault]:
    """Yield Xids of GPUs that NVML does not list: GPUs outside the container, or gone ones."""
    reporting = [node for node in gpu_nodes(job) if _recent(node)]
    if not reporting:
        return
    lost = {(node.key, gpu.pci) for node, devices in seen(job) for gpu in devices if gpu.lost}
    unnamed = {key for key, pci in lost if not isinstance(pci, str)}
    reported = lost | {(reading.node.key, reading.gpu.pci) for reading in readings(job)}
    for node in reporting:
        strange = [x for x in _recent(node) if (node.key, x.pci) not in reported]
        if node.key in unnamed:
            strange = [x for x in strange if x.number != _FELL_OFF]  # of the GPU that is lost
        if strange:
            words = [f"{pci}: {_text(xids[-1])}" for pci, xids in grouped(strange, lambda x: x.pci).items()]
            fault = Fault(
                f"Xids of GPUs that NVML does not list: {listed(words, most=2)}",
                Fix(_STEPS["ask"].text, ("sudo dmesg | grep 'NVRM: Xid'", "nvidia-smi -L")),
                {f"{x.pci} Xid {x.number}": x.text for x in strange[-_MOST:]},
                severity="info",
            )
            yield about_nodes(job, [node], fault)
