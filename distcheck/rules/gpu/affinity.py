"""Rules about how far a rank's GPU is from its CPUs and its adapter."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.pci import Pci
from distcheck.facts.ranges import unfold
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.assigned import WORDS, Routes, Take, each_take, merged, reach, routes, takes_by_node
from distcheck.rules.gpu.nodes import name_of, nodes_unread, not_seen
from distcheck.rules.job.nccl_remedies import removal
from distcheck.rules.wording import are, brief, grouped, listed, once, starter
from distcheck.selection.adapters import HCA
from distcheck.selection.pci import Near, by_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator


_TOPOLOGY = "nvidia-smi topo -m"
_MOST = 16
"""Ranks that a finding's evidence shows."""


@rule("gpu", severity="warning", scope="rank", of=each_take)
def gpu_far_from_cpu(_: Job, take: Take) -> Answer:
    """A rank is pinned to CPUs that are not next to its GPU.

    Every copy from the CPU to the GPU and every kernel launch then crosses the link between the sockets. The rank is
    slower than the others, and all ranks wait for it.

    Found by comparing the CPUs on which the rank may run with those that NVML, or else sysfs, lists next to its GPU. A
    rank that may run on every CPU is not pinned and is not reported. The rule also finds a scheduler that gives a job a
    few CPUs of one socket and a GPU of the other.

    Fix: bind each rank to its GPU's NUMA node: ``torchrun --numa-binding=node``, ``srun --cpu-bind=...``, ``#SBATCH
    --gres-flags=enforce-binding``, or ``numactl --cpunodebind``.

    See: https://docs.pytorch.org/docs/stable/elastic/numa.html, https://slurm.schedmd.com/sbatch.html
    """
    own, near = unfold(take.rank.cpu_list), unfold(take.cpus)
    if not own or len(own) >= (take.node.cpus or 0) or not near or not near.isdisjoint(own):
        return None
    words = f"bound to CPUs {take.rank.cpu_list}; the CPUs next to its {name_of(take.gpu)} are {take.cpus}"
    return Fault(words, _binding(take))


def _binding(take: Take) -> Fix:
    node = take.place.numa_node if take.place is not None else None
    by_hand = f"# prefix the rank's command with: numactl --cpunodebind={node}" if node is not None else _TOPOLOGY
    by_torchrun = "# add to torchrun: --numa-binding=node"
    if starter(take.rank) == "srun":
        return Fix(
            "Have Slurm allocate the CPUs next to the job's GPUs, and bind each task to the CPUs next to its GPU.",
            ("#SBATCH --gres-flags=enforce-binding", "export SLURM_CPU_BIND=verbose,ldoms", by_hand),
        )
    if starter(take.rank) == "torchrun":
        return Fix("Have torchrun bind each rank to the NUMA node of its GPU.", (by_torchrun, by_hand))
    return Fix(
        "Bind each rank to the NUMA node of its GPU, or remove the binding.",
        (by_hand, by_torchrun, "export SLURM_CPU_BIND=none"),
    )


@rule("gpu", severity="warning", scope=("rank", "node"))
def gpu_far_from_nic(job: Job) -> Iterator[Outcome]:
    """NCCL uses a network adapter far from the GPU although a nearer one exists.

    NCCL uses GPUDirect RDMA only between devices on common PCIe switches. Otherwise the data goes through the CPU,
    mostly through main memory, at a fraction of the adapter's bandwidth, and several GPUs share it.

    Found by the PCI tree in sysfs, in two cases. Either NCCL_IB_HCA, read as NCCL reads it, excludes an active adapter
    that is nearer than all those it allows, of the same link type and at least as fast. Or the nearest adapter has no
    port up, while most GPUs of this model have theirs up; `net` and `gate` report this as ib-port-down. The rule is
    silent where a hypervisor makes up the PCI tree,
    with NCCL_NET_PLUGIN or NCCL_TOPO_FILE, without NCCL's InfiniBand transport, and on a single node.

    Fix: unset NCCL_IB_HCA or have it name the adapter next to every GPU; bring the port up.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    yield from not_seen(job)
    if len(job.nodes) < 2:
        return
    nodes = [here[0].node for here in takes_by_node(job).values()]
    unread = ((node, node.pci.reason) for node in nodes if isinstance(node.pci, Missing))
    yield from nodes_unread(job, unread, required=False)
    excluded, down = [], []
    for take, way in routes(job):
        if way.left_out is not None:
            words = f"{_gets(take, way)}, although {_are(way.left_out)} {WORDS[way.left_out.distance]}"
            excluded.append((take, Fault(words)))
        elif way.down is not None and take.node.infiniband is None and _usual(job, take, way.down):
            words = f"{_gets(take, way)}; {_are(way.down)} {WORDS[way.down.distance]} but down"
            down.append((take, Fault(words, _port_up(quote(way.down.nics[0].name)), scope="node", owner="admin")))
    for take, fault in merged(job, excluded):
        yield msgspec.structs.replace(fault, fix=_list_of(job, take))
    yield from (fault for _, fault in merged(job, down))


def _port_up(adapter: str) -> Fix:
    return Fix(
        "Bring the port up; until then exclude the node, or accept the slower path.",
        (f"ibstat {adapter}", f"rdma link show {adapter}/1", f"cat /sys/class/infiniband/{adapter}/ports/*/phys_state"),
    )


def _gets(take: Take, found: Routes) -> str:
    by_hand = f"with {HCA}={brief(found.value, 40)} " if found.value else ""
    names, where = listed([nic.name for nic in found.got.nics], most=2), WORDS[found.got.distance]
    return f"{by_hand}{name_of(take.gpu)} reaches the network through {names} {where}"


def _are(near: Near) -> str:
    return f"{listed([nic.name for nic in near.nics], most=2)} {are(near.nics)}"


@once
def _reached(job: Job) -> dict[str | Missing, Counter[int]]:
    """Return by model how many GPUs have their adapter at which reach."""
    models = grouped(routes(job), lambda item: item[0].gpu.name)
    return {name: Counter(reach(found.got.distance) for _, found in alike) for name, alike in models.items()}


def _usual(job: Job, take: Take, wanted: Near) -> bool:
    """Return whether most other GPUs of this model have an adapter at least as near as this one lacks."""
    others = _reached(job)[take.gpu.name]
    near = sum(count for distance, count in others.items() if distance <= reach(wanted.distance))
    return 2 * near > others.total() - 1


def _list_of(job: Job, take: Take) -> Fix:
    near = by_gpu(take.node.pci) if isinstance(take.node.pci, Pci) else {}
    names = dict.fromkeys(nic.name for found in near.values() for nic in found.nics)
    return Fix(
        f"Unset {HCA} so that NCCL chooses, or have it name the adapter next to every GPU.",
        (removal(job, take.rank, HCA), f"export {HCA}={quote('=' + ','.join(names))}", _TOPOLOGY),
    )
