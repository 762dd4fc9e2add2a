"""Checks options and environment, and turns them into the request of a run."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from distcheck.cli.backends import kind_of
from distcheck.cli.hosts import outside, rank_count
from distcheck.cli.options import JOIN_SECONDS, Checking, Looking, Measuring, Options, Visiting
from distcheck.cli.sizes import parse_sizes
from distcheck.collectives.plan import ALL_OPERATIONS, ITEM_BYTES
from distcheck.facts.asked import Asked, Baseline, Look
from distcheck.facts.base import Missing, legible_text
from distcheck.facts.errors import UsageError
from distcheck.facts.mesh import Mesh
from distcheck.facts.placement import Placement
from distcheck.facts.policy import Policy, installed
from distcheck.facts.storage import is_text
from distcheck.run.request import Request
from distcheck.selection.node_environment import node_level
from distcheck.selection.node_environment import placements as node_placements
from distcheck.selection.placement import beside, find_table, local_placements, place

_BESIDE_BURN_SECONDS = 15.0
"""The least time limit for everything else in a run with --burn."""

_LONGEST_LINE = 2000
_BETWEEN_PATHS = re.compile(r":(?=/)")


def request_of(
    command: str, looks: tuple[Look, ...], options: Options, environ: Mapping[str, str] = os.environ
) -> Request:
    """Return the request for these options.

    Raises:
        UsageError: a value is invalid.
    """
    _check(options)
    select, ignore = rules_of(options)
    paths = paths_of(options)
    if paths and "storage" not in looks:
        looks = (*looks, "storage")
    if isinstance(options, Measuring) and options.step:
        looks = (*looks, "training")
    if options.alone:
        if not {"collectives", "isolation"}.isdisjoint(looks):
            raise UsageError(f"{command} --alone: a measurement needs more than one process; drop --alone")
        looks = tuple(look for look in looks if look in {"environment", "gpu", "storage"})
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
        backend=kind_of(options.backend),
        backend_name="" if options.backend in {kind_of(options.backend), "rccl"} else options.backend,
        started_here=started_here,
        by_default=by_default,
        operations=_some_of(ALL_OPERATIONS, measuring.op, "--op", "operation"),
        dtypes=_some_of(tuple(ITEM_BYTES), measuring.dtype, "--dtype", "data type"),
        sizes_bytes=parse_sizes(measuring.sizes) if measuring.sizes else (),
        min_busbw_GBps=measuring.min_busbw,
        baseline=_baseline(measuring.baseline),
        timeout_seconds=options.timeout,
        join_timeout_seconds=options.join_timeout,
        strict=options.strict,
        select=select,
        ignore=ignore,
        mode=options.mode,
        policy=policy_of(options),
        need=options.need,
        batch_shell="SLURM_JOB_ID" in environ and find_table(environ) is None,
        burn_seconds=measuring.burn or 0.0,
        paths=paths,
        mesh=_mesh(options.mesh, options.mesh_order),
        python=options.python,
        setup=_without_secrets(options.setup),
        launcher_args=_without_secrets(options.launcher_args),
        env=options.env,
        line=command_line(),
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
        history=str(options.history) if isinstance(options, Looking) and options.history is not None else "",
    )


def policy_of(options: Checking) -> Policy | None:
    """Return the site's policy; None without one."""
    if options.policy is None and not installed():
        return None
    from distcheck.cli.policy_file import in_force

    return in_force(options.policy)


def command_line() -> str:
    """Return the command line of this process without secrets."""
    from distcheck.probe.environment import redacted

    return shlex.join(("distcheck", *redacted([legible_text(word) for word in sys.argv[1:]])))[:_LONGEST_LINE]


def _without_secrets(value: str) -> str:
    """Return the value of an option as it may be shown in a fix."""
    if not value:
        return ""
    from distcheck.probe.environment import redacted

    return redacted([value])[0]


