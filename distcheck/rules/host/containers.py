"""Rules about what containers, virtual machines and memory policies do to the ranks of a host."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.host import HostFacts
from distcheck.facts.pci import Pci
from distcheck.facts.ranges import numbered, unfold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.host.shown import limited
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.nccl.settings import alike
from distcheck.rules.wording import found, grouped, listed, named, nodes_of, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_CUMEM_SINCE = (2, 19)
"""Since then NCCL shares memory by file descriptors where the driver can, and needs CUDA's IPC no more."""
_BELOW_ROOT = 3
"""Places of a GPU's path in the PCI tree without a switch: the root complex, a port of it, the GPU."""
_TOPOLOGY = "NCCL_TOPO_FILE"
_MEANINGS = {"ipc": "IPC", "pid": "PID"}


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def host_ptrace_pidns(job: Job) -> Iterator[Outcome]:
    """Ranks of one host are in different containers that cannot open each other's GPU memory.

    CUDA's IPC handles work only between processes with the same PID and IPC namespaces: NCCL reports
    ``cudaIpcOpenMemHandle failed`` or ``invalid resource handle``, or falls back to slower transports.

    Found by the namespaces of the processes with the same boot id and host name. A warning where NCCL uses such
    handles: before 2.19, or with NCCL_CUMEM_ENABLE=0. Otherwise an info finding; torch's own sharing of CUDA tensors
    still needs them. Only for jobs that use NCCL.

    Fix: run the ranks of a host in one container, or ``docker run --ipc=host --pid=host``.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-cumem-enable
    """
    if job.backend != "nccl":
        return
    places = {(node.boot_id, node.hostname, *limits.namespaces.values()) for _, node, limits in limited(job)}
    split = {host for host, number in Counter(place[:2] for place in places).items() if number > 1}
    known = [
        rank
        for rank, node, limits in (limited(job) if split else ())
        if limits.namespaces and isinstance(node.boot_id, str) and (node.boot_id, node.hostname) in split
    ]
    if not known:
        return
    legacy = {id(r) for group in alike(job) for r in group.ranks if group.number("NCCL_CUMEM_ENABLE", -2) == 0}
    for ranks in grouped(known, lambda r: (job.node_of(r).boot_id, job.node_of(r).hostname)).values():
        several = {
            name: spaces
            for name in _MEANINGS
            if len(spaces := grouped(ranks, lambda r, name=name: _namespaces(job, r).get(name, ""))) > 1  # type: ignore[misc]
        }
        if not several:
            continue
        old = any(id(r) in legacy or () < version_of(nccl_of(job, r)) < _CUMEM_SINCE for r in ranks)
        what = " and ".join(f"{len(spaces)} {_MEANINGS[name]}" for name, spaces in several.items())
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} share a host and have {what} namespaces; expected one, for CUDA's IPC handles",
            Fix(
                "Run the ranks of a host in one container, or in the host's namespaces.",
                ("# add to docker run: --ipc=host --pid=host", "ls -l /proc/self/ns"),
            ),
            severity="warning" if old else "info",
            evidence={
                f"{name} {space}": numbered(numbers_of(group))
                for name, spaces in several.items()
                for space, group in list(spaces.items())[:8]
            },
        )


def _namespaces(job: Job, rank: RankFacts) -> dict[str, str]:
    limits = job.process_of(rank).limits
    return {} if limits is None else limits.namespaces


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def perf_numa_interleaved(job: Job) -> Iterator[Outcome]:
    """The ranks' memory is spread over NUMA nodes, or is far from their CPUs.

    Every copy between a rank and its GPU or adapter then crosses the link between the sockets, as do the ranks' own
    loads. The cause is ``numactl --interleave`` or ``--membind`` around the launcher.

    Found by the memory policy of the ranks' processes (get_mempolicy) and the CPUs of each NUMA node: a warning if the
    policy names only NUMA nodes without a CPU of the rank, an info finding if it interleaves over several.

    Fix: start the ranks without numactl, or bind CPUs and memory together: ``torchrun --numa-binding=node``.

    See: https://man7.org/linux/man-pages/man2/get_mempolicy.2.html
    """
    spread = [rank for rank, _, limits in limited(job) if limits.memory_policy]
    faults = [(rank, far) for rank in spread if (far := _far(job, rank)) is not None]
    for (policy, far, cpus), pairs in grouped(
        faults, lambda pair: (_policy(job, pair[0]), pair[1], pair[0].cpu_list)
    ).items():
        ranks = [rank for rank, _ in pairs]
        how, _, nodes = policy.partition(" ")
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the memory policy is {how} on NUMA node {nodes}"
            + (f"; the ranks run on CPUs {cpus}, which belong to other NUMA nodes" if far else ""),
            Fix(
                "Start the ranks without numactl, or bind CPUs and memory together.",
                ("numactl --show", "# add to torchrun: --numa-binding=node"),
            ),
            severity="warning" if far else "info",
            evidence={"policy": policy, "cpus": cpus, "nodes": listed(nodes_of(job, ranks), most=16)},
        )


def _policy(job: Job, rank: RankFacts) -> str:
    limits = job.process_of(rank).limits
    return "" if limits is None else limits.memory_policy


def _far(job: Job, rank: RankFacts) -> bool | None:
    """Return whether a rank's memory is far from its CPUs; None if its policy is harmless or nothing is known."""
    host = job.node_of(rank).host
    if not isinstance(host, HostFacts) or isinstance(host, Missing) or not host.numa_cpus:
        return None
    how, _, nodes = _policy(job, rank).partition(" ")
    chosen = unfold(nodes)
    near = {number for number, cpus in host.numa_cpus.items() if unfold(cpus) & unfold(rank.cpu_list)}
    if chosen and near and not chosen & near:
        return True
    return False if how == "interleave" and len(chosen) > 1 else None


@rule("node", also=("collectives", "isolation"), severity="info", scope="node")
def host_vm_topology(job: Job) -> Iterator[Outcome]:
    """A virtual machine hides which GPUs and adapters share a PCIe switch.

    NCCL then sees all devices as equally near and chooses adapters and rings badly, unless a topology file describes
    the machine. Cloud providers supply such a file for their virtual machines.

    Found where a hypervisor is present, several GPUs are below the PCI root without a switch, and neither
    NCCL_TOPO_FILE nor /var/run/nvidia-topologyd/virtualTopology.xml gives a topology. Only for jobs that use NCCL
    between nodes.

    Fix: set NCCL_TOPO_FILE to the provider's file.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file
    """
    if job.backend != "nccl" or len(job.nodes) < 2:
        return
    flat = [node for node in job.nodes if isinstance(node.pci, Pci) and node.pci.virtual and _flat(node.pci)]
    bare = [node for node in flat if not any(_has_topology(job, rank) for rank in job.ranks_on(node))]
    if bare:
        names = tuple(node.name for node in bare)
        yield Fault(
            nodes=names,
            message=f"{listed(names)}: a virtual machine that shows no PCIe switch, and NCCL has no topology file",
            fix=Fix(
                "Use the topology file that the cloud provider supplies for this machine.",
                ("nvidia-smi topo -m", "ls /opt/microsoft/*topo*.xml /var/run/nvidia-topologyd/"),
            ),
        )


def _flat(pci: Pci) -> bool:
    """Return whether several GPUs are below the PCI root without a switch."""
    return len(pci.gpus) > 1 and all(len(place.path) <= _BELOW_ROOT for place in pci.gpus.values())


def _has_topology(job: Job, rank: RankFacts) -> bool:
    return _TOPOLOGY in rank.environment or _TOPOLOGY in job.process_of(rank).named_paths
