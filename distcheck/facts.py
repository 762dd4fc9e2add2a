"""What can be observed of a job: facts of nodes, processes and ranks, without any opinion.

A fact that could not be had is `Missing(reason)`, never a default. `None` stands where a thing was not looked at
or does not exist there. Everything here travels: between the processes of a job (MessagePack), into the file that
``--save`` writes (JSON), and back through msgspec's validation. Quantities carry their unit in the field's name.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Literal

import msgspec

Stage = Literal[
    "started", "environment", "node", "meeting", "peers", "collectives", "isolation", "done"
]  # fmt: skip
Look = Literal["launch", "environment", "meeting", "peers", "node", "gpu", "collectives"]
Launcher = Literal[
    "torchrun", "slurm", "openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod", "deepspeed", "ray", "azureml",
    "sagemaker", "kubernetes", "distcheck", "by hand", "none",
]  # fmt: skip


_LARGEST_WORLD = 1 << 20


class Facts(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower, gc=False):
    """Common ground of all facts: immutable, named fields, tagged so that unions decode without guessing.

    They never refer to each other in circles, so the garbage collector need not walk a million of them (gc=False).
    """


class Missing(Facts, frozen=True):
    """A fact that could not be had, and why."""

    reason: str


class Placement(Facts, frozen=True):
    """Who a process is in the job, and which launcher said so; None where nobody said it or it was no number."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    launcher: Launcher = "none"
    by_options: bool = False
    """True when rank and world size came from --rank and --world-size."""
    master_derived: bool = False
    """True when nobody said where to meet, and distcheck took what all ranks can know."""

    @property
    def can_meet(self) -> bool:
        """Whether it is known where the ranks meet and who this one is.

        A rank beyond the world size may come: the others will tell what is wrong with it.
        """
        return (
            self.rank is not None
            and self.rank >= 0
            and self.world_size is not None
            and bool(self.master_addr)
            and self.master_port is not None
            and 1 <= self.master_port <= 65535
        )


class PortOwner(Facts, frozen=True):
    """The process that listens on a port."""

    pid: int
    command: str
    user: str
    started: str


class Bind(Facts, frozen=True):
    """How binding MASTER_PORT went, done as torch does it."""

    port: int
    outcome: Literal["bound", "agent", "in-use", "denied", "failed"]
    error: str = ""
    owner: PortOwner | Missing | None = None


class Resolution(Facts, frozen=True):
    """What a name resolves to on one process: numeric addresses in the resolver's order."""

    name: str
    addresses: tuple[str, ...]
    seconds: float
    tries: int = 1
    """How often the resolver was asked until it knew the name."""
    changing: tuple[str, ...] = ()
    """Addresses that only some of several answers held; asked more than once for `net` and `gate` only."""


class ReverseLookup(Facts, frozen=True):
    """What an address is called, asked as torch's TCPStore asks it of every connection."""

    address: str
    name: str
    """Empty when the resolver knows none."""
    seconds: float
    """How long it took; when `name` is empty, also how long it was waited for."""


A_STORE = "a store of torch.distributed (TCPStore), of another job or an earlier one"
"""The detail of an attempt that was answered by one."""


class Attempt(Facts, frozen=True):
    """How one way to the roll call ended at its last try."""

    address: str
    port: int
    door: Literal["master", "side"]
    outcome: Literal[
        "met", "waiting", "agent", "refused", "timeout", "unreachable", "unresolved", "silent", "closed", "foreign",
        "stranger", "failed",
    ]  # fmt: skip
    tries: int = 1
    detail: str = ""
    """The other program's first words, the operating system's error, or what the roll call's host said."""


class Variables(Facts, frozen=True):
    """Allow-listed variables of a process, secrets redacted."""

    values: dict[str, str]


class Agent(Facts, frozen=True):
    """The torchelastic agent that started this process: torchrun, torch.distributed.launch or accelerate."""

    program: Literal["torchrun", "launch", "accelerate"]
    pid: int
    arguments: tuple[str, ...]
    """What follows the program on its command line; beyond 40 words it is cut."""
    exported: Variables | Missing
    """The rank variables in its own environment, which it makes anew for its ranks; all others it hands on."""


