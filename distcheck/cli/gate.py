"""The command gate: all checks, then the job's own command."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from distcheck.cli.check import run
from distcheck.cli.command import command
from distcheck.cli.options import GateOptions
from distcheck.cli.request import request_of
from distcheck.cli.script import paths_in, rendezvous_backend_of, script_of
from distcheck.facts.base import legible_text
from distcheck.facts.errors import UsageError
from distcheck.facts.storage import is_text
from distcheck.facts.touch import touch, which


@command("Run all checks; on a pass, run COMMAND.", "srun distcheck gate --export -- python train.py")
def gate(
    options: GateOptions,
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="Run this on a pass.")] = None,
) -> None:
    """Run all checks, cheapest first, within --timeout; on a pass, run COMMAND.

    COMMAND replaces this process. Only --export changes the environment that COMMAND gets.
    """
    program = _program(command) if command else None
    request = request_of("gate", ("environment", "meeting", "storage", "peers", "gpu", "collectives"), options)
    if program is None or not command:
        raise typer.Exit(run(request, options, to_stderr=False))  # --export has no effect without COMMAND
    if options.export and request.outside is not None:
        raise UsageError(
            "--export: COMMAND would run once, on this machine, and not as a rank; start distcheck on each rank "
            "instead, for example: srun distcheck gate --export -- python train.py"
        )
    if options.export and len(request.placements) > 1:
        raise UsageError(
            f"--export with {len(request.placements)} ranks in one process: COMMAND is one process and can be only one "
            "rank; start one process per rank, or drop --export"
        )
    from distcheck.run.storage import folder

    asked = msgspec.structs.replace(
        request.asked,
        program=legible_text(Path(command[0]).name),
        export=options.export,
        rendezvous_file=_file_of(command),
        script=script_of(command),
        rendezvous_backend=rendezvous_backend_of(command),
        # From outside, COMMAND's program runs on this machine only.
        words=(command[0] if request.outside is None and is_text(command[0]) else "", *paths_in(command)),
        folder=folder() if request.outside is not None else "",
    )
    code = run(request._replace(asked=asked), options, to_stderr=True)
    if code != 0:
        raise typer.Exit(code)
    from distcheck.launch.exec import become

    become(program, command, request.placements[0] if options.export else None)


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
