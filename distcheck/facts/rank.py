"""Processes and the ranks for which they speak."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Offset, Rank, Seconds
from distcheck.facts.gpu import CudaView, Gpus
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Attempt, Bind, Resolution, ReverseLookup
from distcheck.facts.node import Space, TorchBuild
from distcheck.facts.placement import Placement, Variables

Stage = Literal[
    "started", "environment", "node", "meeting", "peers", "collectives", "isolation", "done"
]  # fmt: skip


class Agent(Facts, frozen=True):
    """The torchelastic agent that started this process: torchrun, torch.distributed.launch or accelerate."""

    program: Literal["torchrun", "launch", "accelerate"]
    pid: Count
    arguments: tuple[str, ...]
    """What follows the program on its command line; beyond 40 words it is cut."""
    exported: Variables | Missing
    """The rank variables in its own environment, which it makes anew for its ranks; all others it hands on."""


class Installed(Facts, frozen=True):
    """The software that a process runs on, read without importing any of it."""

    python: str
    prefix: str
    """The environment's folder (sys.prefix)."""
    torch: TorchBuild | Missing
    nccl: str = ""
    """Version of the NCCL that pip installed beside torch; empty where torch brings its own, or none."""


class ProcessFacts(Facts, frozen=True):
    """One running distcheck and the ranks for which it speaks."""

    uid: str
    node: str
    """Key of a NodeFacts."""
    pid: Count
    command: tuple[str, ...]
    """Its own command line."""
    ancestors: tuple[str, ...] = ()
    """Names and arguments of the processes that started it, nearest first."""
    stage: Stage = "started"
    role: Literal["host", "guest", "alone"] = "alone"
    bind: Bind | None = None
    free_ports: tuple[Count, ...] = ()
    """Ports near MASTER_PORT on which nobody listens on its node; looked for where rank 0 is, or may be."""
    master_resolution: Resolution | Missing | None = None
    attempts: tuple[Attempt, ...] = ()
    agent: Agent | None = None
    """The nearest torchelastic agent among the ancestors."""
    installed: Installed | None = None
    """None in files of before."""
    shm_device: Count | Missing | None = None
    """st_dev of /dev/shm: NCCL shares memory only where it is the same. None: not looked at, as outside of pods."""
    reverse: tuple[ReverseLookup, ...] = ()
    """Of the addresses with which it has connections: rank 0's, on rank 0's own process a few of the others'."""
    arrived_seconds: Seconds | None = None
    """When it came to the roll call, after the first one did; None where nobody else was met."""
    clock_ahead_seconds: Offset | None = None
    """By how much its clock is surely ahead of the roll call host's, negative behind; 0 when it may be the same."""
    gpus: Gpus | None = None
    """What NVML shows this process, without their condition, where it is kept to a part of its node's GPUs."""
    lost: str = ""
    """How the roll call's host lost it before it had said all that it was to say; empty when it did not."""
    host_lost: str = ""
    """How it lost the roll call's host before the verdict; empty when it did not."""
    host_rank: Rank = 0
    """The host's first rank: another than 0 where a process stood in for rank 0's."""


class Death(Facts, frozen=True):
    """What a node showed right after one of its ranks had died."""

    oom_kills: Count | Missing
    """How many processes of the ranks' cgroup the kernel has killed for want of memory since they were started."""
    memory_limit_bytes: Count | None = None
    """The limit of the innermost cgroup that ran out of memory meanwhile; None where none with a limit did."""
    memory_cgroup: str = ""
    """That cgroup, as it is seen there."""
    shm: Space | Missing | None = None
    """The room for shared memory in /dev/shm; None: not looked at."""
    said: str = ""
    """The last lines that the ranks of its process wrote."""


class RankRun(Facts, frozen=True):
    """What became of a rank's own process in the collectives."""

    pid: Count | None
    step: str
    """What it was doing last, for example 'all_reduce 4194304 B'."""
    outcome: Literal["done", "failed", "stopped", "died", "stalled", "not started"]
    detail: str = ""
    """The error's text, the signal's name, or the kernel's state of the process."""
    silent_seconds: Seconds = 0.0
    """How long it had said nothing when the run ended."""
    waits_in: str = ""
    """The kernel's function in which it slept when the run ended; empty where that was not asked or not shown."""
    stack: tuple[str, ...] = ()
    """Its Python calls when the run ended, innermost first; empty where it did not tell."""
    death: Death | None = None
    """What its node showed right after it had died; None where it did not."""
    import_seconds: Seconds | None = None
    """How long the program that forks the ranks took to import torch; None where it did not come about."""
    joined_seconds: Seconds | None = None
    """How long it took to join the process group; None where it did not come about."""
    first_call_seconds: dict[str, Seconds] = {}
    """Of each operation, in which the backend sets up what it needs."""
    wrong: dict[str, Count] = {}
    """Wrong elements in the correctness pass, by operation."""
    checked: dict[str, Count] = {}
    """Elements compared in the correctness pass, by operation."""
    device: str = "cpu"
    gpu: str | None = None
    """UUID of the GPU on which it worked, as torch tells; None on CPUs, and where torch does not tell.

    A MIG device's begins with GPU- too."""
    nccl: NcclLog | Missing | None = None
    """What NCCL said of itself; None with other backends."""


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
    cuda: CudaView | Missing | None = None
    """What CUDA itself shows; None: not asked."""
    cpu_list: str = ""
    """The CPUs on which the rank may run, folded (0-15,32-47); empty where that is not known."""
    cpus: Count | None = None
    """CPUs on which the rank may run (sched_getaffinity); None where that is not known."""
    run: RankRun | None = None
