"""Rules about the NVSwitch fabric between GPUs, of one node and of several."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Fabric, Gpus
from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.cuda_view import FABRIC_NOT_READY, error_of, not_started
from distcheck.rules.gpu.nodes import seen
from distcheck.rules.gpu.readings import (
    COMPLETED,
    IN_PROGRESS,
    Reading,
    by_node,
    fabric_of,
    findings,
    gpu_names,
    in_fabrics,
    judged,
    not_read,
    not_ready,
    number,
    readings,
)
from distcheck.rules.wording import found, grouped, listed, named, numbers_of
from distcheck.selection.nccl_settings import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRUE = 1
_MOST = 16
"""GPUs that a finding's evidence shows."""
_MASK_WORDS = {
    0: "degraded bandwidth",
    2: "a route is being recovered",
    4: "an unhealthy route",
    6: "recovery from a timeout",
}
"""Two-bit fields in the fabric's health mask (nvml.h); the value 1 is bad."""
_CONFIGURATIONS = {
    2: "a wrong system GUID",
    3: "a wrong chassis number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "an invalid location",
    8: "an invalid GPU state",
}
_UNHEALTHY, _LIMITED = 2, 3
_FABRIC_MANAGER = Fix(
    "Start NVIDIA's fabric manager in exactly the driver's version.",
    (
        "systemctl status nvidia-fabricmanager",
        "sudo systemctl enable --now nvidia-fabricmanager",
        "nv-fabricmanager --version; cat /proc/driver/nvidia/version",
    ),
)


