"""How far a node's network adapters are from its GPUs, by their places in the PCI tree.

Distances have the names of ``nvidia-smi topo -m``:

| name | the path between two devices |
|---|---|
| PIX | below one PCIe switch |
| PXB | over several PCIe switches, without the CPU |
| PHB | through the CPU's root complex to which both belong |
| NODE | between two root complexes of one NUMA node |
| SYS | between NUMA nodes |

A hypervisor that makes up the tree shows a switch only if it passes one through; every other path is then unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from distcheck.facts.pci import Nic, Pci, PciPlace

Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
DISTANCES: tuple[Distance, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""The shortest first."""
ON_SWITCH: tuple[Distance, ...] = ("PIX", "PXB")
"""Paths that avoid the CPU."""
_BELOW_ROOT = 3
"""Root complex, root port, device: the shortest path of a card in a slot."""


class Near(NamedTuple):
    """The adapters at the smallest distance from a GPU."""

    distance: Distance
    nics: tuple[Nic, ...]


def distance(one: PciPlace, other: PciPlace, *, virtual: bool = False) -> Distance | None:
    """Return how far two devices are from each other, None if unknown.

    A device directly at its root complex, without any port, was put there by a hypervisor, as every GPU of Azure's ND
    H100 v5 is, or is part of the chipset.
    """
    if min(len(one.path), len(other.path)) < _BELOW_ROOT:
        return None
    shared = 0
    for here, there in zip(one.path, other.path, strict=False):
        if here != there:
            break
        shared += 1
    if shared > 1:
        # A switch is two bridges deep: the shared port to the CPU, and one port for each device.
        return "PIX" if max(len(one.path), len(other.path)) - shared <= 2 else "PXB"
    if virtual:
        return None
    if shared == 1:
        return "PHB"
    if one.numa_node is None or other.numa_node is None:
        return None
    return "NODE" if one.numa_node == other.numa_node else "SYS"


def nearest(gpu: PciPlace, nics: tuple[Nic, ...], *, virtual: bool = False) -> Near | None:
    """Return the usable adapters at the smallest distance from a GPU, None if unknown.

    An adapter without a place on the PCI bus is skipped. An adapter at an unknown distance could be the nearest, unless
    others are on the GPU's own switches.
    """
    ways = [
        (nic, distance(gpu, nic.place, virtual=virtual)) for nic in nics if nic.active and nic.usable and nic.place.path
    ]
    known = [way for _, way in ways if way is not None]
    best = min(known, key=DISTANCES.index, default=None)
    if best is None or (best not in ON_SWITCH and len(known) < len(ways)):
        return None
    return Near(best, tuple(nic for nic, way in ways if way == best))


def fabric_nics(pci: Pci) -> tuple[Nic, ...]:
    """Return the adapters that NCCL uses: usable InfiniBand and RoCE, else the Ethernet cards."""
    fast = tuple(nic for nic in pci.nics if nic.kind == "ib")
    return fast if any(nic.active and nic.usable for nic in fast) else tuple(n for n in pci.nics if n.kind != "ib")


def by_gpu(pci: Pci) -> Mapping[str, Near]:
    """Return the nearest adapters by GPU address.

    If GPUs and the adapters nearest to all of them are equal in number, each GPU gets one, in the order of their
    addresses.
    """
    return _paired(tuple(pci.gpus.items()), fabric_nics(pci), virtual=pci.virtual)


@lru_cache(256)
def _paired(gpus: tuple[tuple[str, PciPlace], ...], nics: tuple[Nic, ...], *, virtual: bool) -> dict[str, Near]:
    near = {address: nearest(place, nics, virtual=virtual) for address, place in gpus}
    groups: dict[Near, list[str]] = {}
    for address in sorted(near):
        found = near[address]
        if found is not None:
            groups.setdefault(found, []).append(address)
    paired: dict[str, Near] = {}
    for found, sharing in groups.items():
        in_order = sorted(found.nics, key=lambda nic: (nic.place.path[-1], nic.name))
        own = len(sharing) == len(in_order)
        paired |= {gpu: Near(found.distance, (in_order[n],)) if own else found for n, gpu in enumerate(sharing)}
    return paired
