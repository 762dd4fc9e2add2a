"""Rules about a GPU's links to other GPUs and to the host: NVLink and PCIe."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus, NvLinks
from distcheck.facts.job import Job
from distcheck.facts.ranges import fold
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.loads import failing_link, replayed, trained_low
from distcheck.rules.gpu.readings import (
    Reading,
    by_node,
    each_gpu,
    high,
    not_ready,
    number,
    nvlinks_of,
    on_grace,
    readings,
)
from distcheck.rules.wording import grouped, listed, majority, once

_LINKS_TO_SWITCHES = {"A100-SXM": 12, "H100 80GB HBM3": 18, "H200": 18, "B200": 18, "B300": 18}
"""By a part of the GPU's name; cut-down models have other names."""
_MANY_LINK_ERRORS = 1000
_MANY_REPLAYS = 1000
_P2P: dict[int | Missing, str] = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the PCIe topology does not support it",
    4: "it is disabled in the driver's registry",
    5: "it is not supported",
}


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_nvlink_down(job: Job, reading: Reading) -> Answer:
    """A GPU has fewer active NVLinks than its peers, or no P2P access to an NVLinked GPU.

    Traffic between GPUs then shares fewer links or goes over PCIe. You would see half the usual bandwidth,
    or NCCL's ``P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case``.

    Found by comparing active links with the other GPUs of the model and, where links lead to NVSwitches, with the
    model's own number; and by NVML's P2P status. Where GPUs are linked directly, for example by bridges, a node whose
    GPUs all have fewer links than on most nodes is a warning. GPUs without any link beside linked ones are an info
    finding: bridges may join only some cards. Where the fabric is not up, gpu-fabric-manager-down reports it.

    Fix: Drain the node and reset the GPU; if the link stays down, reseat or replace the bridge, tray or GPU.

        nvidia-smi nvlink -s -i {gpu}
        nvidia-smi topo -m
        sudo nvidia-smi --gpu-reset -i {gpu}

    See: https://github.com/NVIDIA/nccl/issues/1608
    """
    links, model, usual = nvlinks_of(reading), reading.gpu.name, _usual_links(job)
    if links is None or not isinstance(model, str) or not_ready(reading) or reading.gpu.mig is True:
        return None  # in MIG mode a GPU may have no links
    up, elsewhere = links.active.count(True), usual.elsewhere.get(model, 0)
    there = usual.beside[reading.node.key, model]
    if "switch" in links.remote or not up:
        there = max(there, usual.switched.get(model, 0))
    if up < there:
        severity: Severity = "error" if up or model in usual.switched else "info"
        return Fault(_active(links, f"{there} NVLinks"), severity=severity, confirmed=False)
    if up < elsewhere:
        return Fault(_active(links, f"{elsewhere} NVLinks as on most nodes"), severity="warning")
    if refused := _refused(job).get((reading.node.key, reading.gpu.index)):
        peers = f"{'GPU' if len(refused) == 1 else 'GPUs'} {fold(refused)}"
        why = listed(list(dict.fromkeys(refused.values())), most=2)
        return Fault(f"NVLink connects it to {peers}, but P2P is off: {why}", _NO_P2P, severity="warning")
    return None


_NO_P2P = Fix(
    "Look for a driver option that disables P2P, then drain and reboot the node.",
    ("nvidia-smi topo -p2p r", "cat /etc/modprobe.d/*nvidia*"),
)


def _active(links: NvLinks, of: str) -> str:
    """Return how many links are active and which are not: 17 of 18 NVLinks are active; down: 5."""
    down = [str(n) for n, active in enumerate(links.active) if not active]
    up = len(links.active) - len(down)
    if not up:
        return f"none of {of} is active"
    return f"{up} of {of} are active{f'; down: {listed(down, most=6)}' if down else ''}"


class _Links(NamedTuple):
    """How many NVLinks are active on GPUs of a model."""

    beside: dict[tuple[str, str], int]
    """On the best linked one of a node, by node and model."""
    switched: dict[str, int]
    """If they lead to NVSwitches: the larger of the job's usual number and the model's own."""
    elsewhere: dict[str, int]
    """On the best linked one of most nodes, if most agree."""


@once
def _usual_links(job: Job) -> _Links:
    beside: dict[tuple[str, str], int] = {}
    counts: dict[str, Counter[int]] = {}
    for reading in readings(job):
        links, model = nvlinks_of(reading), reading.gpu.name
        if links is None or not isinstance(model, str):
            continue
        up, place = links.active.count(True), (reading.node.key, model)
        beside[place] = max(up, beside.get(place, 0))
        if "switch" in links.remote:
            counts.setdefault(model, Counter())[up] += 1
    known = {model: next((n for part, n in _LINKS_TO_SWITCHES.items() if part in model), 0) for model in counts}
    switched = {model: max(known[model], max(ups, key=lambda n: (ups[n], n))) for model, ups in counts.items()}
    best = grouped(beside.items(), lambda item: item[0][1])
    most = {model: majority(grouped(nodes, lambda item: item[1])) or 0 for model, nodes in best.items()}
    return _Links(beside, switched, most)


