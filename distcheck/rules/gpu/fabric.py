"""Rules about the NVSwitch fabric between GPUs, of one node and of several."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.cuda_view import FABRIC_NOT_READY, error_of, should_start
from distcheck.rules.gpu.readings import (
    COMPLETED,
    IN_PROGRESS,
    Reading,
    by_node,
    each_gpu,
    fabric_of,
    gpu_names,
    not_ready,
    number,
    readings,
)
from distcheck.rules.wording import found, grouped, listed, named, once
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


@rule("gpu", scope=("node", "gpu"), owner="admin")
def gpu_fabric_manager_down(job: Job) -> Iterator[Outcome]:
    """GPUs behind NVSwitches are not registered: mostly the fabric manager is not running.

    CUDA does not start on such GPUs. You would see ``CUDA error: system not yet initialized`` (802) and
    ``torch.cuda.is_available()`` returning False although nvidia-smi shows all GPUs.

    Found by starting CUDA, and by the fabric state that NVML reports from Hopper on. Older GPUs and cards without
    NVLink report no state. On a node with a single GPU the state alone is a warning, and only while CUDA was not
    started: virtual machines with one GPU need no fabric.

    Fix: Start NVIDIA's fabric manager in exactly the driver's version.

        systemctl status nvidia-fabricmanager
        sudo systemctl enable --now nvidia-fabricmanager
        nv-fabricmanager --version; cat /proc/driver/nvidia/version

    See: https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    refused = [each.rank for each in should_start(job) if error_of(each.rank) == FABRIC_NOT_READY]
    reported = {job.node_of(rank).key for rank in refused}
    starting = {r.node.key for r in readings(job) if (fabric := fabric_of(r)) and fabric.state == IN_PROGRESS}
    for confirmed, ranks in grouped(refused, lambda rank: job.node_of(rank).key not in starting).items():
        yield _not_started(job, ranks, confirmed=confirmed)
    yield from each_gpu(job, lambda reading: None if reading.node.key in reported else _unregistered(job, reading))


def _unregistered(job: Job, reading: Reading) -> Fault | None:
    """Return what is wrong with a GPU's state in the fabric, on a node where CUDA did not report it."""
    fabric = fabric_of(reading)
    if fabric is not None and fabric.state > COMPLETED:
        fix = Fix(
            "No action if CUDA starts; a newer distcheck may know the state.", ("nvidia-smi -q | grep -A 4 Fabric",)
        )
        return Fault(f"fabric state {fabric.state} is unknown to distcheck", fix, severity="info", scope="gpu")
    words, alone = not_ready(reading), len(by_node(job)[reading.node.key]) == 1
    if not words or (alone and any(isinstance(rank.cuda, CudaView) and not rank.cuda.error for rank in reading.ranks)):
        return None
    return Fault(words, severity="warning" if alone else "error", confirmed=False)


def _not_started(job: Job, ranks: list[RankFacts], *, confirmed: bool) -> Fault:
    """Return the finding about nodes on which CUDA reports that the system is not ready."""
    nodes = {job.node_of(rank).key for rank in ranks}
    states = ((r.node.name, gpu_names([r.gpu]), not_ready(r)) for r in readings(job) if r.node.key in nodes)
    confidential = Fix(
        "Start NVIDIA's fabric manager, and set the GPUs to ready, because they are in confidential computing mode.",
        ("sudo systemctl enable --now nvidia-fabricmanager", "sudo nvidia-smi conf-compute -srs 1"),
    )
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: CUDA does not start: error {FABRIC_NOT_READY} (system not yet initialized)",
        confidential if any(_is_confidential(job.node_of(rank)) for rank in ranks) else None,
        confirmed=confirmed,
        evidence={"cuda": f"error {FABRIC_NOT_READY}"}
        | {f"{node} {gpu}": words for node, gpu, words in [s for s in states if s[2]][:_MOST]},
    )


