"""GPUs and network adapters on the PCI bus, as sysfs shows them."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Whole


class PciPlace(Facts, frozen=True, omit_defaults=True):
    """A device's place in the node's PCI tree, as sysfs shows it."""

    path: tuple[str, ...]
    """From the root complex down: pci0000:15, 0000:15:01.0, …, 0000:1b:00.0. Empty if sysfs does not show it."""
    numa_node: Whole | None
    """None if the kernel does not know it (-1)."""
    cpus: str = ""
    """The CPUs next to a GPU, folded (0-15,32-47); empty if the kernel does not know them."""


class Nic(Facts, frozen=True, omit_defaults=True):
    """A network adapter that NCCL may use: an InfiniBand or RoCE device, or an Ethernet card."""

    name: str
    """mlx5_0, eth0."""
    place: PciPlace
    kind: Literal["ib", "ethernet"]
    """ib: listed in /sys/class/infiniband, over any link layer."""
    link_layer: str = ""
    """The link layer of an InfiniBand or RoCE device: InfiniBand or Ethernet."""
    active: bool = True
    """Whether a port is up."""
    ports: tuple[Count, ...] = ()
    """The active ports of an InfiniBand or RoCE device."""
    usable: bool = True
    """Whether the probing process may open its device file; a container may have only some."""
    rate_Gbps: Amount | None = None  # noqa: N815 the unit's own spelling
    """The rate of the fastest active port; None if not reported."""


class Pci(Facts, frozen=True, omit_defaults=True):
    """A node's GPUs and network adapters on the PCI bus."""

    gpus: dict[str, PciPlace]
    """GPUs of NVIDIA, else of AMD, by address (0000:1b:00.0), whether or not their driver lists them."""
    nics: tuple[Nic, ...]
    virtual: bool = False
    """Whether a hypervisor is present: it invents what it does not pass through."""
