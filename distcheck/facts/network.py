"""Names, ports, interfaces and the paths between nodes."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Seconds, Whole


class PortOwner(Facts, frozen=True):
    """The process that holds a port."""

    pid: Count
    command: str
    user: str
    started: str
    own: bool = False
    """Whether it runs as the same user as the distcheck that found it."""
    slurm_job: str = ""
    """The id of its Slurm job; empty if unknown."""
    container: str = ""
    """Its container, if that is not distcheck's own; empty otherwise."""


class PortConnection(Facts, frozen=True):
    """A TCP connection that holds a port on which no process listens."""

    peer: str
    """The address and port of its other end."""
    state: str
    """As the kernel names it, for example ESTABLISHED."""

    @property
    def ended(self) -> bool:
        """Whether both sides have closed it; the kernel then keeps the port, which no process owns any more."""
        return self.state == "TIME_WAIT"


class Bind(Facts, frozen=True):
    """The result of binding MASTER_PORT as torch does."""

    port: Whole
    outcome: Literal["bound", "agent", "in-use", "denied", "failed"]
    error: str = ""
    owner: PortOwner | Missing | None = None
    connection: PortConnection | None = None
    """What holds the port if no process listens on it; `owner` is its process."""


class Resolution(Facts, frozen=True):
    """A name's addresses as one process resolves it, in the resolver's order."""

    name: str
    addresses: tuple[str, ...]
    seconds: Seconds
    tries: Count = 1
    """How many queries it took to resolve the name."""


class ReverseLookup(Facts, frozen=True):
    """The name of an address, looked up as torch's TCPStore does for every connection."""

    address: str
    name: str
    """Empty if the resolver has none."""
    seconds: Seconds
    """How long it took; if `name` is empty, possibly the time after which it was given up."""


A_STORE = "a store of torch.distributed (TCPStore), of another job or an earlier one"
"""The detail of an attempt that a TCPStore answered."""


class Attempt(Facts, frozen=True):
    """The last attempt at one endpoint of the roll call."""

    address: str
    port: Whole
    door: Literal["master", "side"]
    outcome: Literal[
        "met", "waiting", "elsewhere", "agent", "refused", "timeout", "unreachable", "unresolved", "silent", "closed",
        "foreign", "stranger", "full", "failed",
    ]  # fmt: skip
    tries: Count = 1
    detail: str = ""
    """The other program's first bytes, the operating system's error, or the leader's answer; elsewhere: the address at
    which another follower reached the leader."""


class Interface(Facts, frozen=True):
    """One address of an interface; a node has them in getifaddrs order, by which NCCL chooses."""

    name: str
    address: str
    """Without a zone."""
    up: bool
    """Up and running (IFF_RUNNING): a cable is plugged in."""
    mtu_bytes: Count
    prefix_bits: Count | None = None
    """The subnet's prefix length; None if unknown."""


class Link(Facts, frozen=True):
    """One network interface as sysfs shows it."""

    name: str
    mac: str
    kind: Literal["physical", "virtual", "loopback"]
    """Physical if a bus device backs it; a bond and a VLAN are virtual."""
    speed_Mbps: Count | None = None  # noqa: N815 the unit's own spelling
    """The negotiated speed; None if not reported, as for most virtual links."""
    full_duplex: bool | None = None
    members: dict[str, bool] = {}
    """A bond's links, and whether each is up."""
    wireless: bool = False
    driver: str = ""
    """The kernel driver of a physical link: mlx5_core, virtio_net."""


class RendezvousFile(Facts, frozen=True):
    """The rendezvous file of ``init_method="file://…"``, as one node sees it."""

    path: str
    bytes: Count | None
    """Its size; None if it does not exist."""
    file_system: str
    """The kernel's name of the file system type: nfs4, ext4."""
    locks: bool
    """Whether one node's locks hold on other nodes, by the mount's options."""


