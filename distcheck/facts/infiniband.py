"""A node's RDMA adapters (InfiniBand, RoCE, EFA) as sysfs shows them, and what NCCL needs to use them."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from distcheck.facts.base import Amount, Count, Facts, Missing

OWN_LINKS = ("InfiniBand", "Ethernet")
"""The link layers that NCCL's own transport supports; AWS EFA has another and needs a plugin."""


class Gid(Facts, frozen=True, omit_defaults=True):
    """An entry of a port's GID table: an address of the port."""

    address: str
    """Eight groups of four hexadecimal digits, as sysfs prints it."""
    kind: str = ""
    """IB/RoCE v1 or RoCE v2; empty if not readable, as in a network namespace without the interface."""
    interface: str = ""
    """The network interface that owns it; empty on InfiniBand, and if not readable."""


class HcaPort(Facts, frozen=True, omit_defaults=True):
    """One port of an adapter."""

    number: Count
    link_layer: str = ""
    """InfiniBand or Ethernet; anything else needs a network plugin (EFA: Unknown or Unspecified)."""
    state: str = ""
    """DOWN, INIT, ARMED, ACTIVE; empty if not readable, as the other texts."""
    physical_state: str = ""
    """LinkUp, Polling, Disabled."""
    rate_Gbps: Amount | None = None  # noqa: N815 the unit's own spelling
    """Lanes times speed; None if not reported."""
    lanes: Count | None = None
    speed: str = ""
    """The speed of a lane: EDR, HDR, NDR."""
    gids: dict[Count, Gid] = {}
    """The GID table by index, without empty entries."""
    gid_slots: Count = 0
    """The size of the GID table."""
    partition_keys: dict[Count, Count] = {}
    """The partition keys by index, without empty entries."""
    pkey_slots: Count = 0
    """The size of the table of partition keys."""
    counters: dict[str, Count] = {}
    """Error and congestion counters since the driver was loaded."""
    growth: dict[str, Count] = {}
    """How much they grew until the collectives had ended, without those that did not grow."""


class Hca(Facts, frozen=True, omit_defaults=True):
    """One adapter in /sys/class/infiniband."""

    name: str
    """mlx5_0."""
    ports: tuple[HcaPort, ...]
    driver: str = ""
    """mlx5_core, efa, hfi1; empty for a software device such as rxe."""
    board: str = ""
    """The board's type (board_id); empty if not reported."""
    node_guid: str = ""
    device_file: Literal["usable", "denied", "absent", "unknown"] = "unknown"
    """Whether the probing process can open /dev/infiniband/uverbs* for it, as libibverbs does."""
    file_name: str = ""
    """uverbs0; empty if the kernel offers none."""
    denied: str = ""
    """The error of opening it."""
    abi: Count | None = None
    """The version of the kernel's interface that libibverbs' provider must support; None if the kernel tells none."""


class Infiniband(Facts, frozen=True, omit_defaults=True):
    """A node's RDMA adapters, and what GPUDirect RDMA and libibverbs need."""

    hcas: tuple[Hca, ...] = ()
    libibverbs: str | None = None
    """The error of loading libibverbs.so.1; empty if it loads, None if not tried."""
    offered: tuple[str, ...] | None = None
    """The adapters that libibverbs offers: those for which it has a provider that fits. None if not asked."""
    net_plugin: str | None = None
    """The network plugin that NCCL would load; empty if none can be loaded, None if no adapter needs one."""
    peer_memory: tuple[str, ...] = ()
    """Loaded modules that give adapters access to GPU memory: nvidia_peermem, nv_mem, nv_mem_nc."""
    open_driver: bool | None = None
    """Whether NVIDIA's driver has open kernel modules, which support DMA-BUF; None if unknown."""
    iommu_groups: dict[str, str] = {}
    """The IOMMU group of GPUs and adapters by PCI address; empty without an IOMMU."""
    virtual: bool | None = None
    """Whether a hypervisor is present; None if not checked."""
    unread: str = ""
    """Why the list of adapters is incomplete; empty if it is complete."""
    unwatched: str = ""
    """Why the growth of the counters is unknown; empty if it is known or not needed."""


class Counters(Facts, frozen=True):
    """The counters of a node's ports at one moment."""

    ports: dict[str, dict[str, Count]]
    """By adapter and port: mlx5_0:1."""


def grown(before: Infiniband, after: Counters | Missing) -> Infiniband:
    """Return the adapters with the growth of their ports' counters; one that shrank was reset."""
    if isinstance(after, Missing):
        return replace(before, unwatched=after.reason)

    def of(name: str, port: HcaPort) -> HcaPort:
        now = after.ports.get(f"{name}:{port.number}", {})
        more = {key: now[key] - was for key, was in port.counters.items() if now.get(key, 0) > was}
        return replace(port, growth=more)

    hcas = (replace(hca, ports=tuple(of(hca.name, port) for port in hca.ports)) for hca in before.hcas)
    return replace(before, hcas=tuple(hcas))
