"""The options that the commands which look at a job share, and what they ask for."""

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

WHO, BY_HAND, LIMITS, JUDGED, OUT, MEASURED = (
    "Who takes part",
    "Ranks set by hand",
    "Limits",
    "What is judged",
    "What comes out",
    "What is measured",
)
JOIN_SECONDS = 20.0


def _option(help_text: str, panel: str, name: str, *short: str, **more: Any) -> Any:
    variable = "DISTCHECK_" + name.lstrip("-").replace("-", "_").upper()
    return typer.Option(name, *short, help=help_text, rich_help_panel=panel, envvar=variable, **more)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One field per option; `command` turns them into the parameters of every command that looks."""

    nproc: Annotated[
        str | None,
        _option(
            "Start N ranks on this machine, or with --hosts or in a Slurm allocation on each node; auto, here only: "
            "one per GPU, else per core.",
            WHO,
            "--nproc",
            metavar="N|auto",
        ),
    ] = None
    hosts: Annotated[str, _option("Start the probes on these nodes.", WHO, "--hosts", metavar="a,b[1-4]")] = ""
    hostfile: Annotated[Path | None, _option("The same, from a file.", WHO, "--hostfile", metavar="FILE")] = None
    launcher: Annotated[str, _option("What starts the probes: auto, local, ssh, slurm or mpi.", WHO, "--launcher")] = (
        "auto"
    )
    launcher_args: Annotated[
        str, _option("Words for srun or mpirun, for example --partition=gpu.", WHO, "--launcher-args", metavar="'…'")
    ] = ""
    env: Annotated[str, _option("Variables to carry to the probes.", WHO, "--env", metavar="'NAME*,…'")] = ""
    setup: Annotated[
        str, _option("Shell words that prepare a node, as the job does.", WHO, "--setup", metavar="'…'")
    ] = ""
    python: Annotated[str, _option("The Python to use on the nodes.", WHO, "--python", metavar="PATH")] = ""
    need: Annotated[
        int | None, _option("How many nodes suffice; bad ones are left out.", WHO, "--need", metavar="N")
    ] = None
    alone: Annotated[bool, _option("This process only: no roll call.", WHO, "--alone")] = False
    rank: Annotated[int | None, _option("This process's rank; with --nproc the node's number.", BY_HAND, "--rank")] = (
        None
    )
    world_size: Annotated[
        int | None, _option("The number of ranks; with --nproc of nodes.", BY_HAND, "--world-size")
    ] = None
    local_rank: Annotated[int | None, _option("This process's rank on its node.", BY_HAND, "--local-rank")] = None
    master_addr: Annotated[str | None, _option("Where rank 0 listens.", BY_HAND, "--master-addr")] = None
    master_port: Annotated[int | None, _option("The port on which rank 0 listens.", BY_HAND, "--master-port")] = None
    timeout: Annotated[float, _option("Seconds that the whole run may take.", LIMITS, "--timeout")] = 60.0
    join_timeout: Annotated[
        float, _option("Seconds to wait for late ranks; raise --timeout with it.", LIMITS, "--join-timeout")
    ] = JOIN_SECONDS
    connect_timeout: Annotated[float, _option("Seconds that one connection may take.", LIMITS, "--connect-timeout")] = (
        3.0
    )
    backend: Annotated[str, _option("The job's backend: auto, nccl, gloo or mpi.", JUDGED, "--backend")] = "auto"
    strict: Annotated[bool, _option("Warnings fail (exit code 10).", JUDGED, "--strict")] = False
    select: Annotated[str, _option("Judge by these rules only.", JUDGED, "--select", metavar="RULE,…")] = ""
    ignore: Annotated[str, _option("Leave these rules out.", JUDGED, "--ignore", metavar="RULE,…")] = ""
    format: Annotated[str, _option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", OUT, "--format")] = "text"
    output: Annotated[Path | None, _option("Write the report to this file.", OUT, "--output")] = None
    save: Annotated[
        Path | None,
        _option("Save the job for distcheck report; in a folder each process writes a file.", OUT, "--save"),
    ] = None
    exclude_file: Annotated[
        Path | None, _option("Write the confirmed bad nodes to this file, one a line.", OUT, "--exclude-file")
    ] = None
    all_ranks: Annotated[bool, _option("Show every rank, however many.", OUT, "--all-ranks")] = False
    legend: Annotated[bool, _option("Explain the columns.", OUT, "--legend")] = False
    timings: Annotated[bool, _option("Show what took how long.", OUT, "--timings")] = False
    verbose: Annotated[bool, _option("Show info findings too.", OUT, "--verbose", "-v")] = False
    quiet: Annotated[bool, _option("Findings and verdict only.", OUT, "--quiet", "-q")] = False


class Measuring(Options, frozen=True, kw_only=True):
    """The options of the commands that measure."""

    op: Annotated[
        str,
        _option(
            f"Operations, by default all_reduce,broadcast; of {', '.join(ALL_OPERATIONS)}.",
            MEASURED,
            "--op",
            metavar="OP,…",
        ),
    ] = ""
    sizes: Annotated[
        str,
        _option(
            "Message sizes, for example 1M:64M:x2; by default 1M:256M:x4, with Gloo 1M:16M:x4.",
            MEASURED,
            "--sizes",
            metavar="MIN:MAX[:xFACTOR]",
        ),
    ] = ""
    dtype: Annotated[
        str,
        _option(f"Data types, by default float32; of {', '.join(ITEM_BYTES)}.", MEASURED, "--dtype", metavar="TYPE,…"),
    ] = ""
    rotate_root: Annotated[
        bool, _option("Let another rank be the root at every broadcast.", MEASURED, "--rotate-root")
    ] = False
    iters: Annotated[
        int | None, _option("Operations per size; by default as many as give a steady figure.", MEASURED, "--iters")
    ] = None
    time_limit: Annotated[
        float | None,
        _option(
            "Seconds that the sweep should take; by default 2 for each size, with Gloo 0.6.", MEASURED, "--time-limit"
        ),
    ] = None
    min_busbw: Annotated[
        float | None, _option("Bus bandwidth in GB/s (1e9 bytes) below which it is a finding.", MEASURED, "--min-busbw")
    ] = None
    baseline: Annotated[
        Path | None, _option("Hold the figures to those of this run, which --save wrote.", MEASURED, "--baseline")
    ] = None


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `distcheck node`: those of a command that has no ranks, and what only a node has."""

    gpus: Annotated[int | None, _option("The number of GPUs that must be there.", JUDGED, "--gpus")] = None
    timeout: Annotated[float, _option("Seconds that the whole run may take.", LIMITS, "--timeout")] = 10.0
    strict: Annotated[bool, _option("Warnings fail (exit code 10).", JUDGED, "--strict")] = False
    select: Annotated[str, _option("Judge by these rules only.", JUDGED, "--select", metavar="RULE,…")] = ""
    ignore: Annotated[str, _option("Leave these rules out.", JUDGED, "--ignore", metavar="RULE,…")] = ""
    format: Annotated[str, _option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", OUT, "--format")] = "text"
    output: Annotated[Path | None, _option("Write the report to this file.", OUT, "--output")] = None
    save: Annotated[Path | None, _option("Save the facts, to judge them again later.", OUT, "--save")] = None
    exclude_file: Annotated[
        Path | None, _option("Write this node's name to this file if it is bad.", OUT, "--exclude-file")
    ] = None
    reason_file: Annotated[
        Path | None,
        _option(
            "Write why the node is not healthy, one line for scontrol's Reason=; empty if it is.", OUT, "--reason-file"
        ),
    ] = None
    syslog: Annotated[bool, _option("Write one line to the system's log.", OUT, "--syslog")] = False
    verbose: Annotated[bool, _option("Show info findings too.", OUT, "--verbose", "-v")] = False
    quiet: Annotated[bool, _option("Findings and verdict only.", OUT, "--quiet", "-q")] = False


@cache
def _parameters(options: type[msgspec.Struct]) -> tuple[inspect.Parameter, ...]:
    """Return the fields of `options` as parameters; several commands share them, and reading the hints takes time."""
    hints = get_type_hints(options, include_extras=True)
    return tuple(
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in msgspec.structs.fields(options)
    )


def taking(options: type[msgspec.Struct]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of `options` as its parameters; it receives them as one value, first."""

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
    """A command that converts only the values that were given."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; --help is one of them."""
        return _without_needless_conversion(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands that converts only the values that were given."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters; --help is one of them."""
        return _without_needless_conversion(super().get_params(ctx))


def _without_needless_conversion(params: list[Any]) -> list[Any]:
    """Let the parameters pass their defaults, which have the right type already.

    Newer versions of typer convert defaults too, by a pydantic model for each: loading pydantic was a third of a start.
    typer chooses the class of its parameters itself, so the method is replaced on each.
    """
    for param in params:
        if "process_value" not in vars(param):
            param.process_value = partial(_process, param, param.process_value)
    return params


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    if value is not param.default or param.required:
        return convert(ctx, value)
    return param.callback(ctx, param, value) if param.callback else value