@rule("gpu", scope="node", owner="admin", of=each_gpu)
def gpu_nvls_multicast_broken(_: Job, reading: Reading) -> Answer:
    """The NVLink fabric of a node is up but unhealthy, so multicast over it (NVLS) may fail.

    You would see ``Failed to bind NVLink SHARP (NVLS) Multicast memory``, CUDA error 401 or
    ``transport/nvls.cc ... Cuda failure 1 'invalid argument'``, or collectives at a fraction of their speed.

    Found by the fabric health that NVML reports. An unhealthy route or a wrong configuration is an error; reduced
    bandwidth and a recovery in progress are warnings. The collectives of ``distcheck gate`` test multicast itself.

    Fix: Restart the fabric manager when the node is free, or reboot the node; until then disable NVLS.

        sudo systemctl restart nvidia-fabricmanager
        export NCCL_NVLS_ENABLE=0
        nvidia-smi -q | grep -A 12 Fabric

    See: https://github.com/NVIDIA/nccl/issues/1672
    """
    fabric = fabric_of(reading)
    if fabric is None or fabric.state != COMPLETED or fabric.status:
        return None
    return _unhealthy(int(number(fabric.health_mask)), int(number(fabric.health_summary)))


@lru_cache(64)
def _unhealthy(mask: int, summary: int) -> Fault | None:
    """Return what NVML's health mask and summary say against a fabric; most are the same."""
    wrong = [words for shift, words in _MASK_WORDS.items() if mask >> shift & 3 == _TRUE]
    configuration = _CONFIGURATIONS.get(mask >> 8 & 15, "")
    if configuration:
        wrong.append(f"incorrect configuration: {configuration}")
    if not wrong and summary in {_UNHEALTHY, _LIMITED}:
        wrong.append("unhealthy" if summary == _UNHEALTHY else "limited capacity")
    if not wrong:
        return None
    severe = configuration or _MASK_WORDS[4] in wrong or summary == _UNHEALTHY
    words = f"NVML reports for its NVLink fabric: {listed(wrong)}"
    return Fault(words, severity="error" if severe else "warning", confirmed=False)


@rule("gpu", scope="node", owner="admin", of=each_gpu)
def gpu_mnnvl_imex(job: Job, reading: Reading) -> Answer:
    """GPUs of several nodes share an NVLink domain, but a process cannot use its IMEX channel.

    You would see ``MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel
    configuration (/dev/nvidia-caps-imex-channels)`` or ``Cuda failure 800 'operation not permitted'``.

    Found where NVML names a domain and no /dev/nvidia-caps-imex-channels/channel* can be opened. It is an error when
    several nodes of the job are in one clique, a warning for ``distcheck node``, else an info finding. With
    NCCL_MNNVL_ENABLE=0 NCCL does not use the domain.

    Fix: Start IMEX on all nodes of the domain and give the job access to a channel; or disable multi-node NVLink.

        systemctl status nvidia-imex; nvidia-imex-ctl -N
        ls -l /dev/nvidia-caps-imex-channels
        export NCCL_MNNVL_ENABLE=0

    See: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/
    """
    fabric, gpus = fabric_of(reading), reading.node.gpus
    if fabric is None or not fabric.cluster or not isinstance(gpus, Gpus):
        return None
    if gpus.imex_channel not in {"denied", "absent"}:
        return None
    if reading.ranks and all(number_of(job, rank, "NCCL_MNNVL_ENABLE", 2) == 0 for rank in reading.ranks):
        return None
    by_itself: Severity = "warning" if "node" in job.asked.looks else "info"
    why = "cannot be opened" if gpus.imex_channel == "denied" else "does not exist"
    words = f"in an NVLink domain of several nodes, but the IMEX channel {why}"
    shared = len(_cliques(job)[fabric.cluster, fabric.clique]) > 1
    return Fault(words, severity="error" if shared else by_itself, confirmed=False)


@once
def _cliques(job: Job) -> dict[tuple[str, int], set[str]]:
    """Return the nodes' keys by NVLink domain and clique."""
    nodes: dict[tuple[str, int], set[str]] = {}
    for reading in readings(job):
        if fabric := fabric_of(reading):
            nodes.setdefault((fabric.cluster, fabric.clique), set()).add(reading.node.key)
    return nodes


@rule("gpu", severity="info", scope="node", owner="admin", of=each_gpu)
def gpu_confidential_compute(_: Job, reading: Reading) -> Answer:
    """The GPUs of a node run in confidential computing mode, which costs bandwidth.

    Data that leaves a GPU is encrypted, and peer-to-peer access may be off: NCCL is slower than on other nodes.

    Found by NVML's confidential computing state. An info finding.

    Fix: No action if intended; otherwise have the node's administrator turn it off.

        nvidia-smi conf-compute -f
    """
    return "in confidential computing mode; P2P may be off" if _is_confidential(reading.node) else None


def _is_confidential(node: NodeFacts) -> bool:
    return isinstance(node.gpus, Gpus) and node.gpus.confidential_compute is True
