"""Names, ports, interfaces and the ways between nodes."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Seconds, Whole


class PortOwner(Facts, frozen=True):
    """The process that listens on a port."""

    pid: Count
    command: str
    user: str
    started: str
    own: bool = False
    """Whether it runs as the same user as the distcheck that found it."""
    slurm_job: str = ""
    """The number of the Slurm job that it belongs to; empty where it shows none."""
    container: str = ""
    """The container in which it runs, where that is another one than distcheck's; empty otherwise."""


class Bind(Facts, frozen=True):
    """How binding MASTER_PORT went, done as torch does it."""

    port: Whole
    outcome: Literal["bound", "agent", "in-use", "denied", "failed"]
    error: str = ""
    owner: PortOwner | Missing | None = None


class Resolution(Facts, frozen=True):
    """What a name resolves to on one process: numeric addresses in the resolver's order."""

    name: str
    addresses: tuple[str, ...]
    seconds: Seconds
    tries: Count = 1
    """How often the resolver was asked until it knew the name."""
    changing: tuple[str, ...] = ()
    """Addresses that only some of several answers held; asked more than once for `net` and `gate` only."""


class ReverseLookup(Facts, frozen=True):
    """What an address is called, asked as torch's TCPStore asks it of every connection."""

    address: str
    name: str
    """Empty when the resolver knows none."""
    seconds: Seconds
    """How long it took; when `name` is empty, also how long it was waited for."""


A_STORE = "a store of torch.distributed (TCPStore), of another job or an earlier one"
"""The detail of an attempt that was answered by one."""


class Attempt(Facts, frozen=True):
    """How one way to the roll call ended at its last try."""

    address: str
    port: Whole
    door: Literal["master", "side"]
    outcome: Literal[
        "met", "waiting", "elsewhere", "agent", "refused", "timeout", "unreachable", "unresolved", "silent", "closed",
        "foreign", "stranger", "failed",
    ]  # fmt: skip
    tries: Count = 1
    detail: str = ""
    """The other program's first words, the operating system's error, or what the roll call's host said; elsewhere: the
    address at which another guest has met it."""


class Interface(Facts, frozen=True):
    """One address of a network interface; a node's stand in the order of getifaddrs, by which NCCL chooses."""

    name: str
    address: str
    """Without a zone."""
    up: bool
    """Up and running (IFF_RUNNING): a cable is plugged in."""
    mtu_bytes: Count
    prefix_bits: Count | None = None
    """Of its subnet; None where that is not known."""


class Link(Facts, frozen=True):
    """One network interface as sysfs shows it."""

    name: str
    mac: str
    kind: Literal["physical", "virtual", "loopback"]
    """Physical where a device of a bus stands behind it; a bond and a VLAN are virtual."""
    running: bool
    mtu_bytes: Count
    speed_Mbps: Count | None = None  # noqa: N815 the unit's own spelling
    """What the link has negotiated; None where it does not say, as most virtual ones."""
    full_duplex: bool | None = None
    members: dict[str, bool] = {}
    """Of a bond: its links, and whether each one is up."""


class RendezvousFile(Facts, frozen=True):
    """The file at which the ranks of ``init_method="file://…"`` meet, as one node sees it."""

    path: str
    bytes: Count | None
    """Its size; None when it is not there."""
    file_system: str
    """The kernel's name of the kind: nfs4, ext4."""
    locks: bool
    """Whether locks that one node takes hold on others, as far as the mount's options say."""


class NetworkFacts(Facts, frozen=True):
    """What of a node decides over its network, looked at for `net` and `gate`."""

    links: tuple[Link, ...] | Missing
    own_name: Resolution | Missing
    """What its own host name resolves to there."""
    own_name_binds: str | Missing
    """The first of these addresses that a socket can be bound to: Gloo listens there unless told otherwise."""
    nccl_files: dict[str, str] = {}
    """NCCL_SOCKET_* settings that NCCL's configuration files give; variables of the process go before them."""
    open_files: tuple[Whole, Whole] = (-1, -1)
    """Soft and hard limit of open files, before distcheck raised its own; -1 is unlimited."""
    listen_backlog: Count | Missing = Missing(reason="not read")
    """net.core.somaxconn."""
    connections_tracked: tuple[Count, Count] | Missing = Missing(reason="not read")
    """Entries in the kernel's table of tracked connections, and how many it holds."""
    machine_id: str | Missing = Missing(reason="not read")
    """Hash of what names the hardware (product_uuid, else the physical links' addresses)."""
    rendezvous_file: RendezvousFile | Missing | None = None
    """None: COMMAND names none."""
    ib_mtu_bytes: dict[str, Count] = {}
    """Active MTU of the InfiniBand and RoCE ports, by device and port, where ibv_devinfo tells it."""


Use = Literal["master", "nccl", "gloo"]
"""What an address of a node is for: it reaches rank 0, NCCL picks it, Gloo picks it."""


_LEAST_TRANSFER_SECONDS = 1e-3
_ROUND_TRIPS = 30
"""TCP begins with ten segments and at best doubles what is under way with every round trip (RFC 6928): two megabytes
take 8 of them, whatever the link carries, and up to twice as many while the receive window grows."""


class Transfer(Facts, frozen=True):
    """Data sent over one connection in segments as large as the path takes."""

    bytes: Count
    """That the other side has confirmed."""
    seconds: Seconds
    stalled: bool
    """True when nothing more was confirmed for a while although not all had arrived."""
    segments: Count = 0
    """That were sent, repeated ones included (TCP_INFO)."""
    repeated: Count = 0
    """Segments that were sent again because they were taken for lost."""
    waited_seconds: Seconds = 0.0
    """For which the processes of either side waited for a CPU."""
    round_trip_seconds: Seconds | None = None
    """The shortest that the kernel saw on this connection (TCP_INFO's min_rtt); None: it did not tell."""
    repeats: bool = False
    """Whether it was sent once more while the other nodes were quiet; the better of both is here."""

    @property
    def latency_bound(self) -> bool:
        """Whether it took so few round trips that their length, and not the link, decided how long."""
        return self.seconds - self.waited_seconds <= _ROUND_TRIPS * (self.round_trip_seconds or 0.0)

    @property
    def rate(self) -> float:
        """Return the bytes per second, without the time in which the network waited for a process."""
        return self.bytes / max(self.seconds - self.waited_seconds, _LEAST_TRANSFER_SECONDS)


class PeerTrial(Facts, frozen=True):
    """One process trying a door of another: a TCP port that the kernel chose at one of its addresses."""

    source: str
    target: str
    address: str
    port: Whole
    outcome: Literal["met", "refused", "timeout", "unreachable", "foreign", "failed"]
    seconds: Seconds
    detail: str = ""
    uses: tuple[Use, ...] = ("master",)
    transfer: Transfer | None = None
    """None: not tried."""
    datagrams: dict[Count, bool] = {}
    """Whether datagrams that must not be fragmented were answered, by the size of the IP packet in bytes."""
    round_trip_seconds: Seconds | None = None
    """The shortest that the kernel saw on all connections of this trial; None: it did not tell."""
