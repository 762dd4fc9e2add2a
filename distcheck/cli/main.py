"""The command line: parse, call, write, exit."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import msgspec
import typer

from distcheck import __version__
from distcheck.cli.options import Command, Group, Measuring, NodeOptions, Options, taking
from distcheck.cli.publish import BROKEN, check_writable, complain, publish
from distcheck.cli.request import asked_of_node, request_of
from distcheck.facts.errors import UsageError, WriteError
from distcheck.report import FORMATS

if TYPE_CHECKING:
    from distcheck.facts import Job, Look
    from distcheck.rules.diagnose import Diagnosis
    from distcheck.run.request import Request

USAGE = 2


class _Entry(NamedTuple):
    """A command that typer has not read yet."""

    function: Callable[..., None]
    options: type[msgspec.Struct] | None
    short_help: str


_COMMANDS: dict[str, _Entry] = {}


def _command(
    short_help: str, options: type[msgspec.Struct] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command of its name; it receives the values of `options` first."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _COMMANDS[function.__name__] = _Entry(function, options, short_help)
        return function

    return register


def _app(words: list[str]) -> typer.Typer:
    """Return the app with the command that comes first in `words`, with all commands where none does.

    typer reads the options of every command before it parses a word; for all of ours that was an eighth of a start.
    """
    app = typer.Typer(
        cls=Group,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Will torch.distributed start on exactly these nodes with exactly these ranks, at full speed?",
    )
    app.callback()(_root)
    for name in [word for word in words[:1] if word in _COMMANDS] or _COMMANDS:
        function, options, short_help = _COMMANDS[name]
        app.command(short_help=short_help, cls=Command)(taking(options)(function) if options else function)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001 typer's form
    if wanted:
        typer.echo(f"distcheck {__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[  # noqa: FBT002 typer's form
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Hold the options that belong to no command."""


@_command("Placement and variables of every rank.", Options)
def env(options: Options) -> None:
    """Placement and variables of every rank: present, well formed, consistent, right for this launcher."""
    _look("env", ("environment", "meeting"), options)


@_command("What env does, then names, ports and pairs of nodes.", Options)
def net(options: Options) -> None:
    """What env does, then names, ports and interfaces, and all pairs of nodes: reach, packet sizes, loss, rate."""
    _look("net", ("environment", "meeting", "peers"), options)


@_command("What env does, then which GPU each rank takes.", Options)
def gpu(options: Options) -> None:
    """What env does, then which GPU each rank takes, by UUID from CUDA and NVML, and the condition of all GPUs."""
    _look("gpu", ("environment", "meeting", "gpu"), options)


@_command("Time collectives, rank by rank.", Measuring)
def bandwidth(options: Measuring) -> None:
    """Time collectives over message sizes, rank by rank, and check their results."""
    _look("bandwidth", ("environment", "meeting", "gpu", "collectives"), options)


@_command("Find the bad node, link or slow rank.", Options)
def isolate(options: Options) -> None:
    """Find the bad node, link or slow rank out of many, by collectives in groups of nodes."""
    _look("isolate", ("environment", "meeting", "gpu", "isolation"), options)


@_command("All checks; on a pass run COMMAND.", Measuring)
def gate(
    options: Measuring,
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="Run this on a pass.")] = None,
    export: Annotated[  # noqa: FBT002 typer's form
        bool, typer.Option("--export", help="Give COMMAND this process's RANK, WORLD_SIZE and so on.")
    ] = False,
) -> None:
    """Everything in order of cost, within --timeout; on a pass become COMMAND, with the environment untouched."""
    program = _program(command) if command else None
    looks: tuple[Look, ...] = ("environment", "meeting", "peers", "gpu", "collectives")
    request = request_of("gate", looks, options)
    if program is None or not command:
        _leave(_run(request, options, to_stderr=False))  # --export has nobody to give anything to
    if export and request.outside is not None:
        raise UsageError(
            "--export: COMMAND runs once, on this machine, and is no rank; put distcheck in front of each rank "
            "instead, for example: srun distcheck gate --export -- python train.py"
        )
    if export and len(request.placements) > 1:
        raise UsageError(
            f"--export with {len(request.placements)} ranks in one process: COMMAND is one process and can be one "
            "rank only; start one process per rank, or leave --export out"
        )
    asked = msgspec.structs.replace(
        request.asked, program=Path(command[0]).name, export=export, rendezvous_file=_file_of(command)
    )
    code = _run(request._replace(asked=asked), options, to_stderr=True)
    if code != 0:
        _leave(code)
    from distcheck.launch.exec import become

    become(program, command, request.placements[0] if export else None)


