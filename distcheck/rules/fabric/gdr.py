"""Rules about GPUDirect RDMA: modules and drivers, on all or some nodes; ACS."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.nccl import NcclLog
from distcheck.facts.pci import Pci
from distcheck.rules import Answer, rule
from distcheck.rules.fabric.lines import View, each_view, views
from distcheck.rules.finding import Fault
from distcheck.rules.wording import brief, listed, once
from distcheck.selection.pci import distance

if TYPE_CHECKING:
    pass

_DMABUF_KERNEL = (5, 12)
_DESKTOP = re.compile(r"GeForce|\bRTX\b|\bTITAN\b|Quadro")


def _direct(view: View) -> bool | None:
    """Return whether a node's adapters can access GPU memory, None if unknown or no matter."""
    gpus = view.node.gpus.devices if isinstance(view.node.gpus, Gpus) else ()
    if view.node.accelerator != "nvidia" or not view.taken or any(_desktop(gpu.name) for gpu in gpus):
        return None
    if view.adapters.peer_memory:
        return True
    if view.adapters.open_driver is None:
        return None
    return view.adapters.open_driver and _kernel(view.node.kernel) >= _DMABUF_KERNEL


@lru_cache(64)
def _desktop(name: str | Missing) -> bool:
    return isinstance(name, str) and _DESKTOP.search(name) is not None


@lru_cache(64)
def _kernel(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])


@once
def _able(job: Job) -> list[str]:
    """Return the nodes whose adapters can access GPU memory."""
    return [view.node.name for view in views(job) if _direct(view)]


@once
def _logged(job: Job) -> bool:
    """Whether NCCL itself reported what it uses; gdr-not-used then judges."""
    return any(rank.run and isinstance(rank.run.nccl, NcclLog) and rank.run.nccl.gdr is not None for rank in job.ranks)


@rule("peers", severity="warning", scope="node", also=("node",), owner="admin", of=each_view)
def gdr_module_missing(job: Job, view: View) -> Answer:
    """GPUDirect RDMA is not available: nvidia-peermem is not loaded, and DMA-BUF is not supported.

    Data between nodes then goes through host memory, at a half to a quarter of the bandwidth. NCCL's log lacks
    ``/GDRDMA`` and says ``GPU Direct RDMA Disabled for HCA 0 'mlx5_0'``.

    Found where none of the modules that NCCL looks for is loaded, and NVIDIA's driver is not the open one or the
    kernel is older than 5.12. Desktop GPUs, which do not support it, are left out. After collectives NCCL's own log
    decides instead (gdr-not-used).

    Fix: Load nvidia-peermem at every boot, or install the open kernel modules. If it does not load, install the GPU
    driver again after MLNX_OFED or DOCA.

        sudo modprobe nvidia-peermem
        echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf
        cat /proc/driver/nvidia/version

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct-rdma
    """
    if _direct(view) is not False or _able(job) or _logged(job):
        return None
    words = "no GPUDirect RDMA: nvidia_peermem is not loaded, and the driver or kernel has no DMA-BUF"
    return Fault(words, evidence={view.node.name: _shown(view)})


def _shown(view: View) -> str:
    return f"kernel {view.node.kernel}, open driver: {'yes' if view.adapters.open_driver else 'no'}"


@rule("peers", severity="warning", scope="node", owner="admin", of=each_view)
def gdr_on_some_nodes(job: Job, view: View) -> Answer:
    """GPUDirect RDMA is available on some nodes only.

    The other nodes send through host memory, at a half to a quarter of the bandwidth, and the whole job waits for them.

    Found by the modules that NCCL looks for and by the driver's kind, compared between the nodes.

    Fix: Load nvidia-peermem at every boot of these nodes.

        sudo modprobe nvidia-peermem
        echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf
        cat /proc/driver/nvidia/version

    See: https://github.com/NVIDIA/nccl/issues/897
    """
    if _direct(view) is not False or not _able(job):
        return None
    words = f"no GPUDirect RDMA (nvidia_peermem is not loaded); {listed(_able(job))} can use it"
    return Fault(words, evidence={view.node.name: _shown(view)})


@rule("peers", severity="info", scope="node", owner="admin", of=each_view)
def gdr_acs_slow(_: Job, view: View) -> Answer:
    """PCIe access control (ACS) may send GPUDirect RDMA through the CPU instead of the switch.

    With ACS on, a switch forwards what a GPU and an adapter exchange to the CPU's root complex: GPUDirect RDMA is then
    slower than without, and PCIe P2P can hang.

    Found as a hint without root: on a machine that is not virtual, a GPU and an adapter on one switch are in different
    IOMMU groups, which the kernel makes where ACS separated them at boot. If ACS was turned off later, this remains:
    an info finding. Only root can read the ACS bits.

    Fix: Have root look at the switches' ACS bits (SrcValid+ where it is on), and turn them off on bare metal.

        sudo lspci -vvv | grep ACSCtl
        readlink /sys/bus/pci/devices/*/iommu_group

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs
    """
    pci, groups = view.node.pci, view.adapters.iommu_groups
    if not isinstance(pci, Pci) or pci.virtual or not groups:
        return None
    pairs = [
        f"{gpu} and {nic.name}"
        for gpu, place in pci.gpus.items()
        for nic in pci.nics
        if nic.place.path and distance(place, nic.place) == "PIX"
        if groups.get(gpu) and groups.get(nic.place.path[-1]) and groups[gpu] != groups[nic.place.path[-1]]
    ]
    if not pairs:
        return None
    words = f"ACS separated {brief(pairs[0], 60)} on one PCIe switch at boot; if it is still on, GPUDirect RDMA is slow"
    return Fault(words, evidence={view.node.name: pairs[:8]})
