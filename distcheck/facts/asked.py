"""The user's request, and the earlier run that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Measured, Seconds
from distcheck.facts.mesh import Mesh
from distcheck.facts.policy import NOTHING, Mode, Policy, Section

Look = Literal[
    "launch",
    "environment",
    "meeting",
    "peers",
    "node",
    "gpu",
    "collectives",
    "training",
    "isolation",
    "storage",
    "hang",
]


class BaselineRow(Facts, frozen=True):
    """A figure of an earlier run."""

    op: str
    dtype: str
    bytes: Count
    group: str
    seconds: Measured
    """The mean over the ranks."""
    uncertainty: Amount | None
    """The relative uncertainty; None if unknown."""


class Baseline(Facts, frozen=True):
    """An earlier run to compare with."""

    file: str
    ranks_by_node: tuple[Count, ...]
    """How many ranks each node had, the largest number first."""
    gpus: dict[str, Count]
    """How many GPUs of each model the ranks took."""
    backend: str
    torch: str
    nccl: str
    rows: tuple[BaselineRow, ...]


class Asked(Facts, frozen=True):
    """The user's request; needed to judge the job again later."""

    command: str
    looks: tuple[Look, ...]
    backend: str = "auto"
    """The kind of backend: nccl for all that use GPUs through NCCL or RCCL, else the name of what moves the data."""
    backend_name: str = ""
    """The name for init_process_group if it is another one, such as nccl-lazy or cpu:gloo,cuda:nccl."""
    started_here: bool = False
    """True if distcheck started the ranks itself (--nproc, or on other nodes)."""
    by_default: bool = False
    """True if no rank count was given and two ranks were used."""
    operations: tuple[str, ...] = ()
    sizes_bytes: tuple[Count, ...] = ()
    dtypes: tuple[str, ...] = ()
    min_busbw_GBps: Amount | None = None  # noqa: N815 the unit's own spelling
    baseline: Baseline | None = None
    timeout_seconds: Seconds = 60.0
    join_timeout_seconds: Seconds = 20.0
    strict: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    export: bool = False
    """True if COMMAND gets the placement's RANK, MASTER_ADDR and so on."""
    program: str = ""
    """The file name of COMMAND's program; empty without COMMAND."""
    rendezvous_file: str = ""
    """The path of a file:// argument of COMMAND; empty without one."""
    batch_shell: bool = False
    """True if distcheck was started in a Slurm job's batch or salloc shell, not by srun."""
    gpus: Count | None = None
    """How many GPUs the node must have (`distcheck node --gpus`)."""
    diagnose: bool = False
    """Whether NCCL diagnoses the node's GPUs (`distcheck node --diagnose`)."""
    need: Count | None = None
    """How many nodes suffice; None if all are needed."""
    script: str = ""
    """The file that COMMAND's Python or launcher runs, as COMMAND names it; empty if unknown."""
    rendezvous_backend: str = ""
    """The --rdzv-backend in a COMMAND that is torchrun."""
    burn_seconds: Seconds = 0.0
    """How long the device test repeats its products (--burn)."""
    paths: tuple[str, ...] = ()
    """The folders of --path."""
    words: tuple[str, ...] = ()
    """COMMAND's program, empty for a run from outside, and its words that may be paths; secrets redacted."""
    folder: str = ""
    """Where distcheck was started, for a run from outside: paths in COMMAND are relative to it."""
    mesh: Mesh | None = None
    """The dimensions of --mesh as given: `selection.meshes.resolved` has all sizes."""
    python: str = ""
    """--python, for a run from outside; empty without it."""
    setup: str = ""
    """--setup, likewise; secrets redacted."""
    launcher_args: str = ""
    """--launcher-args, likewise; secrets redacted."""
    env: str = ""
    """--env, likewise: patterns of names, no values."""
    line: str = ""
    """The command line of distcheck; secrets redacted."""
    module: tuple[str, ...] = ()
    """How COMMAND runs a module: the interpreter with its options, or a launcher, then the module; empty if it runs
    none, and for a run from outside."""
    processes: str = ""
    """How many processes one start of COMMAND makes on a node: a number, gpu or auto; empty if unknown."""
    told: str = ""
    """What COMMAND says about its ranks, as it was understood; empty without a launcher."""

    armed: str = ""
    """What --arm reaches; empty without it."""

    mode: Mode | None = None
    """--mode; None: as the policy says."""
    policy: Policy | None = None
    """The site's policy; None without one."""

    @property
    def gpus_from(self) -> str:
        """Who says how many GPUs the node must have."""
        return "the site's policy" if self.site().expect.gpus == self.gpus else "--gpus"

    def site(self, node: str = "") -> Section:
        """Return what the policy sets on a node, by its name in reports; without one, where the run is judged."""
        return NOTHING if self.policy is None or self.policy.problem else self.policy.on(node.partition(" (")[0])

    def mode_of(self, rule: Iterable[str] = (), node: str = "") -> Mode:
        """Return whether a rule, by its name and aliases, or without one the command, decides exit codes on a node."""
        site = self.site(node)
        for setting in (site.rule[name] for name in rule if name in site.rule):
            if setting.mode:
                return setting.mode
            if self.policy is not None and setting.ended(self.policy.day):
                return "observe"
        own = next((setting.mode for name, setting in site.command.items() if name == self.command), None)
        unread: Mode = "observe" if self.policy is not None and self.policy.problem else "enforce"
        return self.mode or own or site.mode or unread

    @property
    def measures(self) -> bool:
        """Whether ranks run collectives."""
        return not {"collectives", "isolation"}.isdisjoint(self.looks)