def _check(options: Options) -> None:
    if (options.rank is None) != (options.world_size is None):
        missing, given = ("--world-size", "--rank") if options.world_size is None else ("--rank", "--world-size")
        raise UsageError(f"{given} without {missing}: give both or neither")
    if options.master_addr is not None and not is_text(options.master_addr):
        raise UsageError(f"--master-addr {options.master_addr!a}: not valid UTF-8; give a host's name or address")
    if options.join_timeout > options.timeout and options.join_timeout != JOIN_SECONDS:
        raise UsageError(
            f"--join-timeout {options.join_timeout:g}: the run ends earlier, after --timeout {options.timeout:g}; "
            f"give --timeout {options.join_timeout + 60:g}"
        )
    burn = options.burn if isinstance(options, Measuring) else None
    if burn is not None and burn + _BESIDE_BURN_SECONDS > options.timeout:
        raise UsageError(
            f"--burn {burn:g}: --timeout {options.timeout:g} is too short for it; give --timeout {burn + 60:g}"
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
    number = gpu_count() or 2 if nproc is None else rank_count(nproc, lambda: gpu_count() or os.cpu_count() or 1)
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


def gpu_count(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of GPUs of this machine, without those that a device cgroup hides from this process.

    Args:
        environ: variables by which fewer count, as CUDA_VISIBLE_DEVICES.
    """
    import asyncio

    from distcheck.facts.gpu import is_instinct, usable_name
    from distcheck.probe import gpu, host
    from distcheck.selection.gpu_variables import selected

    vendor = gpu.accelerator()
    found = Missing(reason="none") if vendor == "none" else asyncio.run(gpu.gpus(10.0, vendor, health=False))
    if isinstance(found, Missing):
        return 0
    devices = tuple([device for device in found.devices if usable_name(device) or device.lost])
    if vendor == "amd" and not getattr(host.torch_build(), "hip", None):  # not the graphics of a CPU or a desktop
        devices = tuple(filter(is_instinct, devices))
    return len(devices if environ is None else selected(environ, devices, vendor).shown.uuids)


def _baseline(path: Path | None) -> Baseline | None:
    if path is None:
        return None
    from distcheck.expectation.baseline import load

    return load(path)


def _mesh(text: str, order: str) -> Mesh | None:
    if not text and not order:
        return None
    if not text:
        raise UsageError(f"--mesh-order {order} without --mesh: give the sizes too, for example --mesh tp=8,pp=2")
    from distcheck.selection.meshes import parse

    return parse(text, order)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _some_of(all_of_them: tuple[str, ...], text: str, option: str, noun: str) -> tuple[str, ...]:
    found = _listed(text)
    if text and not found:
        raise UsageError(f"{option} {text!r} names no {noun}; choose from {', '.join(all_of_them)}")
    for name in found:
        if name not in all_of_them:
            raise UsageError(f"{option} {name}: unknown {noun}; choose from {', '.join(all_of_them)}")
    return found


def rules_of(options: Checking) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rules of --select and of --ignore.

    Raises:
        UsageError: a rule is unknown, or none is left.
    """
    select, ignore = _rules(options.select, "--select"), _rules(options.ignore, "--ignore")
    if select and set(select) <= set(ignore):
        raise UsageError(f"--select {options.select} --ignore {options.ignore}: no rule is left to judge by")
    return select, ignore


def _rules(text: str, option: str) -> tuple[str, ...]:
    from distcheck.rules import find_rule

    found = _listed(text)
    if text and not found:
        raise UsageError(f"{option} {text!r} names no rule; list them with: distcheck explain")
    for name in found:
        if find_rule(name) is None:
            from distcheck.cli.rule_names import unknown

            raise UsageError(f"{option} {name}: unknown rule; {unknown(name)}")
    return found


def paths_of(options: Visiting) -> tuple[str, ...]:
    """Return the folders of --path.

    Raises:
        UsageError: one of them is relative, so that it may mean another folder on each node, or is not UTF-8.
    """
    found = [path for given in options.path or () for path in _BETWEEN_PATHS.split(given)]
    policy = policy_of(options)
    found += policy.on().required_paths if policy is not None else ()
    for path in found:
        if not is_text(path):
            raise UsageError(f"--path {path!a}: the name is not valid UTF-8; rename the folder")
        if not path.startswith("/"):
            raise UsageError(f"--path {path}: give an absolute path, for example --path {Path(path).absolute()}")
    return tuple(dict.fromkeys(map(os.path.normpath, found)))
