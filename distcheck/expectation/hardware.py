"""What of a job's machines decides how fast its collectives can be; where nodes or GPUs differ, the slowest counts."""

from __future__ import annotations

from math import inf

import msgspec

from distcheck.expectation.links import PAYLOAD, LinkKind, pcie_rate, pcie_wire, port_rate
from distcheck.facts import Missing


class NvLinkWay(msgspec.Struct, frozen=True):
    """The NVLinks over which each GPU reaches the other GPUs of its node."""

    kind: LinkKind
    links: int
    """That a ring between these ranks can use of one GPU."""
    switched: bool = True
    """Through NVSwitches; else the links lead from GPU to GPU."""
    exact: bool = True
    """Whether it is known that a ring can use all of them."""

    @property
    def rate(self) -> float:
        """GB/s that NCCL counts on."""
        return self.links * self.kind.rate_GBps

    @property
    def most(self) -> float:
        """GB/s of data that the wires carry at most."""
        return self.links * self.kind.wire_GBps * PAYLOAD

    @property
    def adding(self) -> bool:
        """Whether the switches can add up (NVLS)."""
        return self.switched and self.kind.nvls is not None


class PcieWay(msgspec.Struct, frozen=True):
    """The PCIe links over which GPUs reach each other."""

    generation: int
    width: int
    together: int = 1
    """GPUs in the smallest group that NVLink joins: so many links lead out of a group."""
    virtual: bool = False
    """Whether a hypervisor stands between, which may tell any generation."""

    @property
    def rate(self) -> float:
        """GB/s that NCCL counts on for one link; it is an upper end."""
        return pcie_rate(self.generation, self.width) or 0.0

    @property
    def most(self) -> float:
        """GB/s that all links out of a group carry at most."""
        return inf if self.virtual else (pcie_wire(self.generation, self.width) or 0.0) * self.together


class Adapters(msgspec.Struct, frozen=True):
    """The InfiniBand or RoCE adapters of the node that has the least."""

    number: int
    rate_Gbps: float  # noqa: N815 the unit's own spelling
    """Of each."""
    there_Gbps: float = 0.0  # noqa: N815
    """Of all that are up, whether or not NCCL takes them; 0: of those alone."""
    infiniband: bool = False
    """Whether the network's switches might add up (SHARP)."""
    exact: bool = True
    """Whether it is known that NCCL uses all of them and no others."""

    @property
    def rate(self) -> float:
        """GB/s of those that NCCL takes."""
        return self.number * port_rate(self.rate_Gbps)

    @property
    def most(self) -> float:
        """GB/s of all that are up."""
        return max(self.rate, port_rate(self.there_Gbps))


class Socket(msgspec.Struct, frozen=True):
    """The slowest Ethernet link over which nodes talk by TCP."""

    node: str
    interface: str
    speed_Mbps: int  # noqa: N815 the unit's own spelling
    crossings: int = 1
    """How often a ring in the order of the ranks leaves the same node."""

    @property
    def rate(self) -> float:
        """GB/s of the link, for each time that the ring crosses it."""
        return port_rate(self.speed_Mbps / 1000) / self.crossings


Inside = NvLinkWay | PcieWay
Outside = Adapters | Socket


class Hardware(msgspec.Struct, frozen=True):
    """What the ranks of a job run on."""

    backend: str
    ranks: int
    nodes: int
    per_node: int
    """Ranks on each node; of uneven nodes the least."""
    gpu: str = ""
    """The model, where all are of one."""
    inside: Inside | Missing | None = None
    """Between the ranks of a node; None: there is one on each."""
    outside: Outside | Missing | None = None
    """Between nodes; None: there is one."""
    even: bool = True
    """Whether all nodes have as many ranks."""
    settings: dict[str, str] = {}
    """Variables that are set and can slow NCCL down."""
