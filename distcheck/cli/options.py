"""The options that the checking commands share, and how typer parses and prints them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from distcheck.collectives.plan import ALL_OPERATIONS, ITEM_BYTES
from distcheck.report import FORMATS

RANKS, CHECKS, LIMITS, MEASUREMENT, OUTPUT = PANELS = (
    "Which ranks",
    "What to check",
    "Time limits",
    "Measurement",
    "Output",
)
VARIABLES = (
    "Each option can also be set by an environment variable: --join-timeout, for example, by DISTCHECK_JOIN_TIMEOUT."
)
JOIN_SECONDS = 20.0


def _option(help_text: str, panel: str, name: str, *short: str, **more: Any) -> Any:
    variable = "DISTCHECK_" + name.lstrip("-").replace("-", "_").upper()
    return typer.Option(name, *short, help=help_text, rich_help_panel=panel, envvar=variable, show_envvar=False, **more)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the commands that check a job; `taking` makes each a parameter."""

    nproc: Annotated[
        str | None,
        _option(
            "Number of ranks to start on this machine; with --hosts or in a Slurm allocation, on each node. auto (this "
            "machine only): one per GPU, else one per core.",
            RANKS,
            "--nproc",
            metavar="N|auto",
        ),
    ] = None
    hosts: Annotated[str, _option("Nodes to start the probes on.", RANKS, "--hosts", metavar="a,b[1-4]")] = ""
    hostfile: Annotated[
        Path | None, _option("File that lists the nodes to start the probes on.", RANKS, "--hostfile", metavar="FILE")
    ] = None
    launcher: Annotated[
        str, _option("How to start the probes: auto, local, ssh, slurm or mpi.", RANKS, "--launcher", metavar="NAME")
    ] = "auto"
    launcher_args: Annotated[
        str,
        _option("Arguments for srun or mpirun, for example --partition=gpu.", RANKS, "--launcher-args", metavar="'…'"),
    ] = ""
    env: Annotated[str, _option("Variables to pass on to the probes.", RANKS, "--env", metavar="'NAME*,…'")] = ""
    setup: Annotated[
        str, _option("Shell commands that prepare a node, as the job does.", RANKS, "--setup", metavar="'…'")
    ] = ""
    python: Annotated[str, _option("Python interpreter to use on the nodes.", RANKS, "--python", metavar="PATH")] = ""
    need: Annotated[
        int | None, _option("Number of nodes that suffice; bad nodes are excluded.", RANKS, "--need", metavar="N")
    ] = None
    alone: Annotated[bool, _option("Check this process only, without a roll call.", RANKS, "--alone")] = False
    rank: Annotated[
        int | None, _option("Rank of this process; with --nproc, number of this node.", RANKS, "--rank", metavar="N")
    ] = None
    world_size: Annotated[
        int | None, _option("Number of ranks; with --nproc, number of nodes.", RANKS, "--world-size", metavar="N")
    ] = None
    local_rank: Annotated[
        int | None, _option("Rank of this process on its node.", RANKS, "--local-rank", metavar="N")
    ] = None
    master_addr: Annotated[
        str | None, _option("Address on which rank 0 listens.", RANKS, "--master-addr", metavar="HOST")
    ] = None
    master_port: Annotated[
        int | None, _option("Port on which rank 0 listens.", RANKS, "--master-port", metavar="PORT")
    ] = None
    timeout: Annotated[float, _option("Time limit for the whole run.", LIMITS, "--timeout", metavar="SECONDS")] = 60.0
    join_timeout: Annotated[
        float,
        _option("Time to wait for late ranks; raise --timeout with it.", LIMITS, "--join-timeout", metavar="SECONDS"),
    ] = JOIN_SECONDS
    connect_timeout: Annotated[
        float, _option("Time limit for one connection.", LIMITS, "--connect-timeout", metavar="SECONDS")
    ] = 3.0
    backend: Annotated[
        str, _option("Backend of the job: auto, nccl, gloo or mpi.", CHECKS, "--backend", metavar="NAME")
    ] = "auto"
    strict: Annotated[bool, _option("Fail on warnings (exit code 10).", CHECKS, "--strict")] = False
    select: Annotated[str, _option("Apply only these rules.", CHECKS, "--select", metavar="RULE,…")] = ""
    ignore: Annotated[str, _option("Do not apply these rules.", CHECKS, "--ignore", metavar="RULE,…")] = ""
    format: Annotated[
        str, _option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", OUTPUT, "--format", metavar="NAME")
    ] = "text"
    output: Annotated[Path | None, _option("Write the report to this file.", OUTPUT, "--output", metavar="FILE")] = None
    save: Annotated[
        Path | None,
        _option(
            "Save the job for distcheck report. In a directory, each process writes a file.",
            OUTPUT,
            "--save",
            metavar="PATH",
        ),
    ] = None
    exclude_file: Annotated[
        Path | None,
        _option("Write the confirmed bad nodes to this file, one per line.", OUTPUT, "--exclude-file", metavar="FILE"),
    ] = None
    all_ranks: Annotated[bool, _option("Show a row for every rank.", OUTPUT, "--all-ranks")] = False
    legend: Annotated[bool, _option("Explain the columns.", OUTPUT, "--legend")] = False
    timings: Annotated[bool, _option("Show how long the run and its steps took.", OUTPUT, "--timings")] = False
    verbose: Annotated[bool, _option("Show info findings too, and shorten nothing.", OUTPUT, "--verbose", "-v")] = False
    quiet: Annotated[bool, _option("Show only findings and verdict.", OUTPUT, "--quiet", "-q")] = False


