"""The options of the commands; an option's name and variable are made of its field's name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import typer

from distcheck.cli.backends import backend, known
from distcheck.collectives.plan import ALL_OPERATIONS, ITEM_BYTES
from distcheck.facts.policy import Checker, Mode
from distcheck.report import Format

PANELS = ("Which ranks", "What to check", "Time limits", "Measurement", "Output")
"""The groups of options in --help."""
JOIN_SECONDS = 20.0
LEAST = 0.001
"""The smallest time in seconds, and the smallest bandwidth in GB/s, that an option accepts."""
Launcher = Literal["auto", "local", "ssh", "slurm", "mpi"]


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    option = typer.Option(help=text, rich_help_panel=panel, **more)
    option.param_decls = names  # typer.Option takes the first one for the default
    return option


_ranks, _check, _limit, _measure, _output = (partial(_option, panel) for panel in PANELS)
_seconds = partial(_limit, metavar="SECONDS", min=LEAST)


def _names(choices: Any) -> str:
    *others, last = get_args(choices)
    return f"{', '.join(others)} or {last}"


Hosts = Annotated[str, _ranks("Nodes to start the probes on.", metavar="a,b[1-4]")]
Hostfile = Annotated[Path | None, _ranks("File that lists the nodes to start the probes on.", metavar="FILE")]
Setup = Annotated[str, _ranks("Shell commands that prepare a node, as the job does.", metavar="'…'")]
Python = Annotated[str, _ranks("Python interpreter to use on the nodes.", metavar="PATH")]
AllRanks = Annotated[bool, _output("Show a row for every rank.")]
History = Annotated[
    Path | None,
    _check(
        "Shared directory to which each run appends its result for each node, and in which it looks for nodes that "
        "failed before.",
        metavar="DIR",
    ),
]
Baseline = Annotated[Path | None, _measure("Compare the figures with this run, written by --save.", metavar="FILE")]


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every command that writes a report."""

    format: Annotated[Format, _output(f"{_names(Format)}.", metavar="NAME")] = "text"
    output: Annotated[Path | None, _output("Write the report to this file.", metavar="FILE")] = None
    verbose: Annotated[bool, _output("Show info findings too, and shorten nothing.", "-v")] = False


class ReportOptions(Reporting, frozen=True, kw_only=True):
    """Options of `distcheck report`."""

    policy: Annotated[
        Path | None, _check("Judge by this policy (default: as saved), and by its mode.", metavar="FILE|DIR")
    ] = None
    strict: Annotated[bool | None, _check("Fail on warnings (default: as saved).", "--strict/--no-strict")] = None
    baseline: Annotated[
        Path | None,
        _output(
            "Show what differs from this run, written by --save: findings, figures, hardware, software, variables.",
            metavar="FILE|DIR",
        ),
    ] = None
    history: Annotated[
        Path | None,
        _output("Show the nodes by how often they failed, from the --history of earlier runs.", metavar="DIR"),
    ] = None
    would: Annotated[
        bool, _output("With --history: show the rules for which nodes would have been excluded in mode observe.")
    ] = False
    all_ranks: AllRanks = False
    schema: Annotated[bool, _output("Print the JSON Schema of --format json.")] = False


class PolicyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `distcheck policy`."""

    policy: Annotated[
        Path | None,
        _check("Show this policy (default: DISTCHECK_POLICY, or /etc/distcheck).", metavar="FILE|DIR"),
    ] = None
    check: Annotated[
        Path | None, _check("Check this file or folder; exit code 2 if anything is wrong.", metavar="FILE|DIR")
    ] = None
    node: Annotated[str, _check("Show what holds on this node (default: this one).", metavar="NAME")] = ""
    partition: Annotated[
        str, _check("Show what holds in this partition (default: SLURM_JOB_PARTITION).", metavar="NAME")
    ] = ""
    schema: Annotated[bool, _output("Print the JSON Schema of a policy file.")] = False


class Checking(Reporting, frozen=True, kw_only=True):
    """Options of every command that checks."""

    policy: Annotated[
        Path | None,
        _check(
            "The site's policy: a file, or a folder with policy.toml and policy.d/*.toml (default: /etc/distcheck).",
            metavar="FILE|DIR",
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        _check("observe: report, but exit with 0 and exclude no node; enforce: as usual.", metavar="NAME"),
    ] = None
    strict: Annotated[bool, _check("Fail on warnings (exit code 10).")] = False
    select: Annotated[str, _check("Apply only these rules.", metavar="RULE,…")] = ""
    ignore: Annotated[str, _check("Do not apply these rules.", metavar="RULE,…")] = ""
    save: Annotated[
        Path | None,
        _output("Save the job for distcheck report. In a directory, each process writes a file.", metavar="PATH"),
    ] = None
    exclude_file: Annotated[
        Path | None, _output("Write the confirmed bad nodes to this file, one per line.", metavar="FILE")
    ] = None
    passing_file: Annotated[
        Path | None, _output("Write the nodes that passed to this file, one per line.", metavar="FILE")
    ] = None
    quiet: Annotated[bool, _output("Show only the verdict, findings, and what makes it unknown.", "-q")] = False


class Visiting(Checking, frozen=True, kw_only=True):
    """Options of every command that looks at the folders of nodes."""

    path: Annotated[
        list[str] | None,  # not Path, for the same reason as --history
        _check("Folder that every node must have; repeat it for more (DISTCHECK_PATH: separated by :).", metavar="DIR"),
    ] = None


class HangOptions(Checking, frozen=True, kw_only=True):
    """Options of `distcheck hang`."""

    pid: Annotated[
        list[str] | None,
        _ranks("Process of the job: a rank, or one above or below it; repeat it for more.", metavar="PID,…"),
    ] = None
    hosts: Hosts = ""
    hostfile: Hostfile = None
    job: Annotated[str, _ranks("Slurm job to look at, through srun on each of its nodes.", metavar="ID")] = ""
    pods: Annotated[str, _ranks("Pods to look at, by kubectl exec.", metavar="SELECTOR")] = ""
    namespace: Annotated[str, _ranks("Namespace of the pods.", "-n", metavar="NAME")] = ""
    container: Annotated[str, _ranks("Container of the pods.", "-c", metavar="NAME")] = ""
    setup: Setup = ""
    python: Python = ""
    wait: Annotated[float, _seconds("Time between the two samples.", max=3600)] = 2.0
    watch: Annotated[
        float | None, _seconds("Look again after each of these times until the answer changes.", max=86400)
    ] = None
    timeout: Annotated[float, _seconds("Time limit for the whole run, without --watch.", min=5)] = 60.0
    stacks: Annotated[
        bool, _check("Read the Python stacks with py-spy; without them only /proc.", "--stacks/--no-stacks")
    ] = True
    native: Annotated[
        bool,
        _check(
            "Also read the functions of C++ libraries; stops each rank for up to seconds while it looks.", "--native"
        ),
    ] = False
    all_ranks: AllRanks = False


class NodeOptions(Visiting, frozen=True, kw_only=True):
    """Options of `distcheck node`, which has no ranks."""

    gpus: Annotated[int | None, _check("Number of GPUs that the node must have.", metavar="N", min=0, max=1023)] = None
    diagnose: Annotated[
        bool, _check("Have NCCL 2.31 or later test the links of idle GPUs; takes seconds and memory on each.")
    ] = False
    history: History = None
    timeout: Annotated[float, _seconds("Time limit for the whole run, 3 s at least.", min=3)] = 10.0
    reason_file: Annotated[
        Path | None,
        _output(
            "Write why the node is not healthy to this file: one line for scontrol's Reason=, empty if it is healthy.",
            metavar="FILE",
        ),
    ] = None
    syslog: Annotated[bool, _output("Write one line to the system log.")] = False


class Options(Visiting, frozen=True, kw_only=True):
    """Options of the commands that check a job."""

    nproc: Annotated[
        str | None,
        _ranks(
            "Number of ranks to start on this machine; with --hosts or in a Slurm allocation, on each node. auto (this "
            "machine only): one per GPU, else one per core.",
            metavar="N|auto",
        ),
    ] = None
    hosts: Hosts = ""
    hostfile: Hostfile = None
    launcher: Annotated[Launcher, _ranks(f"How to start the probes: {_names(Launcher)}.", metavar="NAME")] = "auto"
    launcher_args: Annotated[
        str, _ranks("Arguments for srun or mpirun, for example --partition=gpu.", metavar="'…'")
    ] = ""
    env: Annotated[str, _ranks("Variables to pass on to the probes.", metavar="'NAME*,…'")] = ""
    setup: Setup = ""
    python: Python = ""
    need: Annotated[int | None, _ranks("Number of nodes that suffice; bad nodes are excluded.", metavar="N", min=1)] = (
        None
    )
    alone: Annotated[bool, _ranks("Check this process only, without a roll call.")] = False
    rank: Annotated[
        int | None, _ranks("Rank of this process; with --nproc, number of this node.", metavar="N", min=0)
    ] = None
    world_size: Annotated[int | None, _ranks("Number of ranks; with --nproc, number of nodes.", metavar="N", min=1)] = (
        None
    )
    local_rank: Annotated[int | None, _ranks("Rank of this process on its node.", metavar="N", min=0)] = None
    master_addr: Annotated[str | None, _ranks("Address on which rank 0 listens.", metavar="HOST")] = None
    master_port: Annotated[int | None, _ranks("Port on which rank 0 listens.", metavar="PORT", min=1, max=65535)] = None
    timeout: Annotated[float, _seconds("Time limit for the whole run.")] = 60.0
    join_timeout: Annotated[float, _seconds("Time to wait for late ranks; raise --timeout with it.")] = JOIN_SECONDS
    connect_timeout: Annotated[float, _seconds("Time limit for one connection.")] = 3.0
    backend: Annotated[
        str,
        _check(
            f"Backend of the job: {', '.join(known())}, a plugin's, or cpu:gloo,cuda:nccl.",
            metavar="NAME",
            parser=backend,
            autocompletion=known,
        ),
    ] = "auto"
    mesh: Annotated[
        str,
        _check(
            "Dimensions of the job's parallelism, outermost first, as for init_device_mesh; hsdp=2x8 for FSDP with "
            "replicas; node or rail for the groups of nodes and rails.",
            metavar="pp=2,dp=4,tp=8",
        ),
    ] = ""
    mesh_order: Annotated[
        str, _check("Order of the dimensions, innermost first, as Megatron takes it.", metavar="tp-cp-ep-dp-pp")
    ] = ""
    all_ranks: AllRanks = False
    legend: Annotated[bool, _output("Explain the columns.")] = False
    timings: Annotated[bool, _output("Show how long each stage of the run took, and what it waited for.")] = False


class Looking(Options, frozen=True, kw_only=True):
    """Options of the commands that check nodes, not only their variables."""

    history: History = None


class Measuring(Looking, frozen=True, kw_only=True):
    """Options of the commands that measure."""

    op: Annotated[
        str,
        _measure(
            f"Operations to measure (default: all_reduce,broadcast), of {', '.join(ALL_OPERATIONS)}.", metavar="OP,…"
        ),
    ] = ""
    sizes: Annotated[
        str,
        _measure(
            "Message sizes, for example 1M:64M:x2 (default: 1M:256M:x4; with Gloo 1M:16M:x4).",
            metavar="MIN:MAX[:xFACTOR]",
        ),
    ] = ""
    dtype: Annotated[str, _measure(f"Data types (default: float32), of {', '.join(ITEM_BYTES)}.", metavar="TYPE,…")] = (
        ""
    )
    iters: Annotated[
        int | None,
        _measure("Operations per size (default: as many as a steady figure needs).", metavar="N", min=1),
    ] = None
    time_limit: Annotated[
        float | None,
        _measure("Target time of the sweep (default: 2 s per size; with Gloo 0.6 s).", metavar="SECONDS", min=LEAST),
    ] = None
    min_busbw: Annotated[
        float | None,
        _measure(
            "Lowest accepted bus bandwidth, in GB/s (1e9 bytes); below it is a finding.", metavar="GBPS", min=LEAST
        ),
    ] = None
    baseline: Baseline = None
    burn: Annotated[
        float | None,
        _measure(
            "Repeat matrix products on every GPU for this long, and check every result.", metavar="SECONDS", min=LEAST
        ),
    ] = None
    step: Annotated[
        bool, _measure("Take two training steps with DDP and FSDP2 on every rank, and check every result.")
    ] = False


class GateOptions(Measuring, frozen=True, kw_only=True):
    """Options of `distcheck gate`."""

    export: Annotated[bool, _option("Options", "Set RANK, WORLD_SIZE and so on of this process for COMMAND.")] = False
    arm: Annotated[bool, _option("Options", "Let `distcheck hang` attach to COMMAND later without root.")] = False


OPTIONS: dict[Checker, type[Checking]] = {
    "env": Options,
    "net": Looking,
    "gpu": Looking,
    "bandwidth": Measuring,
    "isolate": Looking,
    "gate": GateOptions,
    "node": NodeOptions,
}
"""The options of each command that checks."""
