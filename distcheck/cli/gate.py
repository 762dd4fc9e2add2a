"""The command gate: all checks, then the job's own command."""

from __future__ import annotations

import os
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from distcheck.cli.check import run
from distcheck.cli.command import command
from distcheck.cli.launch_command import filled
from distcheck.cli.options import GateOptions
from distcheck.cli.request import request_of
from distcheck.cli.script import module_of, paths_in, processes_of, rendezvous_backend_of, script_of
from distcheck.cli.starting import described
from distcheck.facts.base import legible_text
from distcheck.facts.errors import UsageError
from distcheck.facts.storage import is_text
from distcheck.facts.touch import touch, which
from distcheck.selection.command import ON_NODES
from distcheck.selection.launch_commands import why_unknown

if TYPE_CHECKING:
    from distcheck.run.request import Request


@command(
    "Run all checks; on a pass, run COMMAND.",
    "srun distcheck gate --export -- python train.py",
    "In front of a job:",
    described(),
)
def gate(
    options: GateOptions,
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="Run this on a pass.")] = None,
) -> None:
    """Run all checks, cheapest first, within --timeout; on a pass, run COMMAND.

    If COMMAND is a launcher such as torchrun, the ranks that it will start are tested, unless options name others. It
    replaces this process. Only --export changes the environment that COMMAND gets; --arm changes what `distcheck hang`
    may read of it.
    """
    start, program = time.monotonic(), _program(command) if command else None
    if options.arm and not command:
        raise UsageError("--arm is for the process that becomes COMMAND; give -- COMMAND")
    options, told, stated, waited, ended = filled(options, command or [], os.environ)
    request = request_of("gate", ("environment", "meeting", "storage", "peers", "gpu", "collectives"), options)
    if ended is not None:
        raise typer.Exit(run(request._replace(launch=stated, start=start, ended=ended), options, to_stderr=True))
    if program is None or not command:
        raise typer.Exit(run(request, options, to_stderr=False))  # --export has no effect without COMMAND
    _refuse_export(options, request)
    from distcheck.run.storage import folder

    if not told and request.asked.by_default:
        told = legible_text(f"placement not read from {why_unknown(command)}")
    here, module = request.outside is None, module_of(command)
    script = script_of(command) or (stated.script if stated is not None else "")
    if not here:
        _refuse_absent(command, script, module)
    asked = msgspec.structs.replace(
        request.asked,
        program=legible_text(Path(command[0]).name),
        export=options.export,
        rendezvous_file=_file_of(command),
        script=script,
        module=module if here else (),
        processes=processes_of(command, os.environ) if stated is None else "" if stated.hosts else stated.nproc,
        told=told,
        rendezvous_backend=rendezvous_backend_of(command),
        # From outside, COMMAND's program runs on this machine only.
        words=(command[0] if here and is_text(command[0]) else "", *([script] if script else []), *paths_in(command)),
        folder="" if here else folder(),
        armed=_armed(command, alone=len(request.placements) == 1) if options.arm else "",
    )
    code = run(request._replace(asked=asked, launch=stated, start=start, waited=waited), options, to_stderr=True)
    if code != 0:
        raise typer.Exit(code)
    from distcheck.launch.exec import become

    become(program, command, request.placements[0] if options.export else None)


def _refuse_export(options: GateOptions, request: Request) -> None:
    """Refuse --export where COMMAND is not one rank."""
    if not options.export:
        return
    if request.outside is not None:
        raise UsageError(
            "--export: COMMAND would run once, on this machine, and not as a rank; start distcheck on each rank "
            "instead, for example: srun distcheck gate --export -- python train.py"
        )
    if len(request.placements) > 1:
        raise UsageError(
            f"--export with {len(request.placements)} ranks in one process: COMMAND is one process and can be only one "
            "rank; start one process per rank, or drop --export"
        )


def _refuse_absent(command: list[str], script: str, module: tuple[str, ...]) -> None:
    """Refuse a COMMAND that starts on this machine only, where its script or module is not."""
    from distcheck.run.storage import lacking_here

    file = None if Path(command[0]).name in ON_NODES else lacking_here(script, module, os.environ)
    if file is None:
        return
    near = f", its folder has {file.near}" if file.near else ""
    problem = "not found by its Python" if file.role == "module" else file.error or f"no such file{near}"
    raise UsageError(f"COMMAND's {file.role} {file.word}: {problem}; COMMAND starts on this machine: correct it")


def _armed(command: list[str], *, alone: bool) -> str:
    """Let `distcheck hang` attach to this process, which becomes COMMAND; return what that reaches."""
    from distcheck.launch.arm import arm
    from distcheck.selection.command import runs
    from distcheck.selection.wrappers import PYTHON

    found, name = runs(command), Path(command[0]).name
    is_rank = alone and bool(found.kind) and PYTHON.fullmatch(name) is not None
    return arm(legible_text(found.launcher or name), "launcher" if found.launcher else "rank" if is_rank else "process")


def _program(command: list[str]) -> str:
    name = command[0]
    found = which(name)
    if found is not None:
        return found
    there = name if "/" in name else which(name, os.F_OK)
    problem = "not found on PATH; give its full path"
    if there:
        try:
            problem = touch(there, "COMMAND", partial(_why_not, there))
        except TimeoutError:  # the run reports that its file system does not answer
            return there
    raise UsageError(f"COMMAND {name or repr(name)}: {problem}")


def _why_not(program: str) -> str:
    """Return why a program cannot be run, and the remedy."""
    if not os.access(program, os.F_OK):
        return "no such file; correct its path"
    if Path(program).is_dir():
        return "is a directory; give a program"
    return f"not executable; make it so with: chmod +x {shlex.quote(program)}"


def _file_of(command: list[str]) -> str:
    """Return the path of the first file:// URL in COMMAND, '' if there is none that facts can hold."""
    found = next((word for word in command if "file:///" in word), "")
    path = found.partition("file://")[2].partition("?")[0].strip("'\"")
    return path if is_text(path) else ""