class Measuring(Options, frozen=True, kw_only=True):
    """The options of the commands that measure."""

    op: Annotated[
        str,
        _option(
            f"Operations to measure (default: all_reduce,broadcast), of {', '.join(ALL_OPERATIONS)}.",
            MEASUREMENT,
            "--op",
            metavar="OP,…",
        ),
    ] = ""
    sizes: Annotated[
        str,
        _option(
            "Message sizes, for example 1M:64M:x2 (default: 1M:256M:x4; with Gloo 1M:16M:x4).",
            MEASUREMENT,
            "--sizes",
            metavar="MIN:MAX[:xFACTOR]",
        ),
    ] = ""
    dtype: Annotated[
        str,
        _option(
            f"Data types (default: float32), of {', '.join(ITEM_BYTES)}.", MEASUREMENT, "--dtype", metavar="TYPE,…"
        ),
    ] = ""
    rotate_root: Annotated[bool, _option("Use another root for each broadcast.", MEASUREMENT, "--rotate-root")] = False
    iters: Annotated[
        int | None,
        _option(
            "Operations per size (default: as many as a steady figure needs).", MEASUREMENT, "--iters", metavar="N"
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        _option(
            "Target time of the sweep (default: 2 s per size; with Gloo 0.6 s).",
            MEASUREMENT,
            "--time-limit",
            metavar="SECONDS",
        ),
    ] = None
    min_busbw: Annotated[
        float | None,
        _option(
            "Lowest accepted bus bandwidth, in GB/s (1e9 bytes); below it is a finding.",
            MEASUREMENT,
            "--min-busbw",
            metavar="GBPS",
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        _option("Compare the figures with this run, written by --save.", MEASUREMENT, "--baseline", metavar="FILE"),
    ] = None


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `distcheck node`, which has no ranks."""

    gpus: Annotated[int | None, _option("Number of GPUs that the node must have.", CHECKS, "--gpus", metavar="N")] = (
        None
    )
    timeout: Annotated[float, _option("Time limit for the whole run.", LIMITS, "--timeout", metavar="SECONDS")] = 10.0
    strict: Annotated[bool, _option("Fail on warnings (exit code 10).", CHECKS, "--strict")] = False
    select: Annotated[str, _option("Apply only these rules.", CHECKS, "--select", metavar="RULE,…")] = ""
    ignore: Annotated[str, _option("Do not apply these rules.", CHECKS, "--ignore", metavar="RULE,…")] = ""
    format: Annotated[
        str, _option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", OUTPUT, "--format", metavar="NAME")
    ] = "text"
    output: Annotated[Path | None, _option("Write the report to this file.", OUTPUT, "--output", metavar="FILE")] = None
    save: Annotated[
        Path | None, _option("Save the facts, to judge them again later.", OUTPUT, "--save", metavar="PATH")
    ] = None
    exclude_file: Annotated[
        Path | None,
        _option("Write this node's name to this file if the node is bad.", OUTPUT, "--exclude-file", metavar="FILE"),
    ] = None
    reason_file: Annotated[
        Path | None,
        _option(
            "Write why the node is not healthy to this file: one line for scontrol's Reason=, empty if it is healthy.",
            OUTPUT,
            "--reason-file",
            metavar="FILE",
        ),
    ] = None
    syslog: Annotated[bool, _option("Write one line to the system log.", OUTPUT, "--syslog")] = False
    verbose: Annotated[bool, _option("Show info findings too, and shorten nothing.", OUTPUT, "--verbose", "-v")] = False
    quiet: Annotated[bool, _option("Show only findings and verdict.", OUTPUT, "--quiet", "-q")] = False


@cache
def _parameters(options: type[msgspec.Struct]) -> tuple[inspect.Parameter, ...]:
    """Return the fields of `options` as parameters; cached, as type hints are slow."""
    hints = get_type_hints(options, include_extras=True)
    return tuple(
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in msgspec.structs.fields(options)
    )


def taking(options: type[msgspec.Struct]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that turns the fields of `options` into parameters of a command.

    The command receives them as its first argument, in one value.
    """

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = list(_parameters(options))

        def command(**values: Any) -> None:
            given = {p.name: values.pop(p.name) for p in shared}
            function(options(**given), **values)

        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        command.__signature__ = inspect.Signature(own + shared)  # type: ignore[attr-defined]  # read by typer
        command.__annotations__ = {p.name: p.annotation for p in own + shared}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


class Command(TyperCommand):
    """A command that converts given values only, and prints its options in groups."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, including --help."""
        return _without_needless_conversion(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, one section per group."""
        # In plain text: typer writes these groups only with rich, which is no dependency of distcheck.
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS, "Options")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                panel = getattr(param, "rich_help_panel", None)
                other = "Arguments" if param.param_type_name == "argument" else "Options"
                sections[panel if panel in sections else other].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group of commands that converts given values only."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, including --help."""
        return _without_needless_conversion(super().get_params(ctx))


def _without_needless_conversion(params: list[Any]) -> list[Any]:
    """Return the parameters, changed to pass on their defaults without conversion.

    Newer versions of typer convert defaults too, with a pydantic model for each. Importing pydantic took a third of the
    start-up time. typer chooses the class of its parameters, so the method of each one is replaced.
    """
    for param in params:
        if "process_value" not in vars(param):
            param.process_value = partial(_process, param, param.process_value)
    return params


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    if value is not param.default or param.required:
        return convert(ctx, value)
    return param.callback(ctx, param, value) if param.callback else value
