"""The GPU of a rank in the report, and the CPUs and adapters next to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.pci import Pci, PciPlace
from distcheck.selection.pci import Distance, by_gpu

K = TypeVar("K")
_Nics: TypeAlias = "Mapping[str, tuple[str, Distance]]"
"""The names of the adapters next to GPUs and their distance, by the GPU's address."""


class RankGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The GPU that a rank will use; unknown fields are None."""

    index: int | None
    uuid: str
    pci: str | None
    name: str | None
    numa_node: int | None = None
    """The NUMA node next to it."""
    cpus: str | None = None
    """The CPUs next to it, folded."""
    nic: str | None = None
    """The network adapter next to it; several at the same distance are separated by commas."""
    nic_distance: Distance | None = None
    """PIX, PXB, PHB, NODE or SYS, as nvidia-smi topo -m names it."""


class IdleGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A GPU of a node whose processes have no ranks, so that none of them has a GPU; unknown fields are None."""

    node: str
    gpu: RankGpu
    memory_bytes: int | None
    memory_used_bytes: int | None
    temperature_celsius: int | None
    lost: bool


def nodes_without_ranks(job: Job) -> list[NodeFacts]:
    """Return the nodes none of whose processes has a rank, if the run looked at GPUs for ranks."""
    if "gpu" not in job.asked.looks or "node" in job.asked.looks:
        return []
    with_ranks = {node.key for rank, _, node in job.placed if rank.placement.rank is not None}
    return [node for node in job.nodes if node.key not in with_ranks]


def gpus_without_ranks(job: Job) -> Iterator[IdleGpu]:
    """Yield the GPUs of these nodes."""
    for node in nodes_without_ranks(job):
        rows = _gpus(node, {})
        for gpu in node.gpus.devices if isinstance(node.gpus, Gpus) else ():
            known = rows.get(gpu.uuid) if isinstance(gpu.uuid, str) else None
            yield IdleGpu(
                node.name,
                known or _row(gpu, "?", {}, {}),
                _known(gpu.memory_bytes),
                _known(gpu.memory_used_bytes),
                _known(gpu.health.temperature_celsius if gpu.health else None),
                lost=bool(gpu.lost),
            )


def _known(fact: K | Missing | None) -> K | None:
    return None if isinstance(fact, Missing) else fact


def gpus_of(nodes: Iterable[NodeFacts]) -> Iterator[tuple[NodeFacts, dict[str, RankGpu]]]:
    """Yield each node with its GPUs by UUID, and by the UUIDs of their MIG instances."""
    tree: object = None
    near: _Nics = {}
    for node in nodes:
        if node.pci != tree:  # in most jobs it is the same on all nodes, and comparing is faster than hashing
            tree, near = node.pci, _nics(node.pci) if isinstance(node.pci, Pci) else {}
        yield node, _gpus(node, near)


def _nics(tree: Pci) -> _Nics:
    near = by_gpu(tree).items()
    return {address: (",".join([nic.name for nic in found.nics]), found.distance) for address, found in near}


def _gpus(node: NodeFacts, near: _Nics) -> dict[str, RankGpu]:
    places = node.pci.gpus if isinstance(node.pci, Pci) else {}
    rows: dict[str, RankGpu] = {}
    for gpu in node.gpus.devices if isinstance(node.gpus, Gpus) else ():
        for name in (*gpu.mig_uuids, gpu.uuid) if isinstance(gpu.uuid, str) else gpu.mig_uuids:
            rows[name] = _row(gpu, name, places, near)
    return rows


def _row(gpu: Gpu, name: str, places: Mapping[str, PciPlace], near: _Nics) -> RankGpu:
    address = gpu.pci if isinstance(gpu.pci, str) else ""
    numa, cpus = (_known(gpu.health.numa_node), _known(gpu.health.cpus)) if gpu.health else (None, None)
    if (numa is None or not cpus) and (place := places.get(address)):  # NVML hides it in containers
        numa, cpus = place.numa_node if numa is None else numa, cpus or place.cpus
    return RankGpu(
        gpu.index, name, address or None, _known(gpu.name), numa, cpus or None, *near.get(address, (None, None))
    )