class ProcessFacts(Facts, frozen=True):
    """One running distcheck and the ranks for which it speaks."""

    uid: str
    node: str
    """Key of a NodeFacts."""
    pid: int
    command: tuple[str, ...]
    """Its own command line."""
    ancestors: tuple[str, ...] = ()
    """Names and arguments of the processes that started it, nearest first."""
    stage: Stage = "started"
    role: Literal["host", "guest", "alone"] = "alone"
    bind: Bind | None = None
    master_resolution: Resolution | Missing | None = None
    attempts: tuple[Attempt, ...] = ()
    agent: Agent | None = None
    """The nearest torchelastic agent among the ancestors."""
    shm_device: int | Missing | None = None
    """st_dev of /dev/shm: NCCL shares memory only where it is the same. None: not looked at, as outside of pods."""
    reverse: tuple[ReverseLookup, ...] = ()
    """Of the addresses with which it has connections: rank 0's, on rank 0's own process a few of the others'."""
    arrived_seconds: float | None = None
    """When it came to the roll call, after the first one did; None where nobody else was met."""
    clock_ahead_seconds: float | None = None
    """By how much its clock is surely ahead of the roll call host's, negative behind; 0 when it may be the same."""
    lost: str = ""
    """How the roll call's host lost it before it had said all that it was to say; empty when it did not."""


class Interface(Facts, frozen=True):
    """One address of a network interface; a node's stand in the order of getifaddrs, by which NCCL chooses."""

    name: str
    address: str
    """Without a zone."""
    up: bool
    """Up and running (IFF_RUNNING): a cable is plugged in."""
    mtu_bytes: int
    prefix_bits: int | None = None
    """Of its subnet; None where that is not known."""


class Link(Facts, frozen=True):
    """One network interface as sysfs shows it."""

    name: str
    mac: str
    kind: Literal["physical", "virtual", "loopback"]
    """Physical where a device of a bus stands behind it; a bond and a VLAN are virtual."""
    running: bool
    mtu_bytes: int
    speed_Mbps: int | None = None  # noqa: N815 the unit's own spelling
    """What the link has negotiated; None where it does not say, as most virtual ones."""
    full_duplex: bool | None = None
    members: dict[str, bool] = {}
    """Of a bond: its links, and whether each one is up."""


class RendezvousFile(Facts, frozen=True):
    """The file at which the ranks of ``init_method="file://…"`` meet, as one node sees it."""

    path: str
    bytes: int | None
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
    open_files: tuple[int, int] = (-1, -1)
    """Soft and hard limit of open files, before distcheck raised its own; -1 is unlimited."""
    listen_backlog: int | Missing = Missing(reason="not read")
    """net.core.somaxconn."""
    connections_tracked: tuple[int, int] | Missing = Missing(reason="not read")
    """Entries in the kernel's table of tracked connections, and how many it holds."""
    machine_id: str | Missing = Missing(reason="not read")
    """Hash of what names the hardware (product_uuid, else the physical links' addresses)."""
    rendezvous_file: RendezvousFile | Missing | None = None
    """None: COMMAND names none."""
    ib_mtu_bytes: dict[str, int] = {}
    """Active MTU of the InfiniBand and RoCE ports, by device and port, where ibv_devinfo tells it."""


class TorchBuild(Facts, frozen=True):
    """The installed torch, read without importing it."""

    version: str
    cuda: str | None
    hip: str | None


NOT_SUPPORTED = Missing(reason="NVML error 3: Not Supported")
"""What NVML says of all that a card or a virtual machine does not have; as a default it need not travel."""


class Ecc(Facts, frozen=True, omit_defaults=True):
    """Errors that a GPU's memories have found in themselves; volatile ones are those since its last reset."""

    enabled: bool | Missing = NOT_SUPPORTED
    enabled_after_reset: bool | Missing = NOT_SUPPORTED
    corrected_volatile: int | Missing = NOT_SUPPORTED
    uncorrected_volatile: int | Missing = NOT_SUPPORTED
    corrected_aggregate: int | Missing = NOT_SUPPORTED
    uncorrected_aggregate: int | Missing = NOT_SUPPORTED


class RemappedRows(Facts, frozen=True):
    """Rows of a GPU's memory that spare ones stand in for (Ampere and later)."""

    corrected: int
    uncorrected: int
    pending: bool
    """A row waits for the GPU's next reset."""
    failure: bool
    """No spare row was left."""


