"""What NCCL says of itself in its debug log."""

from __future__ import annotations

from distcheck.facts.base import Amount, Count, Facts, Seconds, Whole


class NcclGraph(Facts, frozen=True):
    """What NCCL found when it looked for the best paths of one pattern."""

    pattern: str
    """ring, tree, nvls or collnet."""
    channels: Count
    intra_GBps: Amount  # noqa: N815 the unit's own spelling
    """Of one channel inside the node, as NCCL's model has it."""
    inter_GBps: Amount  # noqa: N815
    """Of one channel between nodes; on one node NCCL repeats the other."""
    intra_path: str
    """The longest way inside the node: NVL, NVB, C2C, PIX, PXB, PXN, PHB, SYS."""
    inter_path: str
    """The longest way to a network adapter."""


class NcclLog(Facts, frozen=True, omit_defaults=True):
    """A summary of one rank's log, of its first communicator; what the log did not tell stays at its default."""

    version: str = ""
    rank: Whole | None = None
    ranks: Whole | None = None
    nodes: Whole | None = None
    """As NCCL counts them: ranks whose GPUs it could join inside a host. Told since 2.20."""
    local_ranks: Whole | None = None
    mnnvl: bool = False
    """Whether NVLink joins several hosts into what NCCL counts as one node."""
    init_seconds: Seconds | None = None
    """Of ncclCommInitRank, by NCCL's own clock (since 2.22)."""
    channels: Count | None = None
    """For collectives."""
    nvls_channels: Count | None = None
    graphs: tuple[NcclGraph, ...] = ()
    algorithms: dict[str, str] = {}
    """Algorithm and protocol by operation and bytes: "all_reduce 268435456": "NVLS/SIMPLE".

    The bytes are those of one rank's part in all_gather and reduce_scatter. Only rank 0 tells, since 2.20; without the
    operation ("268435456") until 2.22."""
    nvls_available: bool | None = None
    """Whether NCCL found multicast support on the GPU; None where it did not tell, as before 2.17."""
    nvls_created: bool = False
    """Whether buffers for it were set up, which does not mean that any operation uses them."""
    transports: dict[str, Count] = {}
    """How many channels go over what: P2P/CUMEM, SHM/direct, NET/IB/0/GDRDMA."""
    peers: dict[str, tuple[Whole, ...]] = {}
    """The ranks at the other end, by P2P, SHM or NET."""
    network: str = ""
    """IB, Socket, or a plugin's own name: AWS Libfabric, FasTrak, IBext_v8."""
    devices: tuple[str, ...] = ()
    """What that network uses: mlx5_0:1/IB, mlx5_1:1/RoCE, eth0."""
    no_ib_device: bool = False
    """Whether NCCL looked for InfiniBand adapters and found none that it may use."""
    provider: str = ""
    """Libfabric's, of AWS's plugin: efa, tcp."""
    gdr: bool | None = None
    """Whether a channel between nodes uses GPUDirect RDMA; None where there is no such channel."""
    gdr_devices: dict[str, bool] = {}
    """Whether the driver lets an adapter reach GPU memory, by the adapter's name."""
    gdr_refused: str = ""
    """Why NCCL did not use it for a GPU and an adapter, in its words."""
    plugins: tuple[str, ...] = ()
    """Loaded: "NET AWS Libfabric (v8)", "TUNER nccl_ofi_tuner"."""
    plugins_missing: tuple[str, ...] = ()
    """Files that were looked for and are not there: "NET libnccl-net.so"."""
    plugins_failed: tuple[str, ...] = ()
    """What kept one that is there from being used."""
    settings: dict[str, str] = {}
    """NCCL_* variables that NCCL says it took, from the environment or from its files."""
    tuning: dict[str, tuple[Amount, Amount]] = {}
    """NCCL's model: microseconds and GB/s by operation, algorithm and protocol ("all_reduce RING/SIMPLE").

    Combinations that it rules out are left out. Told by rank 0."""
    warnings: tuple[str, ...] = ()
    """Its WARN lines, the first ones."""

    @property
    def used_nvls(self) -> bool | None:
        """Whether an operation of at least 1 MiB ran over NVLS; None where no algorithm is known."""
        large = [used for key, used in self.algorithms.items() if int(key.split()[-1]) >= 1 << 20]
        return any("NVLS" in used for used in large) if large else None
