"""Checks options and environment, and turns them into the request of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

from distcheck.cli.hosts import outside
from distcheck.cli.options import JOIN_SECONDS, Measuring, NodeOptions, Options
from distcheck.cli.sizes import parse_sizes
from distcheck.collectives.plan import ALL_OPERATIONS, ITEM_BYTES
from distcheck.facts.base import Missing
from distcheck.facts.errors import UsageError
from distcheck.facts.job import Asked, Baseline, Look
from distcheck.facts.placement import Placement
from distcheck.report import FORMATS
from distcheck.run.request import Request
from distcheck.selection.node_environment import node_level
from distcheck.selection.node_environment import placements as node_placements
from distcheck.selection.placement import beside, find_table, local_placements, place

_LARGEST = 1e9
"""Most seconds or GB/s that an option accepts."""
BACKENDS = ("auto", "nccl", "gloo", "mpi")


def request_of(
    command: str, looks: tuple[Look, ...], options: Options, environ: Mapping[str, str] = os.environ
) -> Request:
    """Return the request for these options.

    Raises:
        UsageError: a value is invalid.
    """
    _check(options)
    select, ignore = _rules(options.select, "--select"), _rules(options.ignore, "--ignore")
    if select and set(select) <= set(ignore):
        raise UsageError(f"--select {options.select} --ignore {options.ignore}: no rule is left to judge by")
    if options.alone:
        if not {"collectives", "isolation"}.isdisjoint(looks):
            raise UsageError(f"{command} --alone: a measurement needs more than one process; drop --alone")
        looks = tuple(look for look in looks if look in {"environment", "gpu"})
    launch = outside(options, environ)
    by_default = (
        launch is None
        and options.nproc is None
        and not {"collectives", "isolation"}.isdisjoint(looks)
        and _no_rank_count(options, environ)
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
        raise UsageError(f"{given} without {missing}: give both or neither")


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
        if value is not None and not 0 < value <= _LARGEST:
            raise UsageError(f"{name} {value:g}: must be more than 0, finite and at most {_LARGEST:g}")
    if options.join_timeout > options.timeout and options.join_timeout != JOIN_SECONDS:
        raise UsageError(
            f"--join-timeout {options.join_timeout:g}: the run ends earlier, after --timeout {options.timeout:g}; "
            f"give --timeout {options.join_timeout + 60:g}"
        )
    for name, number, first in counted_from:
        if number is not None and not first <= number < 1 << 31:
            raise UsageError(f"{name} {number}: must be a whole number of at least {first}")
    if options.master_port is not None and not 1 <= options.master_port <= 65535:
        raise UsageError(
            f"--master-port {options.master_port}: must be between 1 and 65535; 20000 to 32000 is a good choice"
        )


def _no_rank_count(options: Options, environ: Mapping[str, str]) -> bool:
    """Return whether neither options, variables nor a launcher define the ranks."""
    given = options.rank is not None or any(environ.get(name) for name in ("RANK", "WORLD_SIZE"))
    return not given and find_table(environ) is None


def _participants(
    options: Options, environ: Mapping[str, str], *, by_default: bool
) -> tuple[tuple[Placement, ...], bool]:
    """Return the ranks that this process reports, and whether distcheck starts them."""
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
        return (place(environ, given, _mpiexec(environ)),), False
    number = _number(nproc, by_default=by_default and nproc is None)
    if node is not None and node.nodes is not None:
        return node_placements(node, number, given), True
    if node is not None and node.master_addr is not None:
        raise UsageError(
            f"this is node {node.node_rank} of a job that meets at {node.master_addr}, but the number of nodes is "
            f"unknown: set PET_NNODES, or give --rank {node.node_rank} --world-size <nodes> with --nproc"
        )
    if options.rank is None and find_table(environ) is None:
        from distcheck.probe.network import free_port

        return local_placements(number, options.master_addr or "127.0.0.1", options.master_port or free_port()), True
    here = place(environ, given, _mpiexec(environ))
    if here.launcher == "torchrun":
        raise UsageError(
            f"--nproc {options.nproc} inside torchrun: torchrun has already started the ranks; drop --nproc"
        )
    return _multiplied(here, number, *beside(environ)), True


def _mpiexec(environ: Mapping[str, str]) -> str:
    """Return the address of Hydra's mpiexec, from its proxy's command line, else ''."""
    table = find_table(environ)
    if table is None or table.launcher != "hydra":
        return ""
    from distcheck.probe.process import ancestors
    from distcheck.selection.meeting_place import control_port

    return control_port(ancestors())


def _multiplied(here: Placement, number: int, local_task: int, tasks: int) -> tuple[Placement, ...]:
    """Return the ranks of a task that starts `number`; the node has `tasks` such tasks."""
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
    """Return the number of NVIDIA GPUs that NVML reports on this machine."""
    import asyncio

    from distcheck.probe import gpu

    if gpu.accelerator() != "nvidia":
        return 0
    found = asyncio.run(gpu.gpus(10.0, health=False))
    return 0 if isinstance(found, Missing) else len(found.devices)


def _baseline(path: Path | None) -> Baseline | None:
    if path is None:
        return None
    from distcheck.expectation.baseline import load

    return load(path)


def _some_of(all_of_them: tuple[str, ...], text: str, option: str, noun: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in found:
        if name not in all_of_them:
            raise UsageError(f"{option} {name}: unknown {noun}; choose from {', '.join(all_of_them)}")
    return found


def _rules(text: str, option: str) -> tuple[str, ...]:
    from distcheck.rules import find_rule

    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if text and not found:
        raise UsageError(f"{option} {text!r} names no rule; list them with: distcheck explain")
    for name in found:
        if find_rule(name) is None:
            raise UsageError(f"{option} {name}: unknown rule; list all rules with: distcheck explain")
    return found


def asked_of_node(options: NodeOptions) -> Asked:
    """Return the request for the options of `distcheck node`.

    Raises:
        UsageError: a value is invalid.
    """
    if options.gpus is not None and not 0 <= options.gpus < 1 << 10:
        raise UsageError(f"--gpus {options.gpus}: must be a whole number from 0 to 1023")
    if not 3 <= options.timeout <= _LARGEST:
        raise UsageError(f"--timeout {options.timeout:g}: checking a node takes at least 3 seconds")
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