class GpuClocks(Facts, frozen=True, omit_defaults=True):
    """A GPU's clocks and what has slowed them; seconds are summed up since the driver was loaded."""

    event_reasons: int | Missing = NOT_SUPPORTED
    """NVML's bits: why the clocks are as low as they are at this moment."""
    sm_MHz: int | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    sm_max_MHz: int | Missing = NOT_SUPPORTED  # noqa: N815
    sm_application_MHz: int | Missing = NOT_SUPPORTED  # noqa: N815
    sm_application_default_MHz: int | Missing = NOT_SUPPORTED  # noqa: N815
    software_thermal_seconds: float | Missing = NOT_SUPPORTED
    hardware_thermal_seconds: float | Missing = NOT_SUPPORTED
    power_brake_seconds: float | Missing = NOT_SUPPORTED


class PcieLink(Facts, frozen=True, omit_defaults=True):
    """A GPU's PCIe link; an idle GPU lowers the generation of its own accord, the width it keeps."""

    generation: int | Missing = NOT_SUPPORTED
    width: int | Missing = NOT_SUPPORTED
    max_generation: int | Missing = NOT_SUPPORTED
    """Of this GPU in this system."""
    max_width: int | Missing = NOT_SUPPORTED
    gpu_max_generation: int | Missing = NOT_SUPPORTED
    """Of the GPU, whatever it is plugged into."""
    replays: int | Missing = NOT_SUPPORTED
    """Packets that were sent again since the driver was loaded."""


Remote = Literal["switch", "gpu", "cpu", "unknown"]


class LinkErrors(Facts, frozen=True):
    """One of NVML's counters of what went wrong on a GPU's NVLinks, since the driver was loaded."""

    counter: str
    """replay, recovery, crc, receive, integrity, failed recovery, ..."""
    by_link: tuple[int, ...]


class NvLinks(Facts, frozen=True, omit_defaults=True):
    """A GPU's NVLinks; every tuple has an item for each link, in NVML's order."""

    active: tuple[bool, ...]
    remote: tuple[Remote, ...] = ()
    """What is at the other end."""
    version: int | Missing = NOT_SUPPORTED
    speed_MBps: int | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    """Of one active link in one direction."""
    errors: tuple[LinkErrors, ...] | Missing = ()
    """Counters that are 0 on every link are left out."""


class Fabric(Facts, frozen=True):
    """How a GPU stands in the fabric of its NVSwitches, in NVML's numbers."""

    state: int
    """0 no fabric, 1 not started, 2 in progress, 3 completed."""
    status: int
    """An NVML error; it counts when the state is 3."""
    cluster: str
    """UUID of the domain over several nodes, hexadecimal; empty where there is none."""
    clique: int
    health_mask: int | Missing
    health_summary: int | Missing
    """0 not told, 1 healthy, 2 unhealthy, 3 limited capacity."""


class GpuProcess(Facts, frozen=True):
    """A process that computes on a GPU; its number is the host's, which in a container may be another's."""

    pid: int
    memory_bytes: int | None
    """None where NVML does not tell."""


class GpuHealth(Facts, frozen=True, omit_defaults=True):
    """What NVML says of a GPU's condition to a process without special rights."""

    recovery_action: int | Missing = NOT_SUPPORTED
    """What the driver wants done: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, ..."""
    ecc: Ecc = Ecc()
    remapped_rows: RemappedRows | Missing = NOT_SUPPORTED
    retired_pages_pending: bool | Missing = NOT_SUPPORTED
    clocks: GpuClocks = GpuClocks()
    pcie: PcieLink = PcieLink()
    nvlinks: NvLinks | Missing = NOT_SUPPORTED
    fabric: Fabric | Missing = NOT_SUPPORTED
    power_limit_watts: float | Missing = NOT_SUPPORTED
    """The limit in force."""
    power_limit_default_watts: float | Missing = NOT_SUPPORTED
    temperature_celsius: int | Missing = NOT_SUPPORTED
    slowdown_celsius: int | Missing = NOT_SUPPORTED
    compute_mode: int | Missing = NOT_SUPPORTED
    """0 default, 1 and 3 exclusive, 2 prohibited."""
    persistence: bool | Missing = NOT_SUPPORTED
    processes: tuple[GpuProcess, ...] | Missing = NOT_SUPPORTED
    mps_processes: tuple[GpuProcess, ...] | Missing = NOT_SUPPORTED
    """Those that compute through the MPS server."""
    utilisation_percent: int | Missing = NOT_SUPPORTED
    display: bool | Missing = NOT_SUPPORTED
    """Whether a display is driven by it; graphics need memory too."""
    module: int | Missing = NOT_SUPPORTED
    """Its place on the baseboard."""
    minor: int | Missing = NOT_SUPPORTED
    """N of /dev/nvidiaN."""
    vbios: str | Missing = NOT_SUPPORTED
    cpus: str | Missing = NOT_SUPPORTED
    """The CPUs next to it, folded: 0-55,112-167."""
    numa_node: int | Missing = NOT_SUPPORTED
    """The NUMA node next to it."""
    own_numa_node: int | Missing = NOT_SUPPORTED
    """The NUMA node that its memory is (Grace); the kernel keeps files there too."""


