"""The links between a job's nodes: InfiniBand and RoCE adapters, or one TCP link."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distcheck.expectation.hardware import Adapters, Outside, Socket
from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.network import Link
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.selection import adapters, interfaces
from distcheck.selection.nccl_settings import of_rank
from distcheck.selection.pci import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts

_MADE_UP = frozenset({"virtio_net", "vmxnet3", "hv_netvsc", "vif", "ena", "gve"})
"""Drivers of virtual machines' adapters (KVM, VMware, Hyper-V, Xen, AWS, Google): what they report is no limit."""


def outside(job: Job, backend: str) -> Outside | Missing:
    """Return the slowest node's links to the others."""
    nodes = [node for node in job.nodes if job.ranks_on(node)]
    boots = [node.boot_id for node in nodes if isinstance(node.boot_id, str)]
    if len(set(boots)) < len(boots):
        return Missing(reason="several nodes are one machine and share its network adapters")
    if backend == "gloo":
        return _slowest([_socket(job, node, backend) for node in nodes])
    found = [_adapters(job, node) for node in _kinds(job, nodes)]
    unknown = next((each for each in found if isinstance(each, Missing)), None)
    if unknown is not None:
        return unknown
    least = [each for each in found if isinstance(each, Adapters)]
    if not least:
        return _slowest([_socket(job, node, backend) for node in nodes])
    if len(least) < len(found):
        return Missing(reason="some nodes have InfiniBand or RoCE adapters and others have none")
    slowest = min(least, key=lambda each: each.rate)
    return Adapters(
        slowest.number,
        slowest.rate_Gbps,
        min(each.there_Gbps for each in least),
        infiniband=all(each.infiniband for each in least),
        exact=all(each.exact for each in least) and len({(each.number, each.rate_Gbps) for each in least}) == 1,
    )