@once
def _refused(job: Job) -> dict[tuple[str, int], dict[int, str]]:
    """Return by node and GPU the GPUs that NVLink connects to it and whose memory it may not access, and why."""
    refused: dict[tuple[str, int], dict[int, str]] = {}
    for node, here in by_node(job).items():
        gpus = here[0].node.gpus
        pairs = gpus.peer_access if isinstance(gpus, Gpus) and gpus.confidential_compute is not True else ()
        able = {r.gpu.index for r in here if r.used and r.gpu.mig is False and not not_ready(r)}
        for pair in pairs:
            why = _P2P.get(pair.read) or _P2P.get(pair.write)
            if why and pair.nvlink == 0 and able.issuperset(pair.gpus):
                for one, other in (pair.gpus, pair.gpus[::-1]):
                    refused.setdefault((node, one), {})[other] = why
    return refused


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_nvlink_errors(job: Job, reading: Reading) -> Answer:
    """An NVLink has counted many more errors than those of the other GPUs.

    The link corrects errors by sending again, which costs time, until it goes down with Xid 74.

    Found by the links' error counters. While the collectives ran: one resent packet, one recovery, or a hundred
    checksum errors a second. Since the driver was loaded: a failed recovery, or at least 1,000 errors and a hundred
    times the worst link of the other GPUs. A few errors are normal. A warning.

    Fix: Drain the node and run the diagnostics; reseat or replace the bridge, tray or GPU if the count grows.

        nvidia-smi nvlink -e -i {gpu}
        dcgmi diag -r 3
    """
    if words := failing_link(reading):
        return words
    count, link, _ = _most_errors(reading, failed=True)
    if count:
        return f"NVLink {link} failed to recover {count} {'time' if count == 1 else 'times'}"
    count, link, counter = _most_errors(reading)
    return f"NVLink {link} has counted {count} {counter} errors" if count >= _many_errors(job) else None


def _most_errors(reading: Reading, *, failed: bool = False) -> tuple[int, int, str]:
    """Return the highest count of errors, or of failed recoveries, its link, and the counter's name."""
    links = nvlinks_of(reading)
    errors = () if links is None or isinstance(links.errors, Missing) else links.errors
    counts = (
        (count, link, row.counter)
        for row in errors
        if (row.counter == "failed recovery") is failed
        for link, count in enumerate(row.by_link)
    )
    return max(counts, default=(0, 0, ""))


@once
def _many_errors(job: Job) -> int:
    return high((_most_errors(reading)[0] for reading in readings(job)), _MANY_LINK_ERRORS)


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_pcie_downgraded(_: Job, reading: Reading) -> Answer:
    """A GPU's PCIe link has fewer lanes than possible, or stays slow under load.

    Copies between host and GPU, and from GPU to network card, run at half their speed or less. A riser, a dirty contact
    or a BIOS setting is the cause. NCCL reads what the slot could do and does not notice.

    Found by comparing the width of the link with the largest width for this GPU in this system, and the highest
    generation seen while the collectives ran with the largest possible one. An idle GPU lowers its generation and is
    not judged by it. GPUs of Grace, which do not depend on PCIe, are left out.

    Fix: Reseat the GPU or its riser, and check the BIOS setting for the slot.

        nvidia-smi -q -i {gpu} | grep -A 12 'Link Info'
        sudo lspci -vv -s {pci} | grep -i lnk
    """
    width, most = reading.health.pcie.width, reading.health.pcie.max_width
    if isinstance(width, Missing) or isinstance(most, Missing) or not 0 < width < most:
        return trained_low(reading)
    return None if on_grace(reading) else f"PCIe x{width}; x{most} is possible"


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_pcie_replay(job: Job, reading: Reading) -> Answer:
    """A GPU has resent many more packets over PCIe than the others.

    The link's signal is bad. Data over it arrives late at times, and no log explains why.

    Found by how much the replay counter grew while the collectives ran: more than a link with one bad bit in 10^12
    counts in a minute (15 for 16 lanes of generation 4). Also by the count since the driver was loaded: at least 1,000
    and a hundred times the count of the other GPUs, or 100,000 for a single GPU. A warning.

    Fix: Reseat the GPU or its riser if the count grows while a job runs.

        nvidia-smi -q -i {gpu} | grep -i replay
    """
    count = int(number(reading.health.pcie.replays))
    return replayed(reading) or (f"{count} packets were resent over PCIe" if count >= _many_replays(job) else None)


@once
def _many_replays(job: Job) -> int:
    return high((int(number(reading.health.pcie.replays)) for reading in readings(job)), _MANY_REPLAYS)
