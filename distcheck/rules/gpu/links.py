"""Rules about a GPU's links to other GPUs and to the host: NVLink and PCIe."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus, NvLinks
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.loads import failing_link, replayed, trained_low
from distcheck.rules.gpu.readings import (
    Reading,
    by_node,
    findings,
    gpu_names,
    high,
    judged,
    not_ready,
    number,
    nvlinks_of,
    on_grace,
    readings,
)
from distcheck.rules.wording import grouped, listed, majority, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LINKS_TO_SWITCHES = {"A100-SXM": 12, "H100 80GB HBM3": 18, "H200": 18, "B200": 18, "B300": 18}
"""By a part of the GPU's name; cut-down models have other names."""
_MANY_LINK_ERRORS = 1000
_MANY_REPLAYS = 1000
_P2P = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the PCIe topology does not support it",
    4: "it is disabled in the driver's registry",
    5: "it is not supported",
}


def _expected_links(switched: Mapping[str, Counter[int]]) -> dict[str, int]:
    """Return by model the number of links to switches: the larger of the job's and the known."""
    known = {name: next((n for part, n in _LINKS_TO_SWITCHES.items() if part in name), 0) for name in switched}
    return {name: max(_usual(counts), known[name]) for name, counts in switched.items()}


def _usual(counts: Counter[int]) -> int:
    """Return the most common number; the larger one on a tie."""
    return max(counts, key=lambda n: (counts[n], n))


