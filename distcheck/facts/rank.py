"""Processes and the ranks that they report for."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Offset, Rank, Seconds, Whole
from distcheck.facts.cuda import CudaView
from distcheck.facts.device import DeviceTest
from distcheck.facts.gpu import Gpus
from distcheck.facts.held import Held
from distcheck.facts.host import Limits
from distcheck.facts.launch_command import Stated
from distcheck.facts.libraries import Libraries
from distcheck.facts.nccl import NamedPath, NcclFile, NcclLog
from distcheck.facts.network import Attempt, Bind, Resolution, ReverseLookup
from distcheck.facts.node import TorchBuild
from distcheck.facts.placement import Placement, Variables
from distcheck.facts.storage import Silent, Space
from distcheck.facts.training import Training

Stage = Literal[
    "started", "environment", "node", "meeting", "peers", "collectives", "isolation", "done"
]  # fmt: skip


class Agent(Facts, frozen=True):
    """The process's torchelastic agent: torchrun, torch.distributed.launch or accelerate."""

    program: Literal["torchrun", "launch", "accelerate"]
    pid: Count
    arguments: tuple[str, ...]
    """Its command line after the program, at most 40 arguments."""
    exported: Variables | Missing
    """The rank variables in its own environment; it sets them again for its ranks and passes on all others."""


class Installed(Facts, frozen=True):
    """The software of a process, read without importing it."""

    python: str
    prefix: str
    """The environment's folder (sys.prefix)."""
    torch: TorchBuild | Missing
    nccl: str = ""
    """Version of the NCCL that pip installed beside torch; empty if torch has its own, or none."""


class Role(Enum):
    """A process's role in the roll call."""

    LEADER = "leader"
    FOLLOWER = "follower"
    ALONE = "alone"


class ProcessFacts(Facts, frozen=True):
    """One distcheck process and the ranks that it reports for."""

    uid: str
    node: str
    """The key of its NodeFacts."""
    pid: Count
    command: tuple[str, ...]
    """Its own command line."""
    installed: Installed
    ancestors: tuple[str, ...] = ()
    """Its parent processes with their arguments, nearest first."""
    stage: Stage = "started"
    role: Role = Role.ALONE
    bind: Bind | None = None
    free_ports: tuple[Count, ...] = ()
    """Unused ports near MASTER_PORT on its node; collected where rank 0 is, or may be."""
    master_resolution: Resolution | Missing | None = None
    attempts: tuple[Attempt, ...] = ()
    agent: Agent | None = None
    """The nearest torchelastic agent among the ancestors."""
    shm_device: Count | Missing | None = None
    """st_dev of /dev/shm: NCCL shares memory only if it is the same. None: not checked, as without GPUs."""
    reverse: tuple[ReverseLookup, ...] = ()
    """Reverse look-ups of its peers' addresses: rank 0's, and on rank 0's process some of the others'."""
    arrived_seconds: Seconds | None = None
    """When it joined the roll call, counted from the first process; None without other processes."""
    gpus: Gpus | None = None
    """The GPUs that NVML shows this process, without health, if it sees only some of its node's."""
    lost: str = ""
    """How the leader lost this process before the end; empty if it did not."""
    leader_lost: str = ""
    """How this process lost the leader before the verdict; empty if it did not."""
    leader_rank: Rank = 0
    """The leader's first rank: not 0 if a process stood in for rank 0's."""
    most_followers: Count | None = None
    """How many followers its limit of open files has room for, raised as far as needed and allowed; None if it opened
    no roll call."""
    locked_memory_bytes: Whole | None = None
    """How much memory it may lock (RLIMIT_MEMLOCK): -1 without a limit, or if CAP_IPC_LOCK lifts it."""
    nccl_files: tuple[NcclFile, ...] = ()
    """The configuration files of NCCL and RCCL that exist for this process."""
    named_paths: dict[str, NamedPath] = {}
    """By variable: what this process finds at the files that variables of NCCL and torch name."""
    libraries: Libraries | Missing | None = None
    """What torch's NCCL backend would load; None: not checked, as for a torch without CUDA."""
    etcd: bool | None = None
    """Whether the Python module etcd is installed; None if COMMAND does not need it."""
    memory_policy_error: str | None = None
    """The error of the system call get_mempolicy; empty if it works, None if not checked, as without GPUs."""
    limits: Limits | None = None
    """What it may use; None: not checked."""
    clock_offset_seconds: Offset | None = None
    """How far its clock is ahead of the leader's, negative if behind; None without a roll call, and for the leader."""
    clock_error_seconds: Seconds | None = None
    """By how much the offset may be wrong: half of the time in which its report was on its way."""
    began_seconds: dict[Stage, Offset] = {}
    """When it began each stage, counted from the leader's start; without a roll call, from its own."""
    hosts_listed: dict[str, Count] = {}
    """How many hosts are in the files in which a scheduler lists them, by the variable that names the file."""
    given_devices: str = ""
    """The CUDA_VISIBLE_DEVICES with which the first process of its PBS or LSF job on this node began; empty without
    one, and if that is hidden."""
    seen_at: str = ""
    """The address at which the leader sees it, if its node has no such address: something translates or forwards."""
    silent: tuple[Silent, ...] = ()
    """The file systems that did not answer it."""
    held: Held | Missing | None = None
    """What other processes hold of what its ranks' debugging aids use; None if they use none."""
    terminal: str = ""
    """The terminal from which it was started, such as pts/3; empty without one."""
    launch: Stated | None = None
    """What the command that it stands in front of states about its ranks."""
    near_names: tuple[str, ...] = ()
    """The names in /etc/hosts that are spelt like its MASTER_ADDR; only if MASTER_ADDR does not resolve."""


