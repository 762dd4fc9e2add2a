"""Rules about what containers and virtual machines do to the ranks of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.pci import Pci
from distcheck.facts.ranges import numbered
from distcheck.rules import Outcome, rule
from distcheck.rules.host.shown import each_node, limited
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.wording import found, grouped, named, numbers_of
from distcheck.selection.nccl_settings import number_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts

_CUMEM_SINCE = (2, 19)
"""Since then NCCL shares memory by file descriptors where the driver can, and needs CUDA's IPC no more."""
_BELOW_ROOT = 3
"""Places of a GPU's path in the PCI tree without a switch: the root complex, a port of it, the GPU."""


@rule("node", also=("collectives", "isolation"), severity="warning", scope="rank")
def host_ptrace_pidns(job: Job) -> Iterator[Outcome]:
    """Ranks of one host are in different containers that cannot open each other's GPU memory.

    CUDA's IPC handles work only between processes with the same PID and IPC namespaces: NCCL reports
    ``cudaIpcOpenMemHandle failed`` or ``invalid resource handle``, or falls back to slower transports.

    Found by the namespaces of the processes with the same boot id and host name. A warning where NCCL uses such
    handles: before 2.19, or with NCCL_CUMEM_ENABLE=0. Otherwise an info finding; torch's own sharing of CUDA tensors
    still needs them. Only for jobs that use NCCL.

    Fix: Run the ranks of a host in one container, or in the host's namespaces.

        # add to docker run: --ipc=host --pid=host
        ls -l /proc/self/ns

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-cumem-enable
    """
    if job.backend != "nccl":
        return
    known = [its for its in limited(job) if its.limits.namespaces and isinstance(its.node.boot_id, str)]
    for here in grouped(known, lambda its: (its.node.boot_id, its.node.hostname)).values():
        spaces = grouped(here, lambda its: tuple(its.limits.namespaces.get(name, "") for name in ("ipc", "pid")))
        if len(spaces) < 2:
            continue
        ranks = [its.rank for its in here]
        old = any(
            () < version_of(nccl_of(job, r)) < _CUMEM_SINCE or number_of(job, r, "NCCL_CUMEM_ENABLE", -2) == 0
            for r in ranks
        )
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} share a host and are in {len(spaces)} sets of IPC and PID namespaces; expected one, "
            "for CUDA's IPC handles",
            severity="warning" if old else "info",
            evidence={
                " ".join(pair): numbered(numbers_of([its.rank for its in group]))
                for pair, group in list(spaces.items())[:8]
            },
        )


@rule("node", also=("collectives", "isolation"), severity="info", scope="node", of=each_node)
def host_vm_topology(job: Job, node: NodeFacts) -> str | None:
    """A virtual machine hides which GPUs and adapters share a PCIe switch.

    NCCL then sees all devices as equally near and chooses adapters and rings badly, unless a topology file describes
    the machine. Cloud providers supply such a file for their virtual machines.

    Found where a hypervisor is present, several GPUs are below the PCI root without a switch, and neither
    NCCL_TOPO_FILE nor /var/run/nvidia-topologyd/virtualTopology.xml gives a topology. Only for jobs that use NCCL
    between nodes.

    Fix: Set NCCL_TOPO_FILE to the topology file that the cloud provider supplies for this machine.

        nvidia-smi topo -m
        ls /opt/microsoft/*topo*.xml /var/run/nvidia-topologyd/

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file
    """
    if job.backend != "nccl" or len(job.nodes) < 2 or not isinstance(node.pci, Pci) or not node.pci.virtual:
        return None
    gpus = node.pci.gpus.values()
    if len(gpus) < 2 or any(len(place.path) > _BELOW_ROOT for place in gpus):
        return None
    if any("NCCL_TOPO_FILE" in {*rank.environment, *job.process_of(rank).named_paths} for rank in job.ranks_on(node)):
        return None
    return "a virtual machine that shows no PCIe switch, and NCCL has no topology file"
