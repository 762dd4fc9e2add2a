"""Rules about a GPU's links to other GPUs and to the host: NVLink and PCIe."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus, NvLinks
from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.ranges import fold
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.readings import (
    FEWEST_LOOKS,
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
_REPLAYS_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""Per minute, by generation: a bit error rate of 1e-12, which NVIDIA's DCGM still accepts."""
_CHECKSUM_ERRORS_PER_SECOND = 100.0
"""DCGM's limit for checksum errors on NVLinks; a single replay or recovery already counts."""
_RESENT = frozenset({"replay", "recovery", "failed recovery"})
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
    fewer, refused = _down(job, reading), _refused(job).get((reading.node.key, reading.gpu.index))
    if not (fewer or refused) or not_ready(reading) or reading.gpu.mig is True:
        return None  # in MIG mode a GPU may have no links
    if fewer or not refused:
        return fewer
    peers = f"{'GPU' if len(refused) == 1 else 'GPUs'} {fold(refused)}"
    why = listed(list(dict.fromkeys(refused.values())), most=2)
    return Fault(f"NVLink connects it to {peers}, but P2P is off: {why}", _NO_P2P, severity="warning")


def _down(job: Job, reading: Reading) -> Fault | None:
    """Return that fewer of a GPU's links are active than on its peers."""
    links, model, usual = nvlinks_of(reading), reading.gpu.name, _usual_links(job)
    if links is None or not isinstance(model, str):
        return None
    up, elsewhere = links.active.count(True), usual.elsewhere.get(model, 0)
    there = usual.beside[reading.node.key, model]
    if "switch" in links.remote or not up:
        there = max(there, usual.switched.get(model, 0))
    if up < there:
        severity: Severity = "error" if up or model in usual.switched else "info"
        return Fault(_active(links, f"{there} NVLinks"), severity=severity, confirmed=False)
    if up < elsewhere:
        return Fault(_active(links, f"{elsewhere} NVLinks as on most nodes"), severity="warning")
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
        off = [pair for pair in pairs if pair.nvlink == 0 and (pair.read in _P2P or pair.write in _P2P)]
        able = {r.gpu.index for r in here if r.used and r.gpu.mig is False and not not_ready(r)} if off else set()
        for pair in off:
            if able.issuperset(pair.gpus):
                for one, other in (pair.gpus, pair.gpus[::-1]):
                    refused.setdefault((node, one), {})[other] = _P2P.get(pair.read) or _P2P[pair.write]
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
    if words := _failing_link(reading):
        return words
    failed, link, _ = _most_errors(reading, failed=True)
    if failed:
        return f"NVLink {link} failed to recover {count(failed, 'time')}"
    errors, link, counter = _most_errors(reading)
    return f"NVLink {link} has counted {errors} {counter} errors" if errors >= _many_errors(job) else None


def _failing_link(reading: Reading) -> str:
    """Return the NVLink whose errors grew most, '' if none did."""
    load = reading.gpu.load
    if load is None:
        return ""
    grown = [
        (row.counter in _RESENT, errors, link, row.counter)
        for row in load.nvlink_errors
        for link, errors in enumerate(row.by_link)
        if errors and (row.counter in _RESENT or errors >= _CHECKSUM_ERRORS_PER_SECOND * load.seconds)
    ]
    if not grown:
        return ""
    _, errors, link, counter = max(grown)
    links = len({link for _, _, link, _ in grown})
    more = f", and on {links - 1} more" if links > 1 else ""
    return f"{errors} {counter} errors on NVLink {link}{more} in {load.seconds:.1f} s of collectives"


def _most_errors(reading: Reading, *, failed: bool = False) -> tuple[int, int, str]:
    """Return the highest count of errors, or of failed recoveries, its link, and the counter's name."""
    links, worst = nvlinks_of(reading), (0, 0, "")
    for row in () if links is None or isinstance(links.errors, Missing) else links.errors:
        if (row.counter == "failed recovery") is failed and (most := max(row.by_link, default=0)):
            worst = max(worst, (most, row.by_link.index(most), row.counter))
    return worst


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
        return _trained_low(reading)
    return None if on_grace(reading) else f"PCIe x{width}; x{most} is possible"


def _trained_low(reading: Reading) -> str:
    """Return that a busy GPU's PCIe link ran at a lower generation than possible, else ''."""
    load, most = reading.gpu.load, reading.health.pcie.max_generation
    if load is None or load.busy < FEWEST_LOOKS or load.pcie_generation == most:
        return ""
    seen = load.pcie_generation
    if isinstance(seen, Missing) or isinstance(most, Missing) or not 0 < seen < most or on_grace(reading):
        return ""
    return f"PCIe generation {seen} under load; {most} is possible"


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
    resent = int(number(reading.health.pcie.replays))
    return _replayed(reading) or (f"{resent} packets were resent over PCIe" if resent >= _many_replays(job) else None)


def _replayed(reading: Reading) -> str:
    """Return that a GPU resent more packets over PCIe than a good link in a minute, else ''."""
    load, pcie = reading.gpu.load, reading.health.pcie
    if load is None or isinstance(load.replays, Missing) or not load.replays:
        return ""
    lanes = number(pcie.width) or 16
    usual = _REPLAYS_PER_LANE.get(int(number(pcie.max_generation)), max(_REPLAYS_PER_LANE.values())) * lanes
    if load.replays <= usual * max(1.0, load.seconds / 60):
        return ""
    return f"PCIe resent {count(load.replays, 'packet')} in {load.seconds:.1f} s of collectives"


@once
def _many_replays(job: Job) -> int:
    return high((int(number(reading.health.pcie.replays)) for reading in readings(job)), _MANY_REPLAYS)
