"""What a running job shows from outside: its processes, sampled twice or more, with stacks where they may be read."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Missing, Rank, Seconds, Whole
from distcheck.facts.gpu import DriverError, Xid

HowNumbered = Literal["variables", "spawn", "order", "title", "given"]


class Frame(Facts, frozen=True):
    """A frame of a Python stack, as py-spy names it."""

    file: str
    """The path as the process knows it."""
    line: Count
    function: str


class Thread(Facts, frozen=True):
    """A Python thread and its stack. Values of variables are never kept."""

    name: str
    main: bool
    gil: bool
    """Whether it holds the interpreter's lock."""
    frames: tuple[Frame, ...]
    """The innermost frame first."""


class SystemCall(Facts, frozen=True):
    """The system call in which the main thread is."""

    name: str
    """Empty for a call that is not in the tables of `probe.hang.calls`; running if it is in none."""
    target: str = ""
    """The file, pipe, socket or process that the call is about, as far as known."""
    remote_port: Count | None = None
    """Of a socket that it waits for."""
    libraries: tuple[str, ...] = ()
    """File names of the libraries whose code called it, innermost first, found by return addresses on its stack."""


class Moment(Facts, frozen=True):
    """One sample of a process."""

    age_seconds: Seconds
    """How long the process had lived."""
    state: str
    """Of the main thread, as in /proc/PID/stat: R, S, D, T, t, Z; X if the process is gone."""
    waits_in: str = ""
    """The kernel function in which the main thread sleeps; empty if it runs, or may not be read."""
    call: SystemCall | None = None
    """None: may not be read."""
    run_seconds: Seconds = 0.0
    """CPU time of the main thread."""
    queued_seconds: Seconds = 0.0
    """How long the main thread waited for a CPU, in all."""
    switches: Count = 0
    """Context switches of the main thread."""
    others_seconds: Seconds = 0.0
    """CPU and queue time of the threads beside the main one, without those of Gloo, NCCL and torch's store."""
    others_switches: Count = 0
    """Context switches of the same threads."""
    traffic_seconds: Seconds = 0.0
    """CPU time of Gloo's threads, which move its data."""
    traffic_bytes: Count = 0
    """Read and written by the same threads: on a slow network they take hardly any CPU time."""
    moved_bytes: Count | None = None
    """Read and written by the process (rchar and wchar of /proc/PID/io); None: may not be read."""
    children_seconds: Seconds = 0.0
    """CPU and queue time of the processes below it, and of those that have ended."""
    children_bytes: Count | None = None
    children_switches: Count = 0
    """Of their main threads."""
    threads: tuple[Thread, ...] | Missing | None = None
    """None: no stack was requested."""


class Helper(Facts, frozen=True):
    """A process below a rank: a data-loader worker, a compiler, a subprocess."""

    pid: Count
    name: str
    state: str
    waits_in: str = ""
    call: SystemCall | None = None
    busy_seconds: Seconds = 0.0
    """CPU and queue time between the samples."""
    threads: tuple[Thread, ...] | Missing | None = None


class Unanswered(Facts, frozen=True):
    """A TCP connection of a rank whose data the other end does not acknowledge."""

    local: str
    remote: str
    """Address and port."""
    retransmits: Count
    """Unanswered timeouts in a row."""
    queued_bytes: Count


class GpuUse(Facts, frozen=True):
    """A GPU that a rank uses, by its driver; readings have an item for each sample, and are empty where it has none."""

    index: Count
    utilization_percent: tuple[Count, ...] = ()
    """The share of up to a second before in which any kernel ran, also one that only waits for others."""
    memory_used_bytes: tuple[Count, ...] = ()
    power_watts: tuple[Amount, ...] = ()
    power_limit_watts: Amount | None = None
    lost: str = ""
    """The driver's text if it is lost."""
    xids: tuple[Xid, ...] = ()
    """Those since the rank's process started, as far as the kernel log may be read."""
    driver_errors: tuple[DriverError, ...] = ()
    """Those of an AMD GPU since then."""


class WrittenDump(Facts, frozen=True):
    """What a rank wrote of torch's Flight Recorder since it started."""

    path: str
    """As the process knows it."""
    written: Seconds
    """Since 1970, by the clock of its node."""
    size: Count


class Recorded(Facts, frozen=True):
    """What the dumps of the ranks say together."""

    says: str
    ranks: tuple[Rank, ...]
    """Those that hold up the others."""
    waiting: tuple[Rank, ...]
    """Those that were in a call when they wrote their dump."""


class RankProcess(Facts, frozen=True):
    """The process of a rank."""

    rank: Rank | None
    node: str
    pid: Count
    program: str
    """The script, module or program that it runs."""
    local_rank: Rank | None = None
    numbered: HowNumbered = "variables"
    """From where the rank is known."""
    meets: str = ""
    """Its MASTER_ADDR:MASTER_PORT, where those of the ranks differ."""
    moments: tuple[Moment, ...] = ()
    helpers: tuple[Helper, ...] = ()
    """Those that are busy or blocked, at most a few."""
    unanswered: tuple[Unanswered, ...] = ()
    torch: bool = True
    """Whether torch is loaded."""
    cuda: bool = False
    """Whether CUDA or HIP is loaded."""
    gpus: tuple[GpuUse, ...] | Missing = ()
    """Those that it uses; Missing if their driver gave no answer."""
    native: tuple[Frame, ...] | Missing = ()
    """The functions of libraries that the innermost Python frame called, with --native; files have no folder."""
    dump: WrittenDump | None = None


class HangNode(Facts, frozen=True):
    """A node that was looked at, or should have been."""

    name: str
    problem: str = ""
    """Why nothing is known about it; empty if it answered."""
    user: str = ""
    """The user that looked."""
    unreadable: tuple[Count, ...] = ()
    """Python processes that may not be read, so that it is unknown whether they belong to the job."""
    yama: Whole | None = None
    """kernel.yama.ptrace_scope; None without Yama."""
    sys_ptrace: bool = False
    """Whether distcheck had CAP_SYS_PTRACE."""
    container: str = ""
    """docker, kubernetes, …; empty outside a container."""
    sampler: str = ""
    """Why there are no stacks; empty if there are, or none were requested."""
    ended: tuple[Count, ...] = ()
    """Processes of the job that ended and were not reaped."""


class RunningJob(Facts, frozen=True):
    """A running job as it was seen."""

    name: str
    """What tells it from others: its meeting place, or the process that started it."""
    world_size: Rank | None = None
    ranks_per_node: Rank | None = None
    """LOCAL_WORLD_SIZE."""
    local: bool = False
    """Whether all of its ranks run on the nodes that were looked at."""
    launcher: str = ""
    nodes: tuple[HangNode, ...] = ()
    ranks: tuple[RankProcess, ...] = ()
    stacks: bool = True
    """Whether stacks were requested."""
    recorded: Recorded | None = None
