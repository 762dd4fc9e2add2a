"""NCCL's debug log, its RAS answer, its configuration files, and the paths that its variables name."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Missing, Rank, Seconds, Whole


class NcclGraph(Facts, frozen=True):
    """The result of NCCL's path search for one pattern."""

    pattern: str
    """ring, tree, nvls or collnet."""
    channels: Count
    intra_GBps: Amount  # noqa: N815 the unit's own spelling
    """Bandwidth of one channel inside the node, by NCCL's model."""
    inter_GBps: Amount  # noqa: N815
    """Bandwidth of one channel between nodes; on one node NCCL repeats `intra_GBps`."""
    intra_path: str
    """The longest path inside the node: NVL, NVB, C2C, PIX, PXB, PXN, PHB, SYS."""


class NodeDiagnosis(Facts, frozen=True):
    """What NCCL's own diagnostics reported about a node's GPUs."""

    version: str
    gpus: Count
    lines: tuple[str, ...]
    """From the tag on: [OK] or [INFO]."""
    seconds: Seconds


class NcclLog(Facts, frozen=True, omit_defaults=True):
    """A rank's log of its first communicator; fields that the log lacks keep their default."""

    version: str = ""
    ranks: Whole | None = None
    nodes: Whole | None = None
    """As NCCL counts them: ranks whose GPUs it could connect inside a host. Logged since 2.20."""
    local_ranks: Whole | None = None
    mnnvl: bool = False
    """Whether NVLink joins several hosts into what NCCL counts as one node."""
    nvls_channels: Count | None = None
    graphs: tuple[NcclGraph, ...] = ()
    algorithms: dict[str, str] = {}
    """Algorithm and protocol by operation and bytes: "all_reduce 268435456": "NVLS/SIMPLE".

    In all_gather and reduce_scatter the bytes are those of one rank's part. Only rank 0 logs them, since 2.20; without
    the operation ("268435456") until 2.22."""
    nvls_available: bool | None = None
    """Whether NCCL found multicast support on the GPU; None if not logged, as before 2.17."""
    transports: dict[str, Count] = {}
    """The number of channels per transport: P2P/CUMEM, SHM/direct, NET/IB/0/GDRDMA."""
    peers: dict[str, tuple[Whole, ...]] = {}
    """The ranks at the other end, by P2P, SHM or NET."""
    network: str = ""
    """IB, Socket, or a plugin's own name: AWS Libfabric, FasTrak, IBext_v8."""
    devices: tuple[str, ...] = ()
    """The devices of that network: mlx5_0:1/IB, mlx5_1:1/RoCE, eth0."""
    no_ib_device: bool = False
    """Whether NCCL looked for InfiniBand adapters and found none that it can use."""
    gdr: bool | None = None
    """Whether a channel between nodes uses GPUDirect RDMA; None without such a channel."""
    gdr_devices: dict[str, bool] = {}
    """Whether the driver lets an adapter reach GPU memory, by the adapter's name."""
    gdr_refused: str = ""
    """NCCL's reason for not using GPUDirect RDMA for a GPU and an adapter."""
    plugins: tuple[str, ...] = ()
    """The loaded plugins: "NET AWS Libfabric (v8)", "TUNER nccl_ofi_tuner"."""
    plugins_missing: tuple[str, ...] = ()
    """Plugin files that do not exist: "NET libnccl-net.so"."""
    plugins_failed: tuple[str, ...] = ()
    """Why an existing plugin was not used."""
    settings: dict[str, str] = {}
    """NCCL_* variables that NCCL reports as set, from the environment or its files."""
    warnings: tuple[str, ...] = ()
    """Its first WARN lines."""
    diagnostics: tuple[str, ...] = ()
    """Results of NCCL's own diagnostics that need a look (NCCL DIAG [INFO], since 2.31), if the job runs them."""


class RasBehind(Facts, frozen=True):
    """Ranks that launched fewer operations of one kind in a communicator than another rank."""

    operation: str
    """NCCL's name of the kind: AllReduce; "collective" for all kinds together, before 2.26."""
    launched: Count
    most: Count
    """What the rank with the most operations launched."""
    number: Count
    """How many ranks these are."""
    ranks: tuple[Rank, ...] = ()
    """Their numbers; empty if RAS only counts them, as for more than half of the ranks in its text."""


class Ras(Facts, frozen=True):
    """What NCCL's RAS said about the communicators of all ranks while a collective stalled.

    A rank that it does not list is not shown to be healthy.
    """

    rank: Rank
    """The rank whose process was asked."""
    missing: tuple[Rank, ...] = ()
    """Ranks from which RAS got no data."""
    missing_number: Count = 0
    """How many ranks are missing; more than `missing` if RAS only counts them."""
    dead: tuple[Rank, ...] = ()
    """The missing ranks whose processes RAS gave up."""
    behind: tuple[RasBehind, ...] = ()
    """By communicator and operation, the fewest operations first."""
    words: tuple[str, ...] = ()
    """Its first lines about errors and warnings."""


class NcclFile(Facts, frozen=True):
    """A configuration file of NCCL or RCCL that exists on a process's node."""

    path: str
    origin: Literal["NCCL_CONF_FILE", "HOME", "passwd", "HOME+passwd", "system"]
    """What names it: the variable, the home folder by HOME or by the user database (or both), or a fixed path."""
    library: Literal["nccl", "rccl"]
    lines: tuple[str, ...] | Missing
    """The lines that mention a variable of NCCL, RCCL or a plugin, secrets redacted."""


class NamedPath(Facts, frozen=True):
    """What a process finds at the path that a variable names."""

    path: str
    state: Literal["readable", "missing", "denied", "other"]
    """Of the path itself; other: it exists and is no regular file."""
    folder: Literal["writable", "missing", "denied"]
    """Of the folder that holds it."""
    file_system: str = ""
    """The kernel's type of the folder's file system, if it is a network file system; empty otherwise."""
    absent_devices: tuple[str, ...] = ()
    """GPUs of a topology file (bus ids) that are not on this node's PCI bus; at most 16."""