@_command("This node alone, for Slurm or a DaemonSet.", NodeOptions)
def node(options: NodeOptions) -> None:
    """This node alone, for a Slurm Prolog, HealthCheckProgram or DaemonSet: no torch, no peers, at most 10 s."""
    from distcheck.run import node as lone_node

    asked = asked_of_node(options)
    given = {name: getattr(options, name) for name in options.__struct_fields__}
    shared = Options(**{name: value for name, value in given.items() if name in Options.__struct_fields__})
    if sys.stdout is None and shared.output is None:  # closed, as a daemon may leave it: the exit code says enough
        shared = msgspec.structs.replace(shared, output=Path(os.devnull))
    check_writable(shared, options.reason_file)

    def tell_and_publish(job: Job, diagnosis: Diagnosis, code: int) -> int:
        told = lone_node.tell(job, diagnosis, options.reason_file, syslog=options.syslog)
        if told:
            complain(told)
        return publish(job, diagnosis, BROKEN if told else code, shared, to_stderr=False)

    _leave(lone_node.run(asked, os.environ, tell_and_publish).exit_code)


@_command("Judge saved jobs again.")
def report(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE|DIR", help="What --save wrote.")] = None,
    format: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")] = "text",  # noqa: A002 the option's name
    output: Annotated[Path | None, typer.Option("--output", help="Write the report to this file.")] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Warnings fail; default: as saved.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Hold the figures to those of this run.", metavar="FILE")
    ] = None,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="Show every rank.")] = False,  # noqa: FBT002 typer's form
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show info findings too.")] = False,  # noqa: FBT002 typer's form
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of --format json.")] = False,  # noqa: FBT002 typer's form
) -> None:
    """Merge saved jobs, judge them again, and render the report."""
    from distcheck.facts import saved
    from distcheck.rules.diagnose import diagnose

    if schema:
        _print_schema()
    if not files:
        raise UsageError("report: give the files or the folder that --save wrote")
    if format not in FORMATS:
        raise UsageError(f"--format {format}: choose one of {', '.join(FORMATS)}")
    if output is not None:
        saved.check_writable(output, "--output")
    job = saved.merge([saved.load(path) for path in saved.find(files)])
    if baseline is not None:
        from distcheck.expectation.baseline import load

        job = msgspec.structs.replace(job, asked=msgspec.structs.replace(job.asked, baseline=load(baseline)))
    asked = job.asked
    diagnosis = diagnose(
        job, strict=asked.strict if strict is None else strict, select=asked.select, ignore=asked.ignore
    )
    options = Options(format=format, output=output, all_ranks=all_ranks, verbose=verbose)
    _leave(publish(job, diagnosis, diagnosis.verdict.exit_code, options, to_stderr=False))


@_command("What a rule means, or which rules a log speaks of.")
def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="A rule's name.")] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A job's log (- is standard input): which rules do its errors speak of?"),
    ] = None,
) -> None:
    """What a rule means, why it hurts, how it is found and mended; without RULE the list of all rules."""
    from distcheck.cli import explain as explanation

    if log is not None:
        if rule is not None:
            raise UsageError(f"either a rule ({rule}) or --log, not both")
        typer.echo(_explain_log(log), nl=False)
        return
    if rule is None:
        typer.echo(explanation.listing(), nl=False)
        return
    try:
        typer.echo(explanation.explain(rule), nl=False)
    except LookupError as error:
        raise UsageError(str(error.args[0] if error.args else error)) from None


def _explain_log(path: Path) -> str:
    from distcheck.cli import joblog

    if path == Path("-") and sys.stdin is None:
        raise UsageError("--log -: standard input is closed")
    try:
        with sys.stdin.buffer if path == Path("-") else path.open("rb") as log:
            found = joblog.search(log, joblog.messages())
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror or error}") from None
    return joblog.tell(found, "standard input" if path == Path("-") else str(path))