def _kinds(job: Job, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return the first node of each kind: nodes with all that `_adapters` looks at in common have the same adapters."""
    first: dict[object, NodeFacts] = {}
    last: object = None
    for node in nodes:
        ranks = job.ranks_on(node)
        seen = (node.pci.nics, node.pci.virtual) if isinstance(node.pci, Pci) else node.pci
        kind = seen, _places(node), of_rank(job, ranks[0]).get(adapters.HCA), len(ranks)
        if kind != last:  # most nodes are of the kind before, and comparing is faster than hashing
            first.setdefault(kind, node)
            last = kind
    return list(first.values())


def _places(node: NodeFacts) -> tuple[PciPlace | None, ...]:
    """Return the place of each GPU of a node, None where sysfs does not show it."""
    places = node.pci.gpus if isinstance(node.pci, Pci) else {}
    devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
    return tuple(None if isinstance(gpu.pci, Missing) else places.get(gpu.pci) for gpu in devices)


def _adapters(job: Job, node: NodeFacts) -> Adapters | Missing | None:
    """Return the adapters that NCCL may use on a node, None if it has none."""
    if not isinstance(node.pci, Pci):
        why = f": {node.pci.reason}" if isinstance(node.pci, Missing) else ""
        return Missing(reason=f"the network adapters were not checked{why}")
    ranks = job.ranks_on(node)
    value = of_rank(job, ranks[0]).get(adapters.HCA)
    there = [nic for nic in node.pci.nics if nic.kind == "ib" and nic.active]
    nics = tuple(nic for nic in there if nic.usable and adapters.chosen(nic, value))
    if not nics:
        return None
    silent = sorted(nic.name for nic in there if not nic.rate_Gbps)
    if silent:
        return Missing(reason=f"{node.name}: {silent[0]} does not report its rate")
    found = _counted(nics, _places(node), ranks=len(ranks), virtual=node.pci.virtual)
    return msgspec.structs.replace(
        found, there_Gbps=sum((nic.rate_Gbps or 0.0) * max(1, len(nic.ports)) for nic in there)
    )


def _counted(nics: tuple[Nic, ...], places: tuple[PciPlace | None, ...], *, ranks: int, virtual: bool) -> Adapters:
    """Return the fastest of the adapters for the GPUs; with only some GPUs in use, their share."""
    rails, gpus = _rails(nics, places, virtual=virtual), len(places)
    best = max(nic.rate_Gbps or 0.0 for nic in rails)
    fast = [nic for nic in rails if nic.rate_Gbps == best]
    number = len(fast) if ranks >= gpus else max(1, len(fast) * ranks // gpus)
    # Storage adapters may look like the others, so only a number that fits the number of GPUs is certain.
    fits = gpus > 0 and (len(fast) % gpus == 0 or gpus % len(fast) == 0)
    return Adapters(
        number,
        best,
        infiniband=all(nic.link_layer == "InfiniBand" for nic in fast),
        exact=fits and len(fast) == len(nics) and ranks == gpus and all(map(adapters.served, fast)),
    )


def _rails(nics: tuple[Nic, ...], places: tuple[PciPlace | None, ...], *, virtual: bool) -> Sequence[Nic]:
    """Return the adapters nearest to the GPUs or, where the distance is unknown, those of the faster link layer.

    NCCL takes the nearest ones, and does not connect an InfiniBand port to an Ethernet port.
    """
    near = [nearest(place, nics, virtual=virtual) if place else None for place in places]
    known = [found.nics for found in near if found]
    if known and len(known) == len(near):
        return list({nic.name: nic for found in known for nic in found}.values())
    layers: dict[str, list[Nic]] = {}
    for nic in nics:
        layers.setdefault(nic.link_layer, []).append(nic)
    return max(layers.values(), key=lambda alike: sum(nic.rate_Gbps or 0.0 for nic in alike))


def _slowest(links: Sequence[Socket | Missing]) -> Socket | Missing:
    unknown = next((link for link in links if isinstance(link, Missing)), None)
    if unknown is not None:
        return unknown
    return min((link for link in links if isinstance(link, Socket)), key=lambda link: link.rate)


def _socket(job: Job, node: NodeFacts, backend: str) -> Socket | Missing:
    """Return the one link that Gloo or NCCL's sockets use on a node."""
    ranks, facts = job.ranks_on(node), node.network
    if facts is None or isinstance(facts.links, Missing) or isinstance(node.interfaces, Missing) or not ranks:
        return Missing(reason="the speed of the nodes' network links was not checked; run distcheck gate")
    environment = ranks[0].environment
    if backend == "gloo":
        taken = interfaces.gloo(node.interfaces, environment, facts.own_name_binds)
    else:
        taken = interfaces.nccl(node.interfaces, interfaces.settings(environment, facts.nccl_files))
    if isinstance(taken, Missing) or len(taken) != 1:
        return Missing(reason=f"{node.name}: the ranks use no interface or several; their total speed is unknown")
    link = next((link for link in facts.links if link.name == taken[0].name), None)
    speed = real_speed(link, facts.links) if link is not None else None
    if link is None or speed is None:
        return Missing(reason=f"{node.name}: the speed of {taken[0].name} is unknown; it is not reported, or virtual")
    return Socket(node.name, link.name, speed, _crossings(job, node) if backend == "gloo" else 1)


def real_speed(link: Link, links: Sequence[Link]) -> int | None:
    """Return a link's speed in Mbit/s if it is real, as those of physical links and bonds of these; else None."""
    physical = {other.name for other in links if other.kind == "physical" and other.driver not in _MADE_UP}
    real = link.name in physical or (bool(link.members) and physical >= set(link.members))
    return link.speed_Mbps if real and link.full_duplex is not False else None


def _crossings(job: Job, node: NodeFacts) -> int:
    """Return how often a ring in rank order, as Gloo uses it, leaves a node."""
    own = {rank.placement.rank for rank in job.ranks_on(node) if rank.placement.rank is not None}
    world = job.world_size or len(job.ranks)
    return max(1, sum((number + 1) % world not in own for number in own))
