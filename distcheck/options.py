"""The options that the commands which look at a job share, and what they ask for."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

import msgspec
import typer

from distcheck.collectives.plan import ALL_OPERATIONS, ITEM_BYTES
from distcheck.errors import UsageError
from distcheck.facts import Asked, Baseline, Look, Missing, Placement
from distcheck.hosts import outside
from distcheck.nodelevel import node_level
from distcheck.nodelevel import placements as node_placements
from distcheck.placement import beside, find_table, local_placements, place
from distcheck.preflight import Request
from distcheck.report import FORMATS
from distcheck.sizes import parse_sizes

WHO, BY_HAND, LIMITS, JUDGED, OUT, MEASURED = (
    "Who takes part",
    "Ranks set by hand",
    "Limits",
    "What is judged",
    "What comes out",
    "What is measured",
)
BACKENDS = ("auto", "nccl", "gloo", "mpi")


def _option(help_text: str, panel: str, name: str, *short: str, **more: Any) -> Any:
    variable = "DISTCHECK_" + name.lstrip("-").replace("-", "_").upper()
    return typer.Option(name, *short, help=help_text, rich_help_panel=panel, envvar=variable, **more)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One field per option; `command` turns them into the parameters of every command that looks."""

    nproc: Annotated[
        str | None,
        _option("Start N ranks on this machine; auto: one per GPU, else per core.", WHO, "--nproc", metavar="N|auto"),
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
    rank: Annotated[int | None, _option("This process's rank.", BY_HAND, "--rank")] = None
    world_size: Annotated[int | None, _option("The number of ranks.", BY_HAND, "--world-size")] = None
    local_rank: Annotated[int | None, _option("This process's rank on its node.", BY_HAND, "--local-rank")] = None
    master_addr: Annotated[str | None, _option("Where rank 0 listens.", BY_HAND, "--master-addr")] = None
    master_port: Annotated[int | None, _option("The port on which rank 0 listens.", BY_HAND, "--master-port")] = None
    timeout: Annotated[float, _option("Seconds that the whole run may take.", LIMITS, "--timeout")] = 60.0
    join_timeout: Annotated[float, _option("Seconds to wait for late ranks.", LIMITS, "--join-timeout")] = 20.0
    connect_timeout: Annotated[float, _option("Seconds that one connection may take.", LIMITS, "--connect-timeout")] = (
        3.0
    )
    backend: Annotated[str, _option("The job's backend: auto, nccl, gloo or mpi.", JUDGED, "--backend")] = "auto"
    strict: Annotated[bool, _option("Warnings fail (exit code 10).", JUDGED, "--strict")] = False
    select: Annotated[str, _option("Judge by these rules only.", JUDGED, "--select", metavar="RULE,…")] = ""
    ignore: Annotated[str, _option("Leave these rules out.", JUDGED, "--ignore", metavar="RULE,…")] = ""
    format: Annotated[str, _option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", OUT, "--format")] = "text"
    output: Annotated[Path | None, _option("Write the report to this file.", OUT, "--output")] = None
    save: Annotated[Path | None, _option("Save the job, to judge it again later.", OUT, "--save")] = None
    exclude_file: Annotated[
        Path | None, _option("Write the nodes to leave out to this file.", OUT, "--exclude-file")
    ] = None
    all_ranks: Annotated[bool, _option("Show every rank, however many.", OUT, "--all-ranks")] = False
    legend: Annotated[bool, _option("Explain the columns.", OUT, "--legend")] = False
    timings: Annotated[bool, _option("Show what took how long.", OUT, "--timings")] = False
    verbose: Annotated[bool, _option("Show info findings too.", OUT, "--verbose", "-v")] = False
    quiet: Annotated[bool, _option("Findings and verdict only.", OUT, "--quiet", "-q")] = False


class Measuring(Options, frozen=True, kw_only=True):
    """The options of the commands that measure."""

    op: Annotated[str, _option(f"Operations: {', '.join(ALL_OPERATIONS)}.", MEASURED, "--op", metavar="OP,…")] = ""
    sizes: Annotated[
        str, _option("Message sizes, for example 1M:64M:x2.", MEASURED, "--sizes", metavar="MIN:MAX[:xFACTOR]")
    ] = ""
    dtype: Annotated[str, _option(f"Data types: {', '.join(ITEM_BYTES)}.", MEASURED, "--dtype", metavar="TYPE,…")] = ""
    rotate_root: Annotated[
        bool, _option("Let another rank be the root at every broadcast.", MEASURED, "--rotate-root")
    ] = False
    iters: Annotated[
        int | None, _option("Operations per size; by default as many as give a steady figure.", MEASURED, "--iters")
    ] = None
    time_limit: Annotated[float | None, _option("Seconds that the sweep should take.", MEASURED, "--time-limit")] = None
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


def asked_of_node(options: NodeOptions) -> Asked:
    """Turn the options of `distcheck node` into what was asked.

    Raises:
        UsageError: a value that cannot be meant.
    """
    if options.gpus is not None and not 0 <= options.gpus < 1 << 10:
        raise UsageError(f"--gpus {options.gpus}: must be a whole number from 0 to 1023")
    if not 3 <= options.timeout < float("inf"):
        raise UsageError(f"--timeout {options.timeout:g}: a node needs at least 3 seconds")
    if options.format not in FORMATS:
        raise UsageError(f"--format {options.format}: choose one of {', '.join(FORMATS)}")
    select, ignore = _rules(options.select, "--select"), _rules(options.ignore, "--ignore")
    if select and set(select) <= set(ignore):
        raise UsageError(f"--select {options.select} --ignore {options.ignore}: no rule is left to judge by")
    return Asked(
        command="node",
        looks=("node", "gpu"),
        timeout_seconds=options.timeout,
        strict=options.strict,
        select=select,
        ignore=ignore,
        gpus=options.gpus,
    )


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


def request_of(
    command: str, looks: tuple[Look, ...], options: Options, environ: Mapping[str, str] = os.environ
) -> Request:
    """Turn options into a request.

    Raises:
        UsageError: a value that cannot be meant.
    """
    _check(options)
    select, ignore = _rules(options.select, "--select"), _rules(options.ignore, "--ignore")
    if select and set(select) <= set(ignore):
        raise UsageError(f"--select {options.select} --ignore {options.ignore}: no rule is left to judge by")
    if options.alone:
        if not {"collectives", "isolation"}.isdisjoint(looks):
            raise UsageError(f"{command} --alone: one process alone has nobody to measure with; leave --alone out")
        looks = tuple(look for look in looks if look in {"environment", "gpu"})
    launch = outside(options, environ)
    by_default = (
        launch is None
        and options.nproc is None
        and not {"collectives", "isolation"}.isdisjoint(looks)
        and _nobody_said(options, environ)
    )
    placements, started_here = ((), True) if launch else _participants(options, environ, by_default=by_default)
    if launch:
        looks = ("launch", *looks)
    measuring = options if isinstance(options, Measuring) else Measuring()
    asked = Asked(
        command=command,
        looks=looks,
        backend=cast("Literal['auto', 'nccl', 'gloo', 'mpi']", options.backend),
        started_here=started_here,
        by_default=by_default,
        operations=_some_of(ALL_OPERATIONS, measuring.op, "--op", "operation"),
        dtypes=_some_of(tuple(ITEM_BYTES), measuring.dtype, "--dtype", "data type"),
        rotate_root=measuring.rotate_root,
        sizes_bytes=parse_sizes(measuring.sizes) if measuring.sizes else (),
        min_busbw_GBps=measuring.min_busbw,
        baseline=_baseline(measuring.baseline),
        timeout_seconds=options.timeout,
        join_timeout_seconds=options.join_timeout,
        strict=options.strict,
        select=select,
        ignore=ignore,
        need=options.need,
        batch_shell="SLURM_JOB_ID" in environ and find_table(environ) is None,
    )
    return Request(
        asked=asked,
        placements=placements,
        environ=environ,
        connect_seconds=options.connect_timeout,
        iterations=measuring.iters,
        time_limit_seconds=measuring.time_limit,
        quiet=options.quiet,
        start=time.monotonic(),
        outside=launch,
    )


def _check(options: Options) -> None:
    _check_numbers(options)
    if options.backend not in BACKENDS:
        raise UsageError(f"--backend {options.backend}: choose one of {', '.join(BACKENDS)}")
    if options.format not in FORMATS:
        raise UsageError(f"--format {options.format}: choose one of {', '.join(FORMATS)}")
    if (options.rank is None) != (options.world_size is None):
        missing, given = ("--world-size", "--rank") if options.world_size is None else ("--rank", "--world-size")
        raise UsageError(f"{given} was given without {missing}: give both, or neither")


def _check_numbers(options: Options) -> None:
    above_zero: dict[str, float | None] = {
        "--timeout": options.timeout,
        "--join-timeout": options.join_timeout,
        "--connect-timeout": options.connect_timeout,
    }
    counted_from = [("--rank", options.rank, 0), ("--local-rank", options.local_rank, 0)]
    counted_from.append(("--world-size", options.world_size, 1))
    if isinstance(options, Measuring):
        above_zero |= {"--time-limit": options.time_limit, "--min-busbw": options.min_busbw}
        counted_from.append(("--iters", options.iters, 1))
    for name, value in above_zero.items():
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value:g}: must be more than 0 and finite")
    for name, number, first in counted_from:
        if number is not None and not first <= number < 1 << 31:
            raise UsageError(f"{name} {number}: must be a whole number of at least {first}")
    if options.master_port is not None and not 1 <= options.master_port <= 65535:
        raise UsageError(
            f"--master-port {options.master_port}: a port lies between 1 and 65535; 20000 to 32000 is a good choice"
        )


def _nobody_said(options: Options, environ: Mapping[str, str]) -> bool:
    """Whether neither options nor variables nor a launcher say who takes part."""
    told = options.rank is not None or any(environ.get(name) for name in ("RANK", "WORLD_SIZE"))
    return not told and find_table(environ) is None


def _participants(
    options: Options, environ: Mapping[str, str], *, by_default: bool
) -> tuple[tuple[Placement, ...], bool]:
    """Return the ranks for which this process speaks, and whether distcheck starts them."""
    given = Placement(
        rank=options.rank,
        world_size=options.world_size,
        local_rank=options.local_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
    )
    node = None if options.rank is not None else node_level(environ)
    nproc = options.nproc
    if nproc is None and node is not None and (node.needs_ranks or (node.nodes is not None and "RANK" not in environ)):
        nproc = {"gpu": "auto", "cpu": str(os.cpu_count() or 1), "": "1"}.get(node.nproc, node.nproc)
    if nproc is None and not by_default:
        return (place(environ, given),), False
    number = _number(nproc, by_default=by_default and nproc is None)
    if node is not None and node.nodes is not None:
        return node_placements(node, number, given), True
    if node is not None and node.master_addr is not None:
        raise UsageError(
            f"this is node {node.node_rank} of a job that meets at {node.master_addr}, and nothing says how many nodes "
            "there are: set PET_NNODES, or give --rank <node rank> --world-size <nodes> beside --nproc"
        )
    if options.rank is None and find_table(environ) is None:
        from distcheck.probe.network import free_port

        return local_placements(number, options.master_addr or "127.0.0.1", options.master_port or free_port()), True
    here = place(environ, given)
    if here.launcher == "torchrun":
        raise UsageError(
            f"--nproc {options.nproc} inside torchrun: torchrun has started the ranks already; leave --nproc out"
        )
    return _multiplied(here, number, *beside(environ)), True


def _multiplied(here: Placement, number: int, local_task: int, tasks: int) -> tuple[Placement, ...]:
    """Return the ranks of one task, each of which starts `number`; `tasks` of them are on this node."""
    if here.rank is None or here.world_size is None:
        return (here,)
    return tuple(
        msgspec.structs.replace(
            here,
            rank=here.rank * number + i,
            world_size=here.world_size * number,
            local_rank=local_task * number + i,
            local_world_size=tasks * number,
            node_rank=here.rank if tasks == 1 else here.node_rank,
            by_options=False,
        )
        for i in range(number)
    )


def _number(nproc: str | None, *, by_default: bool) -> int:
    if by_default or nproc == "auto":
        return _gpu_count() or (2 if by_default else os.cpu_count() or 1)
    if nproc is None or not nproc.isdecimal() or not 1 <= int(nproc) <= 4096:
        raise UsageError(f"--nproc {nproc}: give a number of ranks from 1 to 4096, or auto")
    return int(nproc)


def _gpu_count() -> int:
    """Return the number of NVIDIA GPUs that NVML shows on this machine."""
    import asyncio

    from distcheck.probe import gpu

    if gpu.accelerator() != "nvidia":
        return 0
    found = asyncio.run(gpu.gpus(10.0, health=False))
    return 0 if isinstance(found, Missing) else len(found.devices)


def _baseline(path: Path | None) -> Baseline | None:
    if path is None:
        return None
    from distcheck.baseline import load

    return load(path)


def _some_of(all_of_them: tuple[str, ...], text: str, option: str, noun: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in found:
        if name not in all_of_them:
            raise UsageError(f"{option} {name}: there is no such {noun}; choose from {', '.join(all_of_them)}")
    return found


def _rules(text: str, option: str) -> tuple[str, ...]:
    from distcheck.rules import find_rule

    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if text and not found:
        raise UsageError(f"{option} {text!r} names no rule; the list is printed by: distcheck explain")
    for name in found:
        if find_rule(name) is None:
            raise UsageError(f"{option} {name}: there is no such rule; the list is printed by: distcheck explain")
    return found