def _look(command: str, looks: tuple[Look, ...], options: Options) -> NoReturn:
    _leave(_run(request_of(command, looks, options), options, to_stderr=False))


def _run(request: Request, options: Options, *, to_stderr: bool) -> int:
    """Run a preflight and return the exit code."""
    from distcheck.facts import saved
    from distcheck.run import entry

    check_writable(options)
    outcome = entry.run(
        request, lambda job, diagnosis, code: publish(job, diagnosis, code, options, to_stderr=to_stderr)
    )
    if not outcome.reported and options.save is not None and options.save.is_dir():
        try:
            saved.save(outcome.job, options.save)
        except WriteError as error:
            complain(str(error))
    return outcome.exit_code


def _file_of(command: list[str]) -> str:
    """Return the path of the first file:// among COMMAND's words, '' when there is none."""
    found = next((word for word in command if "file:///" in word), "")
    return found.partition("file://")[2].partition("?")[0].strip("'\"")


def _program(command: list[str]) -> str:
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(f"COMMAND {command[0]}: there is no such program on PATH; give its full path")
    return found


def _print_schema() -> NoReturn:
    from distcheck.report.document import json_schema

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    raise typer.Exit


def _leave(code: int) -> NoReturn:
    raise typer.Exit(code)


def _command_first(words: list[str]) -> list[str]:
    """Return the words with the command before the local rank.

    torch.distributed.launch puts --local-rank=N, before torch 2.0 --local_rank=N, in front of a script's arguments.
    """
    if len(words) > 1 and words[0].startswith(("--local-rank=", "--local_rank=")):
        return [words[1], words[0].replace("_", "-"), *words[2:]]
    return words


def main() -> NoReturn:
    """Run the command line; no failure of distcheck's own ends as a traceback or as exit code 1."""
    try:
        words = _command_first(sys.argv[1:])
        code = _app(words)(words, standalone_mode=False)
    except UsageError as error:
        complain(str(error))
        code = USAGE
    except WriteError as error:
        complain(str(error))
        code = BROKEN
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 the last line of defence
        code = _unforeseen(error)
    sys.exit(code if isinstance(code, int) else 0)


_MUST_BE = {"integer": "a whole number", "number": "a number", "boolean": "1 or 0"}


def _unread(error: Any) -> str:
    """Name the option, the value and what it must be, where that is a number; empty for any other error of typer's."""
    must_be = re.search(r"valid (integer|number|boolean)", str(error.format_message()))
    names = getattr(getattr(error, "param", None), "opts", None)
    if must_be is None or not names:
        return ""
    own = sys.argv[1:][: sys.argv[1:].index("--")] if "--" in sys.argv else sys.argv[1:]  # the rest is COMMAND's
    words = [part for word in own for part in word.split("=", 1)]
    given = next((words[n + 1] for n, word in enumerate(words[:-1]) if word in names), None)
    variable = getattr(error.param, "envvar", None)
    if given is None and isinstance(variable, str):
        return f"{variable}={os.environ.get(variable, '')} ({names[0]}): must be {_MUST_BE[must_be[1]]}."
    return f"{names[0]} {given}: must be {_MUST_BE[must_be[1]]}."


def _unforeseen(error: Exception) -> int:
    """Say what went wrong in one line; with DISTCHECK_TRACEBACK set, show where."""
    if hasattr(error, "format_message"):  # what typer raises for options that it cannot read
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)  # noqa: T201 help that nobody asked for
            return USAGE
        place = " ".join(["distcheck", *(word for word in sys.argv[1:2] if word in _COMMANDS), "--help"])
        complain(f"{_unread(error) or error.format_message()} See: {place}")
        return USAGE
    if type(error).__name__ == "Abort":
        return 130
    if os.environ.get("DISTCHECK_TRACEBACK"):
        raise error
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" at {where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else ""
    complain(
        f"distcheck broke: {type(error).__name__}: {error}{place}; set DISTCHECK_TRACEBACK=1 for more, and report it"
    )
    return BROKEN