class PeerAccess(Facts, frozen=True):
    """Whether two GPUs of a node reach each other's memory: NVML's P2P status, 0 is yes."""

    gpus: tuple[int, int]
    read: int | Missing
    write: int | Missing
    nvlink: int | Missing


class Gpu(Facts, frozen=True):
    """One GPU as NVML sees it."""

    index: int
    uuid: str | Missing
    pci: str | Missing
    """Lower case, four-digit domain: 0000:9b:00.0."""
    name: str | Missing
    memory_bytes: int | Missing
    memory_used_bytes: int | Missing
    mig: bool | Missing = Missing(reason="not read")
    """True when MIG is enabled; its instances are in `mig_uuids`."""
    mig_uuids: tuple[str, ...] = ()
    lost: str = ""
    """NVML's words when the device is there but gives no handle or is lost."""
    health: GpuHealth | None = None
    """None: not looked at."""


class Gpus(Facts, frozen=True):
    """What NVML says of a node."""

    driver: str | Missing
    cuda_driver: str | Missing
    devices: tuple[Gpu, ...]
    unread: str = ""
    """Why the condition of the GPUs could not be read, where NVML did not come to an end with it."""
    peer_access: tuple[PeerAccess, ...] = ()
    """Of every two GPUs, each pair once; empty where it was not looked at."""
    confidential_compute: bool | Missing = NOT_SUPPORTED
    mps_daemon: bool = False
    """Whether nvidia-cuda-mps-control runs in sight of the process that looked."""
    imex_channel: Literal["usable", "denied", "absent"] | None = None
    """Of the device through which nodes of one NVLink domain share memory; None: not looked at, as without one."""


class Space(Facts, frozen=True):
    """A file system as a job finds it."""

    total_bytes: int
    free_bytes: int
    """What users may still write, without what is kept for root."""
    free_files: int | None
    """How many more files it can hold; None where the file system does not count them."""
    writable: bool


class NodeState(Facts, frozen=True):
    """What a node shows of itself to a process that is no rank, without peers and without GPUs."""

    own_name: Resolution | Missing
    """What its own host name resolves to there."""
    spaces: dict[str, Space | Missing]
    """By folder."""
    open_files: tuple[int, int]
    """Soft and hard limit of open files of the process that looked; -1 is unlimited."""
    slurm_context: str = ""
    """SLURM_SCRIPT_CONTEXT: prolog_slurmd in a Prolog; empty elsewhere."""
    slurm_job: str = ""
    """The job for which Slurm runs the Prolog."""


class NodeFacts(Facts, frozen=True):
    """One node: where processes share a host, a boot and a network."""

    key: str
    name: str
    """The scheduler's name for it, else its host name."""
    hostname: str
    boot_id: str | Missing
    network_namespace: str | Missing
    kernel: str
    python: str
    distcheck: str
    torch: TorchBuild | Missing
    interfaces: tuple[Interface, ...] | Missing
    ephemeral_ports: tuple[int, int] | Missing
    """net.ipv4.ip_local_port_range."""
    unprivileged_port_start: int | Missing
    accelerator: Literal["nvidia", "amd", "none"]
    """Whose GPUs the node shows in /dev, /proc and on the PCI bus."""
    gpus: Gpus | Missing | None = None
    """None: not looked at."""
    proxy_ports: tuple[int, ...] = ()
    """Of a service mesh's sidecar, those on which somebody listens; looked at in pods only."""
    state: NodeState | Missing | None = None
    """None: not looked at."""
    network: NetworkFacts | None = None
    """None: not looked at."""
    cpus: int | None = None
    """CPUs that are online, whoever may use them; None where that is not known."""


class RankRun(Facts, frozen=True):
    """What became of a rank's own process in the collectives."""

    pid: int | None
    step: str
    """What it was doing last, for example 'all_reduce 4194304 B'."""
    outcome: Literal["done", "failed", "stopped", "died", "stalled", "not started"]
    detail: str = ""
    """The error's text, the signal's name, or the kernel's state of the process."""
    silent_seconds: float = 0.0
    """How long it had said nothing when the run ended."""
    wrong: dict[str, int] = {}
    """Wrong elements in the correctness pass, by operation."""
    checked: dict[str, int] = {}
    """Elements compared in the correctness pass, by operation."""
    device: str = "cpu"


