"""The hardware that a job's collectives ran on, from its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distcheck.expectation.hardware import Hardware, Inside, NvLinkWay, PcieWay
from distcheck.expectation.inside import inside
from distcheck.expectation.outside import outside
from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, Gpu, Gpus, NvLinks
from distcheck.facts.job import Collectives
from distcheck.facts.pci import Pci
from distcheck.selection.nccl_settings import of_rank, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

SLOWING = (
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL",
    "NCCL_CROSS_NIC", "NCCL_NVLS_ENABLE", "NCCL_LAUNCH_MODE", "NCCL_TOPO_FILE", "NCCL_IB_QPS_PER_CONNECTION",
    "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip
"""Variables that may slow NCCL down on purpose."""
_HOST_ID = "NCCL_HOSTID"


def hardware(job: Job) -> Hardware | Missing:
    """Return the hardware that the ranks of a job ran on, or why it is unknown."""
    ran = job.collectives
    if not isinstance(ran, Collectives):
        return Missing(reason="the collectives were not run")
    on = {node.key: job.ranks_on(node) for node in job.nodes}
    shape = [len(ranks) for ranks in on.values() if ranks]
    world = job.world_size or len(job.ranks)
    if not shape:
        return Missing(reason="no rank reported its facts")
    if sum(shape) != world:
        return Missing(reason=f"only {sum(shape)} of {world} ranks reported their facts")
    where = outside(job, ran.backend) if len(shape) > 1 else None
    if ran.backend != "nccl":
        return Hardware(ran.backend, world, len(shape), min(shape), outside=where, even=len(set(shape)) == 1)
    may_set = _may_set(job)
    gpus = _used(job, may_set)
    if isinstance(gpus, Missing):
        return gpus
    return Hardware(
        ran.backend,
        world,
        len(shape),
        min(shape),
        inside=_inside(job, gpus, alone=max(shape) == 1),
        outside=where,
        even=len(set(shape)) == 1,
        settings=_slowing(job, may_set),
    )


def _slowing(job: Job, may_set: Sequence[RankFacts]) -> dict[str, str]:
    """Return the variables that may slow down NCCL, as the ranks set them."""
    settings = (of_rank(job, rank) for rank in may_set)
    return {name: value for found in settings for name in SLOWING if (value := found.get(name))}


def _may_set(job: Job) -> list[RankFacts]:
    """Return the ranks that may set a variable that counts here; where any reads a file of NCCL's, all of them."""
    filed, names = any(process.nccl_files for process in job.processes), frozenset((*SLOWING, _HOST_ID))
    return [rank for rank in job.ranks if filed or not names.isdisjoint(rank.environment)]


def _used(job: Job, may_set: Sequence[RankFacts]) -> dict[str, Sequence[Gpu]] | Missing:
    """Return the GPUs that the ranks of each node used, by node key."""
    found: dict[str, Sequence[Gpu]] = {}
    regrouped = any(value_of(job, rank, _HOST_ID) for rank in may_set)
    for node in job.nodes:
        ranks = job.ranks_on(node)
        if not ranks:
            continue
        if regrouped:
            return Missing(reason="NCCL_HOSTID changes which ranks NCCL places on one node")
        names = [rank.run.gpu if rank.run and rank.run.gpu else rank.gpu for rank in ranks]
        used = _named(names, node.gpus.devices if isinstance(node.gpus, Gpus) else ())
        if len(used) < len(names):
            return Missing(reason=f"{node.name}: it is unknown which GPUs the ranks used")
        if len({gpu.index for gpu in used}) < len(used):
            return Missing(reason=f"{node.name}: several ranks share a GPU")
        if any(gpu.mig is True for gpu in used):
            return Missing(reason=f"{node.name}: GPUs are partitioned (MIG)")
        if len({gpu.pci for gpu in used}) < len(used):
            return Missing(reason=f"{node.name}: GPUs are partitions of a card")
        found[node.key] = used
    return found


def _named(names: Sequence[str | None], devices: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs with these UUIDs, without those that are not there."""
    if list(names) == [gpu.uuid for gpu in devices]:
        return list(devices)
    known = {gpu.uuid: gpu for gpu in devices}
    used = [gpu for name in names if name and (gpu := known.get(name))]
    if len(used) == len(names):
        return used
    # NVML writes a prefix that torch does not.
    bare = {uuid.removeprefix("GPU-"): gpu for uuid, gpu in known.items() if isinstance(uuid, str)}
    return [gpu for name in names if name and (gpu := bare.get(name.removeprefix("GPU-")))]


def _inside(job: Job, gpus: dict[str, Sequence[Gpu]], *, alone: bool) -> Inside | Missing | None:
    """Return the slowest node's links between GPUs, None with one rank per node."""
    if _one_domain(gpus):
        return Missing(reason="there is no model for nodes joined by NVLink (a multi-node NVLink domain)")
    if alone:
        return None
    ways = [_of_node(node, gpus[node.key]) for node in _kinds(job.nodes, gpus)]
    unknown = next((way for way in ways if isinstance(way, Missing)), None)
    if unknown is not None:
        return unknown
    known = [way for way in ways if isinstance(way, NvLinkWay | PcieWay)]
    if len({type(way) for way in known}) > 1:
        return Missing(reason="NVLink joins the GPUs of some nodes but not of others")
    return min(known, key=lambda way: way.rate)


def _kinds(nodes: Sequence[NodeFacts], gpus: dict[str, Sequence[Gpu]]) -> list[NodeFacts]:
    """Return the first of the nodes with several used GPUs on which all that `inside` looks at is the same."""
    first: dict[object, NodeFacts] = {}
    last: object = None
    for node in nodes:
        used, seen = gpus.get(node.key, ()), node.gpus
        if len(used) > 1 and isinstance(seen, Gpus):
            virtual = isinstance(node.pci, Pci) and node.pci.virtual
            links = tuple(map(_links, used))
            kind = seen.peer_access, seen.unread, len(seen.devices), virtual, links
            if kind != last:  # most nodes are of the kind before, and comparing is faster than hashing
                first.setdefault(kind, node)
                last = kind
    return list(first.values())


def _links(gpu: Gpu) -> object:
    """Return what `inside` looks at of a GPU; counters of errors are not among it."""
    if gpu.health is None:
        return gpu.index
    links, pcie = gpu.health.nvlinks, gpu.health.pcie
    kind = (links.active, links.remote, links.version, links.speed_MBps) if isinstance(links, NvLinks) else links
    return gpu.index, kind, pcie.max_generation, pcie.width, pcie.max_width


def _of_node(node: NodeFacts, used: Sequence[Gpu]) -> Inside | Missing:
    way = inside(node.gpus, used) if isinstance(node.gpus, Gpus) else Missing(reason="the GPUs were not checked")
    if isinstance(way, PcieWay) and isinstance(node.pci, Pci) and node.pci.virtual:
        return msgspec.structs.replace(way, virtual=True)
    return Missing(reason=f"{node.name}: {way.reason}") if isinstance(way, Missing) else way


def _one_domain(gpus: dict[str, Sequence[Gpu]]) -> bool:
    clusters: dict[tuple[str, int], set[str]] = {}
    for key, used in gpus.items():
        for gpu in used:
            fabric = gpu.health.fabric if gpu.health else None
            if isinstance(fabric, Fabric) and fabric.cluster:
                clusters.setdefault((fabric.cluster, fabric.clique), set()).add(key)
    return any(len(nodes) > 1 for nodes in clusters.values())