class Death(Facts, frozen=True):
    """A node's state right after one of its ranks died."""

    oom_kills: Count | Missing
    """How many processes in the ranks' cgroup were OOM-killed since the ranks started."""
    memory_limit_bytes: Count | None = None
    """The limit of the innermost cgroup that reached its memory limit meanwhile; None if none did."""
    memory_cgroup: str = ""
    """That cgroup's path, as seen on the node."""
    shm: Space | Missing | None = None
    """The space in /dev/shm; None: not checked."""
    said: str = ""
    """The last lines that the ranks of its process printed."""


class RankRun(Facts, frozen=True):
    """How a rank's own process ended in the collectives."""

    pid: Count | None
    step: str
    """Its last step, for example 'all_reduce 4194304 B'."""
    outcome: Literal["done", "failed", "stopped", "died", "stalled", "not started"]
    detail: str = ""
    """The error's text, the signal's name, or the kernel's state of the process."""
    silent_seconds: Seconds = 0.0
    """Seconds since its last message when the run ended."""
    waits_in: str = ""
    """The kernel function in which it slept when the run ended; empty if unknown."""
    stack: tuple[str, ...] = ()
    """Its Python stack when the run ended, innermost call first; empty if unknown."""
    death: Death | None = None
    """Its node's state right after its death; None if it did not die."""
    import_seconds: Seconds | None = None
    """How long the fork server took to import torch; None if it did not finish."""
    joined_seconds: Seconds | None = None
    """How long it took to join the process group; None if it did not join."""
    implementation: str = ""
    """The class behind the group's backend, such as ProcessGroupNCCL2; empty if it did not join."""
    first_call_seconds: dict[str, Seconds] = {}
    """The first call of each operation, in which the backend sets up what it needs."""
    wrong: dict[str, Count] = {}
    """Wrong elements in the correctness pass, by operation."""
    checked: dict[str, Count] = {}
    """Elements compared in the correctness pass, by operation."""
    device: str = "cpu"
    gpu: str | None = None
    """UUID of the GPU that it used, as torch reports it; None on CPUs, and if torch does not report it.

    A MIG device's UUID begins with GPU- too."""
    nccl: NcclLog | Missing | None = None
    """NCCL's debug log; None with other backends."""
    device_test: DeviceTest | Missing | None = None
    """What its device reached by itself; None if the rank ended before."""
    training: dict[str, Training | Missing] = {}
    """What its training steps did, by the way to train: DDP; empty if none were requested, or the rank ended before."""
    place: Count = 0
    """In the groups of a mesh: a rank that waits for another one has the higher number; else 0."""
    absent: tuple[Rank, ...] = ()
    """The ranks that did not come to form a group with it."""


class RankFacts(Facts, frozen=True):
    """One rank: its placement, its variables and its GPU."""

    process: str
    """The uid of its ProcessFacts."""
    placement: Placement
    environment: dict[str, str]
    """The allow-listed variables, secrets redacted."""
    visible_gpus: tuple[str, ...] | Missing | None = None
    """UUIDs in CUDA's order after CUDA_VISIBLE_DEVICES; None: not checked."""
    gpu: str | None = None
    """UUID of the GPU that `cuda:LOCAL_RANK` is, or of the only visible one."""
    cuda: CudaView | Missing | None = None
    """What CUDA itself shows; None: not checked."""
    cpu_list: str = ""
    """The CPUs on which the rank may run, folded (0-15,32-47); empty if unknown."""
    cpus: Count | None = None
    """CPUs on which the rank may run (sched_getaffinity); None if unknown."""
    run: RankRun | None = None