class RankFacts(Facts, frozen=True):
    """One rank: its placement, its variables and the GPU it will take."""

    process: str
    """Key of a ProcessFacts."""
    placement: Placement
    environment: dict[str, str]
    """The allow-listed variables, secrets redacted."""
    visible_gpus: tuple[str, ...] | Missing | None = None
    """UUIDs in CUDA's order as CUDA_VISIBLE_DEVICES leaves them; None: not looked at."""
    visible_stop: str = ""
    """The item of CUDA_VISIBLE_DEVICES at which the list ends early, and why."""
    gpu: str | None = None
    """UUID of the GPU that `cuda:LOCAL_RANK` is, or of the only visible one."""
    cpus: int | None = None
    """CPUs on which the rank may run (sched_getaffinity); None where that is not known."""
    run: RankRun | None = None


Use = Literal["master", "nccl", "gloo"]
"""What an address of a node is for: it reaches rank 0, NCCL picks it, Gloo picks it."""


_LEAST_TRANSFER_SECONDS = 1e-3


class Transfer(Facts, frozen=True):
    """Data sent over one connection in segments as large as the path takes."""

    bytes: int
    """That the other side has confirmed."""
    seconds: float
    stalled: bool
    """True when nothing more was confirmed for a while although not all had arrived."""
    segments: int = 0
    """That were sent, repeated ones included (TCP_INFO)."""
    repeated: int = 0
    """Segments that were sent again because they were taken for lost."""
    waited_seconds: float = 0.0
    """For which the processes of either side waited for a CPU."""

    @property
    def rate(self) -> float:
        """Return the bytes per second, without the time in which the network waited for a process."""
        return self.bytes / max(self.seconds - self.waited_seconds, _LEAST_TRANSFER_SECONDS)


class PeerTrial(Facts, frozen=True):
    """One process trying a door of another: a TCP port that the kernel chose at one of its addresses."""

    source: str
    target: str
    address: str
    port: int
    outcome: Literal["met", "refused", "timeout", "unreachable", "foreign", "failed"]
    seconds: float
    detail: str = ""
    uses: tuple[Use, ...] = ("master",)
    transfer: Transfer | None = None
    """None: not tried."""
    datagrams: dict[int, bool] = {}
    """Whether datagrams that must not be fragmented were answered, by the size of the IP packet in bytes."""


class Measurement(Facts, frozen=True):
    """One operation at one size: the time per operation of every rank, in rank order."""

    op: str
    bytes: int
    dtype: str
    iterations: int
    seconds_by_rank: tuple[float, ...]
    group: str = "world"


class Collectives(Facts, frozen=True):
    """What the collectives ran with and measured."""

    backend: str
    backend_reason: str
    torch: str = ""
    nccl: str = ""
    measurements: tuple[Measurement, ...] = ()
    first_figure_seconds: float | None = None
    """From the start of the command to the first measurement."""
    ended: str = ""
    """Empty when everything ran, else why the run was ended early."""


Fate = Literal["reported", "unreachable", "no probe", "unreadable", "ended", "silent"]


class LaunchedNode(Facts, frozen=True):
    """What became of the probe, or the probes, that distcheck started on one node."""

    name: str
    """As the user or the scheduler names it."""
    ranks: tuple[int, ...]
    """The ranks that it was to have."""
    outcome: Fate
    """Its facts came home; or nobody could log in, Python or distcheck was not found, its facts were another version's,
    it ended before it told them, or it said nothing at all."""
    exit_code: int | None = None
    words: str = ""
    """What was said of it or by it on standard error, its last lines."""
    distcheck: str = ""
    """Its version, where it said it."""


class Launched(Facts, frozen=True):
    """How distcheck started the probes from outside the job."""

    engine: Literal["ssh", "slurm", "mpi"]
    command: tuple[str, ...]
    """The program that started them all, or with ssh the one that each node ran; without the assignment."""
    nodes: tuple[LaunchedNode, ...]
    exit_code: int | None = None
    """Of the program that started them all; None when it was ended, and with ssh."""
    words: str = ""
    """What that program said for itself, its last lines."""
    torn: int = 0
    """Messages that did not come home whole."""
    interrupted: str = ""
    """The signal that ended the run before its time; empty when none did."""