class NetworkFacts(Facts, frozen=True):
    """A node's network configuration, collected for `net` and `gate`."""

    links: tuple[Link, ...] | Missing
    own_name: Resolution | Missing
    """Its own host name, resolved on the node."""
    own_name_binds: str | Missing
    """The first of these addresses that a socket can bind: Gloo's default address."""
    nccl_files: dict[str, str] = {}
    """NCCL_SOCKET_* settings from NCCL's configuration files; the process's variables take precedence."""
    open_files: tuple[Whole, Whole] = (-1, -1)
    """Soft and hard limit of open files, before distcheck raised it; -1 is unlimited."""
    listen_backlog: Count | Missing = Missing(reason="not read")
    """net.core.somaxconn."""
    connections_tracked: tuple[Count, Count] | Missing = Missing(reason="not read")
    """Entries in the kernel's connection tracking table, and its capacity."""
    machine_id: str | Missing = Missing(reason="not read")
    """Hash of the hardware's identity (product_uuid, else the physical links' addresses)."""
    rendezvous_file: RendezvousFile | Missing | None = None
    """None: COMMAND names none."""
    ib_mtu_bytes: dict[str, Count] = {}
    """Active MTU of the InfiniBand and RoCE ports, by device and port, if ibv_devinfo reports it."""


Use = Literal["master", "nccl", "gloo", "engine"]
"""The use of a node's address: it reaches rank 0, NCCL selects it, Gloo selects it, an inference engine selects it."""


_LEAST_TRANSFER_SECONDS = 1e-3
_ROUND_TRIPS = 30
"""TCP starts with ten segments and at best doubles the data in flight per round trip (RFC 6928). Two megabytes take 8
round trips at any link speed, and up to twice as many while the receive window grows."""


class Transfer(Facts, frozen=True):
    """Data sent over one connection in segments of the path's full size."""

    bytes: Count
    """Bytes that the other side acknowledged."""
    seconds: Seconds
    stalled: bool
    """True if acknowledgements stopped for a while before all data had arrived."""
    segments: Count = 0
    """Segments sent, including repeated ones (TCP_INFO)."""
    repeated: Count = 0
    """Segments retransmitted because they were considered lost."""
    waited_seconds: Seconds = 0.0
    """Time in which the process of either side waited for a CPU."""
    round_trip_seconds: Seconds | None = None
    """The kernel's minimum for this connection (TCP_INFO's min_rtt); None: not reported."""
    repeats: bool = False
    """Whether it was repeated while the other nodes were quiet; this is the better of the two."""

    @property
    def latency_bound(self) -> bool:
        """Whether the round trip time, and not the link's rate, determined the duration."""
        return self.seconds - self.waited_seconds <= _ROUND_TRIPS * (self.round_trip_seconds or 0.0)

    @property
    def rate(self) -> float:
        """Return the bytes per second, without the time of waiting for a CPU."""
        return self.bytes / max(self.seconds - self.waited_seconds, _LEAST_TRANSFER_SECONDS)


class PeerTrial(Facts, frozen=True):
    """One process's test of a peer's endpoint: an ephemeral TCP port at one of its addresses."""

    source: str
    target: str
    address: str
    port: Whole
    outcome: Literal["met", "refused", "timeout", "unreachable", "silent", "foreign", "failed"]
    """Silent: the connection was made, and the process did not answer."""
    seconds: Seconds
    detail: str = ""
    uses: tuple[Use, ...] = ("master",)
    transfer: Transfer | None = None
    """None: not tested."""
    datagrams: dict[Count, bool] = {}
    """Whether datagrams that must not be fragmented were answered, by the size of the IP packet in bytes."""
    round_trip_seconds: Seconds | None = None
    """The kernel's minimum over all connections of this test; None: not reported."""

    @property
    def connected(self) -> bool:
        """Whether the path let the connection through; the target's kernel makes it even for a frozen process."""
        return self.outcome in {"met", "silent"}