def _usual_links(most: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Return by model the link count of the best linked GPU on most nodes, if most agree."""
    models: dict[str, dict[int, list[str]]] = {}
    for (node, name), links in most.items():
        models.setdefault(name, {}).setdefault(links, []).append(node)
    usual = ((name, majority(counts)) for name, counts in models.items())
    return {name: links for name, links in usual if links is not None}


@rule("gpu", scope=("node", "gpu"))
def gpu_nvlink_down(job: Job) -> Iterator[Outcome]:
    """A GPU has fewer active NVLinks than its peers, or no P2P access to an NVLinked GPU.

    Traffic between GPUs then shares fewer links or goes over PCIe. You would see half the usual bandwidth,
    or NCCL's ``P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case``.

    Found by comparing active links with the other GPUs of the model and, where links lead to NVSwitches, with the
    model's own number; and by NVML's P2P status. Where GPUs are linked directly, for example by bridges, a node whose
    GPUs all have fewer links than on most nodes is a warning. GPUs without any link beside linked ones are an info
    finding: bridges may join only some cards. Where the fabric is not up, gpu-fabric-manager-down reports it.

    Fix: drain the node and reset the GPU; reseat or replace the bridge, tray or GPU if the link stays down.

    See: https://github.com/NVIDIA/nccl/issues/1608
    """
    alike: list[tuple[list[tuple[str | Missing, tuple[bool, ...], bool]], list[str]]] = []
    """The links of a node's GPUs, and the nodes that have the same."""
    for key, here in by_node(job).items():
        links_of = [(reading.gpu.name, links) for reading in here if (links := nvlinks_of(reading)) is not None]
        theirs = [(name, links.active, "switch" in links.remote) for name, links in links_of]
        if not alike or alike[-1][0] != theirs:
            alike.append((theirs, []))
        alike[-1][1].append(key)
    active: dict[tuple[str, str], list[int]] = {}
    switched: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for theirs, nodes in alike:
        for model, its in grouped(theirs, lambda gpu: str(gpu[0])).items():
            ups = [up.count(True) for _, up, _ in its]
            active |= {(node, model): ups for node in nodes}
        for name, up, through_switches in theirs:
            if isinstance(name, str) and through_switches:
                switched[name][up.count(True)] += len(nodes)
    most = {place: max(ups) for place, ups in active.items()}
    expected = _expected_links(switched)
    usual = _usual_links(most)

    def short(reading: Reading, links: NvLinks, up: int) -> tuple[Severity, str] | None:
        name = reading.gpu.name
        if not isinstance(name, str) or not_ready(reading) or reading.gpu.mig is True:
            return None  # in MIG mode a GPU may have no links
        beside = most[reading.node.key, name]
        there = max(beside, expected.get(name, 0)) if "switch" in links.remote or not up else beside
        found: Severity = "error" if up > 0 or name in expected else "info"
        elsewhere = ""
        if up >= there and up < usual.get(name, 0):
            there, found, elsewhere = usual[name], "warning", " as on most nodes"
        if up >= there:
            return None
        down = [str(n) for n, active in enumerate(links.active) if not active]
        lacking = f"; down: {listed(down, most=6)}" if down else ""
        if not up:
            return found, f"none of {there} NVLinks{elsewhere} is active"
        return found, f"{up} of {there} NVLinks{elsewhere} are active{lacking}"

    wrong: dict[int, tuple[Severity, str]] = {}
    below = {
        node
        for (node, name), ups in active.items()
        if min(ups) < max(most[node, name], expected.get(name, 0), usual.get(name, 0))
    }
    for reading in (reading for node in below for reading in by_node(job)[node]):
        if (links := nvlinks_of(reading)) and (fault := short(reading, links, links.active.count(True))) is not None:
            wrong[id(reading)] = fault
    faulty = [reading for reading in readings(job) if id(reading) in wrong] if wrong else []

    def say(reading: Reading, severity: Severity) -> str:
        found, words = wrong[id(reading)]
        return words if found == severity else ""

    fix = Fix(
        "Drain the node and reset the GPU; if the link stays down, reseat or replace the bridge, tray or GPU.",
        ("nvidia-smi nvlink -s -i {gpu}", "nvidia-smi topo -m", "sudo nvidia-smi --gpu-reset -i {gpu}"),
    )
    yield from judged(job, lambda r: say(r, "error"), fix, among=faulty, severity="error")
    yield from findings(judged(job, lambda r: say(r, "warning"), fix, among=faulty, severity="warning"))
    yield from findings(judged(job, lambda r: say(r, "info"), fix, among=faulty, severity="info"))
    for group in by_node(job).values():
        yield from _without_access(group[0].node, group)


def _without_access(node: NodeFacts, here: list[Reading]) -> Iterator[Fault]:
    """Yield GPUs that NVLink connects and P2P does not; `here` are the node's GPUs."""
    gpus = node.gpus
    if not isinstance(gpus, Gpus) or gpus.confidential_compute is True:
        return
    refused = [pair for pair in gpus.peer_access if pair.read or pair.write]  # 0 is yes
    known = {reading.gpu.index: reading for reading in here} if refused else {}
    cut = []
    for pair in refused:
        wrong = next((value for value in (pair.read, pair.write) if value in _P2P), None)
        if pair.nvlink != 0 or not isinstance(wrong, int):
            continue
        both = [known[index] for index in pair.gpus if index in known]
        ready = len(both) == 2 and all(r.used and r.gpu.mig is False and not not_ready(r) for r in both)
        if ready:
            cut.append((pair.gpus, _P2P[wrong]))
    if not cut:
        return
    touched = sorted({index for pair, _ in cut for index in pair})
    reasons = listed(list(grouped(cut, lambda item: item[1])), most=2)
    yield Fault(
        severity="warning",
        owner="admin",
        ranks=numbers_of(rank for index in touched for rank in known[index].ranks),
        nodes=(node.name,),
        message=f"{node.name}: NVLink connects {gpu_names([known[index].gpu for index in touched])}, but P2P is off for"
        f" {len(cut)} of their pairs: {reasons}",
        evidence={f"GPUs {first} and {second}": why for (first, second), why in cut[:16]},
        fix=Fix(
            "Look for a driver option that disables P2P, then drain and reboot the node.",
            ("nvidia-smi topo -p2p r", "cat /etc/modprobe.d/*nvidia*"),
        ),
    )


@rule("gpu", severity="warning", scope="gpu")
def gpu_nvlink_errors(job: Job) -> Iterator[Outcome]:
    """An NVLink has counted many more errors than those of the other GPUs.

    The link corrects errors by sending again, which costs time, until it goes down with Xid 74.

    Found by the links' error counters. While the collectives ran: one resent packet, one recovery, or a hundred
    checksum errors a second. Since the driver was loaded: a failed recovery, or at least 1,000 errors and a hundred
    times the worst link of the other GPUs. A few errors are normal. A warning.

    Fix: drain the node and run ``dcgmi diag -r 3``; reseat or replace the bridge, tray or GPU if the count grows.
    """
    counted = [
        r
        for r in readings(job)
        if (isinstance(links := r.health.nvlinks, NvLinks) and links.errors)
        or (r.gpu.load is not None and r.gpu.load.nvlink_errors)
    ]

    def worst(reading: Reading, *, failed: bool) -> tuple[int, int, str]:
        """Return the highest count, its link, and the counter's name."""
        links = nvlinks_of(reading)
        errors = links.errors if links is not None and not isinstance(links.errors, Missing) else ()
        counts = [
            (count, link, row.counter)
            for row in errors
            if (row.counter == "failed recovery") is failed
            for link, count in enumerate(row.by_link)
        ]
        return max(counts, default=(0, 0, ""))

    none = [0] * (len(readings(job)) - len(counted))
    many = high(none + [worst(reading, failed=False)[0] for reading in counted], _MANY_LINK_ERRORS)

    def say(reading: Reading) -> str:
        if words := failing_link(reading):
            return words
        count, link, _ = worst(reading, failed=True)
        if count:
            return f"NVLink {link} failed to recover {count} {'time' if count == 1 else 'times'}"
        count, link, counter = worst(reading, failed=False)
        return f"NVLink {link} has counted {count} {counter} errors" if count >= many else ""

    yield from judged(
        job,
        say,
        Fix("Drain the node and run the diagnostics.", ("nvidia-smi nvlink -e -i {gpu}", "dcgmi diag -r 3")),
        among=counted,
    )


@rule("gpu", severity="warning", scope="gpu")
def gpu_pcie_downgraded(job: Job) -> Iterator[Outcome]:
    """A GPU's PCIe link has fewer lanes than possible, or stays slow under load.

    Copies between host and GPU, and from GPU to network card, run at half their speed or less. A riser, a dirty contact
    or a BIOS setting is the cause. NCCL reads what the slot could do and does not notice.

    Found by comparing the width of the link with the largest width for this GPU in this system, and the highest
    generation seen while the collectives ran with the largest possible one. An idle GPU lowers its generation and is
    not judged by it. GPUs of Grace, which do not depend on PCIe, are left out.

    Fix: reseat the GPU or its riser, and check the BIOS setting for the slot.
    """

    def say(reading: Reading) -> str:
        width, most = reading.health.pcie.width, reading.health.pcie.max_width
        if isinstance(width, Missing) or isinstance(most, Missing) or not 0 < width < most:
            return trained_low(reading)
        return "" if on_grace(reading) else f"PCIe x{width}; x{most} is possible"

    yield from judged(
        job,
        say,
        Fix(
            "Reseat the GPU or its riser, and check the BIOS setting for the slot.",
            ("nvidia-smi -q -i {gpu} | grep -A 12 'Link Info'", "sudo lspci -vv -s {pci} | grep -i lnk"),
        ),
        among=[r for r in readings(job) if _may_be_downgraded(r)],
    )


def _may_be_downgraded(reading: Reading) -> bool:
    """Return whether a link is narrower than possible, or was slower than possible under load."""
    pcie, load = reading.health.pcie, reading.gpu.load
    return pcie.width != pcie.max_width or (load is not None and load.pcie_generation != pcie.max_generation)


@rule("gpu", severity="warning", scope="gpu")
def gpu_pcie_replay(job: Job) -> Iterator[Outcome]:
    """A GPU has resent many more packets over PCIe than the others.

    The link's signal is bad. Data over it arrives late at times, and no log explains why.

    Found by how much the replay counter grew while the collectives ran: more than a link with one bad bit in 10^12
    counts in a minute (15 for 16 lanes of generation 4). Also by the count since the driver was loaded: at least 1,000
    and a hundred times the count of the other GPUs, or 100,000 for a single GPU. A warning.

    Fix: reseat the GPU or its riser; watch ``nvidia-smi -q | grep -i replay`` while a job runs.
    """
    counts = [int(number(reading.health.pcie.replays)) for reading in readings(job)]
    many = high(counts, _MANY_REPLAYS)

    def say(reading: Reading) -> str:
        count = int(number(reading.health.pcie.replays))
        return replayed(reading) or (f"{count} packets were resent over PCIe" if count >= many else "")

    yield from judged(
        job,
        say,
        Fix("Reseat the GPU or its riser if the count grows.", ("nvidia-smi -q -i {gpu} | grep -i replay",)),
        among=[
            r
            for r, n in zip(readings(job), counts, strict=True)
            if n >= many or ((load := r.gpu.load) is not None and load.replays)
        ],
    )