class LeftOut(Facts, frozen=True):
    """A node that --need could do without."""

    name: str
    rules: tuple[str, ...]
    words: str
    """The first finding's message."""


class Asked(Facts, frozen=True):
    """What the user asked for; judging the job again later needs it."""

    command: str
    looks: tuple[Look, ...]
    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    started_here: bool = False
    """True when distcheck started the ranks itself (--nproc, or on other nodes)."""
    by_default: bool = False
    """True when nobody said how many ranks, and two were taken."""
    operations: tuple[str, ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    min_busbw_GBps: float | None = None  # noqa: N815 the unit's own spelling
    timeout_seconds: float = 60.0
    join_timeout_seconds: float = 20.0
    strict: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    export: bool = False
    """True when COMMAND is given the placement's RANK, MASTER_ADDR and so on."""
    program: str = ""
    """The file name of COMMAND's program; empty where there is no COMMAND."""
    rendezvous_file: str = ""
    """The path of a file:// that stands among COMMAND's words; empty where there is none."""
    batch_shell: bool = False
    """True when distcheck was started in the batch or salloc shell of a Slurm job, and not by srun."""
    gpus: int | None = None
    """How many GPUs the node must have (`distcheck node --gpus`)."""
    need: int | None = None
    """How many nodes suffice; None when all are needed."""


class Job(Facts, frozen=True, dict=True, gc=True):
    """The merged facts of all nodes and ranks: what rules judge and what ``--save`` writes."""

    distcheck: str
    run: str
    """Names this run; files of the same run can be merged."""
    asked: Asked
    schema: int = 1
    seconds: float = 0.0
    met: bool = False
    """Whether the roll call was held and closed; with one process there is nobody to meet and it is True."""
    nodes: tuple[NodeFacts, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    peers: tuple[PeerTrial, ...] = ()
    collectives: Collectives | Missing | None = None
    skipped: dict[str, str] = {}
    """Looks that were not taken, and why."""
    launched: Launched | None = None
    """How distcheck started the probes; None inside a launcher and on this machine."""
    left_out: tuple[LeftOut, ...] = ()
    """Nodes of the allocation that are not in this job because they were found bad and others suffice."""

    @cached_property
    def _process(self) -> dict[str, ProcessFacts]:
        return {p.uid: p for p in self.processes}

    @cached_property
    def _node(self) -> dict[str, NodeFacts]:
        return {n.key: n for n in self.nodes}

    @cached_property
    def _ranks_on(self) -> dict[str, list[RankFacts]]:
        on: dict[str, list[RankFacts]] = {node.key: [] for node in self.nodes}
        for rank in self.ranks:
            on[self._process[rank.process].node].append(rank)
        return on

    def process_of(self, rank: RankFacts) -> ProcessFacts:
        """Return the process that speaks for a rank."""
        return self._process[rank.process]

    def node_of(self, rank: RankFacts) -> NodeFacts:
        """Return the node of a rank."""
        return self._node[self._process[rank.process].node]

    def ranks_on(self, node: NodeFacts) -> tuple[RankFacts, ...]:
        """Return the ranks on a node, in the order of `ranks`."""
        return tuple(self._ranks_on[node.key])

    @cached_property
    def world_size(self) -> int | None:
        """The world size that most ranks name, None when no rank names one."""
        sizes = Counter(r.placement.world_size for r in self.ranks if r.placement.world_size is not None)
        if sizes:
            return max(sizes, key=lambda size: (sizes[size], size))
        return sum(len(node.ranks) for node in self.launched.nodes) if self.launched else None

    @cached_property
    def made_for(self) -> Literal["nccl", "gloo"]:
        """The backend for which the nodes are made: NCCL (or RCCL) where there are GPUs, Gloo where there are none."""
        amd = any(n.accelerator == "amd" and isinstance(n.torch, TorchBuild) and n.torch.hip for n in self.nodes)
        return "nccl" if amd or any(n.accelerator == "nvidia" for n in self.nodes) else "gloo"

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world of which nobody spoke; empty when it is unknown or nobody was to be met.

        Of a world size that no job has, such as one with a digit too many, the first million are looked through.
        """
        if "meeting" not in self.asked.looks:
            return ()
        present = {r.placement.rank for r in self.ranks}
        return tuple(n for n in range(min(self.world_size or 0, _LARGEST_WORLD)) if n not in present)