@rule("gpu", scope=("node", "gpu"))
def gpu_fabric_manager_down(job: Job) -> Iterator[Outcome]:
    """GPUs behind NVSwitches are not registered: mostly the fabric manager is not running.

    CUDA does not start on such GPUs. You would see ``CUDA error: system not yet initialized`` (802) and
    ``torch.cuda.is_available()`` returning False although nvidia-smi shows all GPUs.

    Found by starting CUDA, and by the fabric state that NVML reports from Hopper on. Older GPUs and cards without
    NVLink report no state. On a node with a single GPU the state alone is a warning, and only while CUDA was not
    started: virtual machines with one GPU need no fabric.

    Fix: ``sudo systemctl enable --now nvidia-fabricmanager``; install the fabric manager in exactly the driver's
    version.

    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    beside = by_node(job)
    refused = [rank for _, _, rank in not_started(job) if error_of(rank) == FABRIC_NOT_READY]
    reported = {job.node_of(rank).key for rank in refused}

    def say(reading: Reading, *, alone: bool) -> str:
        started = alone and any(isinstance(r.cuda, CudaView) and not r.cuda.error for r in reading.ranks)
        if reading.node.key in reported or started:
            return ""
        return not_ready(reading) if (len(beside[reading.node.key]) == 1) is alone else ""

    def unknown(reading: Reading) -> str:
        fabric = fabric_of(reading)
        return f"fabric state {fabric.state} is unknown to distcheck" if fabric and fabric.state > COMPLETED else ""

    starting = {r.node.key for r in in_fabrics(job, lambda fabric: fabric.state == IN_PROGRESS)}
    odd = in_fabrics(job, lambda fabric: fabric.state != COMPLETED or fabric.status)
    for sure, ranks in grouped(refused, lambda rank: job.node_of(rank).key not in starting).items():
        yield _not_started(job, ranks, sure=sure)
    several, single = partial(say, alone=False), partial(say, alone=True)
    yield from judged(job, several, _FABRIC_MANAGER, among=odd, severity="error", scope="node")
    yield from findings(judged(job, single, _FABRIC_MANAGER, among=odd, scope="node"))
    fix = Fix("No action if CUDA starts; a newer distcheck may know the state.", ("nvidia-smi -q | grep -A 4 Fabric",))
    yield from findings(judged(job, unknown, fix, among=odd, severity="info"))


def _not_started(job: Job, ranks: list[RankFacts], *, sure: bool) -> Fault:
    """Return the finding about nodes on which CUDA reports that the system is not ready."""
    nodes = {job.node_of(rank).key for rank in ranks}
    states = ((r.node.name, gpu_names([r.gpu]), not_ready(r)) for r in readings(job) if r.node.key in nodes)
    fix = _FABRIC_MANAGER
    confidential = any(
        isinstance(node.gpus, Gpus) and node.gpus.confidential_compute is True for node in map(job.node_of, ranks)
    )
    if confidential:
        fix = Fix(
            f"{fix.text} GPUs in confidential computing mode must also be set to ready.",
            (*fix.commands, "sudo nvidia-smi conf-compute -srs 1"),
        )
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: CUDA does not start: error {FABRIC_NOT_READY} (system not yet initialized)",
        fix,
        owner="admin",
        confirmed=sure,
        evidence={"cuda": f"error {FABRIC_NOT_READY}"}
        | {f"{node} {gpu}": words for node, gpu, words in [s for s in states if s[2]][:_MOST]},
    )


@rule("gpu", scope="node")
def gpu_nvls_multicast_broken(job: Job) -> Iterator[Outcome]:
    """The NVLink fabric of a node is up but unhealthy, so multicast over it (NVLS) may fail.

    You would see ``Failed to bind NVLink SHARP (NVLS) Multicast memory``, CUDA error 401 or
    ``transport/nvls.cc ... Cuda failure 1 'invalid argument'``, or collectives at a fraction of their speed.

    Found by the fabric health that NVML reports. An unhealthy route or a wrong configuration is an error; reduced
    bandwidth and a recovery in progress are warnings. The collectives of ``distcheck gate`` test multicast itself.

    Fix: restart the fabric manager or reboot the node; until then ``export NCCL_NVLS_ENABLE=0``.

    See: https://github.com/NVIDIA/nccl/issues/1672
    """

    def words(fabric: Fabric, *, bad: bool) -> str:
        if fabric.state != COMPLETED or fabric.status:
            return ""
        mask, summary = int(number(fabric.health_mask)), number(fabric.health_summary)
        wrong = [words for shift, words in _MASK_WORDS.items() if mask >> shift & 3 == _TRUE]
        configuration = _CONFIGURATIONS.get(mask >> 8 & 15, "")
        if configuration:
            wrong.append(f"incorrect configuration: {configuration}")
        if not wrong and summary in {_UNHEALTHY, _LIMITED}:
            wrong.append("unhealthy" if summary == _UNHEALTHY else "limited capacity")
        worst = bool(configuration) or _MASK_WORDS[4] in wrong or summary == _UNHEALTHY
        return f"NVML reports for its NVLink fabric: {listed(wrong)}" if wrong and worst is bad else ""

    fix = Fix(
        "Restart the fabric manager when the node is free, or reboot the node; until then disable NVLS.",
        (
            "sudo systemctl restart nvidia-fabricmanager",
            "export NCCL_NVLS_ENABLE=0",
            "nvidia-smi -q | grep -A 12 Fabric",
        ),
    )

    def say(reading: Reading, *, bad: bool) -> str:
        fabric = fabric_of(reading)
        return words(fabric, bad=bad) if fabric is not None else ""

    worse, better = (in_fabrics(job, partial(words, bad=bad)) for bad in (True, False))
    yield from judged(job, partial(say, bad=True), fix, among=worse, severity="error", scope="node")
    yield from findings(judged(job, partial(say, bad=False), fix, among=better, scope="node"))


@rule("gpu", scope="node")
def gpu_mnnvl_imex(job: Job) -> Iterator[Outcome]:
    """GPUs of several nodes share an NVLink domain, but a process cannot use its IMEX channel.

    You would see ``MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel
    configuration (/dev/nvidia-caps-imex-channels)`` or ``Cuda failure 800 'operation not permitted'``.

    Found where NVML names a domain and no /dev/nvidia-caps-imex-channels/channel* can be opened. It is an error when
    several nodes of the job are in one clique, a warning for ``distcheck node``, else an info finding. With
    NCCL_MNNVL_ENABLE=0 NCCL does not use the domain.

    Fix: start nvidia-imex on all nodes of the domain, and give the container its ``channel0``.

    See: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/
    """
    nodes: dict[tuple[str, int], set[str]] = {}
    joined = in_fabrics(job, lambda fabric: fabric.cluster)
    for reading in joined:
        fabric = fabric_of(reading)
        if fabric is not None:
            nodes.setdefault((fabric.cluster, fabric.clique), set()).add(reading.node.key)

    def say(reading: Reading, *, shared: bool) -> str:
        fabric, gpus = fabric_of(reading), reading.node.gpus
        if fabric is None or not fabric.cluster or not isinstance(gpus, Gpus):
            return ""
        if gpus.imex_channel not in {"denied", "absent"}:
            return ""
        if reading.ranks and all(number_of(job, rank, "NCCL_MNNVL_ENABLE", 2) == 0 for rank in reading.ranks):
            return ""
        if (len(nodes[fabric.cluster, fabric.clique]) > 1) is not shared:
            return ""
        why = "cannot be opened" if gpus.imex_channel == "denied" else "does not exist"
        return f"in an NVLink domain of several nodes, but the IMEX channel {why}"

    fix = Fix(
        "Start IMEX on all nodes of the domain and give the job access to a channel; or disable multi-node NVLink.",
        (
            "systemctl status nvidia-imex; nvidia-imex-ctl -N",
            "ls -l /dev/nvidia-caps-imex-channels",
            "export NCCL_MNNVL_ENABLE=0",
        ),
    )
    yield from judged(job, partial(say, shared=True), fix, among=joined, severity="error", scope="node")
    by_itself: Severity = "warning" if "node" in job.asked.looks else "info"
    yield from findings(judged(job, partial(say, shared=False), fix, among=joined, severity=by_itself, scope="node"))


@rule("gpu", severity="info", scope="node", owner="admin")
def gpu_confidential_compute(job: Job) -> Iterator[Outcome]:
    """The GPUs of a node run in confidential computing mode, which costs bandwidth.

    Data that leaves a GPU is encrypted, and peer-to-peer access may be off: NCCL is slower than on other nodes.

    Found by NVML's confidential computing state. An info finding.

    Fix: no action if intended; otherwise have the node's administrator turn it off.
    """
    yield from not_read(job)
    on = [node for node, _ in seen(job) if isinstance(node.gpus, Gpus) and node.gpus.confidential_compute is True]
    if on:
        yield Fault(
            ranks=numbers_of(job.ranks_on(*on)),
            nodes=tuple(node.name for node in on),
            message=f"{listed([node.name for node in on])}: GPUs in confidential computing mode; P2P may be off",
            fix=Fix(
                "No action if intended; otherwise have the node's administrator turn it off.",
                ("nvidia-smi conf-compute -f",),
            ),
        )
