"""The hardware that limits a job's collectives; the slowest node or GPU counts."""

from __future__ import annotations

from math import inf

import msgspec

from distcheck.expectation.links import PAYLOAD, LinkKind, pcie_rate, pcie_wire, port_rate
from distcheck.facts.base import Missing


class NvLinkWay(msgspec.Struct, frozen=True):
    """The NVLinks or XGMI links through which each GPU reaches the other GPUs of its node."""

    kind: LinkKind
    links: int
    """Links of one GPU that a ring between these ranks can use."""
    switched: bool = True
    """Whether the links lead to NVSwitches; else they lead from GPU to GPU."""
    exact: bool = True
    """Whether a ring is known to be able to use all of them."""

    @property
    def rate(self) -> float:
        """The rate that NCCL assumes, in GB/s."""
        return self.links * self.kind.rate_GBps

    def between_nodes(self, per_node: int) -> float:
        """Return the rate for a ring over several nodes: with XGMI the network carries one of `per_node` hops."""
        return self.rate * per_node / (per_node - 1) if self.kind.xgmi else self.rate

    @property
    def most(self) -> float:
        """The most data that the wires carry, in GB/s."""
        return self.links * self.kind.wire_GBps * PAYLOAD

    @property
    def adding(self) -> bool:
        """Whether the switches can reduce (NVLS)."""
        return self.switched and self.kind.nvls is not None


class PcieWay(msgspec.Struct, frozen=True):
    """The PCIe links through which GPUs reach each other."""

    generation: int
    width: int
    together: int = 1
    """GPUs in the smallest group joined by NVLink, and so the number of links out of a group."""
    virtual: bool = False
    """Whether this is a virtual machine; a hypervisor may report any generation."""

    @property
    def rate(self) -> float:
        """The rate that NCCL assumes for one link, in GB/s; an upper bound."""
        return pcie_rate(self.generation, self.width) or 0.0

    @property
    def most(self) -> float:
        """The most that all links out of a group carry, in GB/s."""
        return inf if self.virtual else (pcie_wire(self.generation, self.width) or 0.0) * self.together


class Adapters(msgspec.Struct, frozen=True):
    """The InfiniBand or RoCE adapters of the node with the lowest rate."""

    number: int
    rate_Gbps: float  # noqa: N815 the unit's own spelling
    """Rate of each."""
    there_Gbps: float = 0.0  # noqa: N815
    """Rate of all that are up, used by NCCL or not; 0: of the used ones only."""
    infiniband: bool = False
    """Whether the network's switches may be able to reduce (SHARP)."""
    exact: bool = True
    """Whether NCCL is known to use all of them and no others."""

    @property
    def rate(self) -> float:
        """The rate of the adapters that NCCL uses, in GB/s."""
        return self.number * port_rate(self.rate_Gbps)

    @property
    def most(self) -> float:
        """The rate of all adapters that are up, in GB/s."""
        return max(self.rate, port_rate(self.there_Gbps))


class Socket(msgspec.Struct, frozen=True):
    """The slowest Ethernet link between the nodes that carries TCP."""

    node: str
    interface: str
    speed_Mbps: int  # noqa: N815 the unit's own spelling
    crossings: int = 1
    """How often a ring in rank order leaves the same node."""

    @property
    def rate(self) -> float:
        """The rate of the link in GB/s, divided by the number of crossings."""
        return port_rate(self.speed_Mbps / 1000) / self.crossings


Inside = NvLinkWay | PcieWay
Outside = Adapters | Socket


class Hardware(msgspec.Struct, frozen=True):
    """The hardware that the ranks of a job run on."""

    backend: str
    ranks: int
    nodes: int
    per_node: int
    """Ranks on each node; the minimum if they differ."""
    inside: Inside | Missing | None = None
    """Links between the ranks of a node; None with one rank per node."""
    outside: Outside | Missing | None = None
    """Links between nodes; None with one node."""
    even: bool = True
    """Whether all nodes have the same number of ranks."""
    settings: dict[str, str] = {}
    """Variables that are set and can slow NCCL down."""
