"""The commands: parse the command line, run, write the report, exit."""

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
from distcheck.cli.options import (
    CHECKS,
    OUTPUT,
    VARIABLES,
    Command,
    Group,
    Measuring,
    NodeOptions,
    Options,
    taking,
)
from distcheck.cli.publish import BROKEN, check_writable, complain, publish
from distcheck.cli.request import asked_of_node, request_of
from distcheck.facts.errors import UsageError, WriteError
from distcheck.report import FORMATS

if TYPE_CHECKING:
    from distcheck.facts.job import Job, Look
    from distcheck.rules.diagnose import Diagnosis
    from distcheck.run.request import Request

USAGE = 2


class _Entry(NamedTuple):
    """A command that is not yet registered with typer."""

    function: Callable[..., None]
    options: type[msgspec.Struct] | None
    short_help: str
    example: str

    @property
    def epilog(self) -> str:
        """The end of the command's help."""
        example = f"\b\nExample:\n  {self.example}"  # \b: do not wrap this paragraph
        return f"{example}\n\n{VARIABLES}" if self.options else example


_COMMANDS: dict[str, _Entry] = {}


def _command(
    short_help: str, example: str, options: type[msgspec.Struct] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command of its name; `options` is its first argument."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        _COMMANDS[function.__name__] = _Entry(function, options, short_help, example)
        return function

    return register


def _app(words: list[str]) -> typer.Typer:
    """Return the app with the command that `words` begins with, else with all commands.

    Shell completion needs all commands. typer reads the options of every registered command before it parses; all of
    ours took an eighth of the start-up.
    """
    called = [word for word in words[:1] if word in _COMMANDS]
    app = typer.Typer(
        cls=Group,
        add_completion=not called,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Check whether torch.distributed will start on these nodes with these ranks, and run at full speed.",
        epilog="\b\nExample:\n  distcheck gate --nproc 2",
    )
    app.callback()(_root)
    for name in called or _COMMANDS:
        entry = _COMMANDS[name]
        function = taking(entry.options)(entry.function) if entry.options else entry.function
        app.command(short_help=entry.short_help, epilog=entry.epilog, cls=Command)(function)
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
    """Define the options without a command."""


@_command(
    "Check placement and variables of every rank.",
    "torchrun --standalone --nproc-per-node 2 --no-python distcheck env",
    Options,
)
def env(options: Options) -> None:
    """Check placement and variables of every rank.

    They must be present, well formed, consistent and right for this launcher.
    """
    _look("env", ("environment", "meeting"), options)


@_command("Run env, then check names, ports and node pairs.", "distcheck net --hosts 'node[1-4]' --nproc 8", Options)
def net(options: Options) -> None:
    """Run env, then check names, ports, interfaces and pairs of nodes.

    Pairs are checked for reachability, packet sizes, loss and rate.
    """
    _look("net", ("environment", "meeting", "peers"), options)


@_command("Run env, then check GPU of each rank and GPU health.", "distcheck gpu --nproc 8", Options)
def gpu(options: Options) -> None:
    """Run env, then check which GPU each rank uses, and the health of all GPUs.

    GPUs are identified by their UUIDs from CUDA and NVML.
    """
    _look("gpu", ("environment", "meeting", "gpu"), options)


@_command("Time collectives, rank by rank.", "distcheck bandwidth --nproc 8 --sizes 1M:64M:x2", Measuring)
def bandwidth(options: Measuring) -> None:
    """Time collectives over message sizes, rank by rank, and check their results."""
    _look("bandwidth", ("environment", "meeting", "gpu", "collectives"), options)


@_command("Find the bad node, link or slow rank.", "distcheck isolate --hosts 'node[1-16]' --nproc 8", Options)
def isolate(options: Options) -> None:
    """Find the bad node, link or slow rank among many, with collectives in groups of nodes."""
    _look("isolate", ("environment", "meeting", "gpu", "isolation"), options)


@_command("Run all checks; on a pass, run COMMAND.", "srun distcheck gate --export -- python train.py", Measuring)
def gate(
    options: Measuring,
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="Run this on a pass.")] = None,
    export: Annotated[  # noqa: FBT002 typer's form
        bool,
        typer.Option(
            "--export",
            help="Set RANK, WORLD_SIZE and so on of this process for COMMAND.",
            envvar="DISTCHECK_EXPORT",
            show_envvar=False,
        ),
    ] = False,
) -> None:
    """Run all checks, cheapest first, within --timeout; on a pass, run COMMAND.

    COMMAND replaces this process. Only --export changes the environment that COMMAND gets.
    """
    program = _program(command) if command else None
    looks: tuple[Look, ...] = ("environment", "meeting", "peers", "gpu", "collectives")
    request = request_of("gate", looks, options)
    if program is None or not command:
        _leave(_run(request, options, to_stderr=False))  # --export has no effect without COMMAND
    if export and request.outside is not None:
        raise UsageError(
            "--export: COMMAND would run once, on this machine, and not as a rank; start distcheck on each rank "
            "instead, for example: srun distcheck gate --export -- python train.py"
        )
    if export and len(request.placements) > 1:
        raise UsageError(
            f"--export with {len(request.placements)} ranks in one process: COMMAND is one process and can be only one "
            "rank; start one process per rank, or drop --export"
        )
    asked = msgspec.structs.replace(
        request.asked, program=Path(command[0]).name, export=export, rendezvous_file=_file_of(command)
    )
    code = _run(request._replace(asked=asked), options, to_stderr=True)
    if code != 0:
        _leave(code)
    from distcheck.launch.exec import become

    become(program, command, request.placements[0] if export else None)


@_command(
    "Check this node alone, for Slurm or a DaemonSet.",
    "distcheck node --gpus 8 --reason-file /run/distcheck.reason",
    NodeOptions,
)
def node(options: NodeOptions) -> None:
    """Check this node alone: no torch, no peers, at most 10 s.

    For a Slurm Prolog, a HealthCheckProgram or a DaemonSet.
    """
    from distcheck.run import node as lone_node

    asked = asked_of_node(options)
    given = {name: getattr(options, name) for name in options.__struct_fields__}
    shared = Options(**{name: value for name, value in given.items() if name in Options.__struct_fields__})
    if sys.stdout is None and shared.output is None:  # a daemon may have closed it; the exit code is enough
        shared = msgspec.structs.replace(shared, output=Path(os.devnull))
    check_writable(shared, options.reason_file)

    def notify_and_publish(job: Job, diagnosis: Diagnosis, code: int) -> int:
        failure = lone_node.tell(job, diagnosis, options.reason_file, syslog=options.syslog)
        if failure:
            complain(failure)
        return publish(job, diagnosis, BROKEN if failure else code, shared, to_stderr=False)

    _leave(lone_node.run(asked, os.environ, notify_and_publish).exit_code)


@_command("Judge saved jobs again.", "distcheck report job.json --format html --output report.html")
def report(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE|DIR", help="What --save wrote.")] = None,
    format: Annotated[  # noqa: A002 the option's name
        str,
        typer.Option(
            "--format", help=f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}.", metavar="NAME", rich_help_panel=OUTPUT
        ),
    ] = "text",
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Write the report to this file.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    strict: Annotated[
        bool | None,
        typer.Option("--strict/--no-strict", help="Fail on warnings (default: as saved).", rich_help_panel=CHECKS),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline", help="Compare with the figures of this run.", metavar="FILE", rich_help_panel=CHECKS
        ),
    ] = None,
    all_ranks: Annotated[  # noqa: FBT002 typer's form
        bool, typer.Option("--all-ranks", help="Show a row for every rank.", rich_help_panel=OUTPUT)
    ] = False,
    verbose: Annotated[  # noqa: FBT002 typer's form
        bool,
        typer.Option("--verbose", "-v", help="Show info findings too, and shorten nothing.", rich_help_panel=OUTPUT),
    ] = False,
    schema: Annotated[  # noqa: FBT002 typer's form
        bool, typer.Option("--schema", help="Print the JSON Schema of --format json.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Merge saved jobs, judge them again, and render the report."""
    from distcheck.facts import saved
    from distcheck.rules.diagnose import diagnose

    if schema:
        _print_schema()
    if not files:
        raise UsageError("report: no input; give the files or the directory that --save wrote")
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


@_command("Explain a rule, or the errors in a log.", "distcheck explain gpu-duplicate")
def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="Name of a rule.")] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Name the rules that explain the errors in this job log (- is standard input)."
        ),
    ] = None,
) -> None:
    """Explain a rule: what it means, its consequence, how it is found and how to fix it.

    Without RULE, list all rules.
    """
    from distcheck.cli import explain as explanation

    if log is not None:
        if rule is not None:
            raise UsageError(f"give a rule ({rule}) or --log, not both")
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
    """Run the checks and return the exit code."""
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
    """Return the path of the first file:// URL in COMMAND, '' if there is none."""
    found = next((word for word in command if "file:///" in word), "")
    return found.partition("file://")[2].partition("?")[0].strip("'\"")


def _program(command: list[str]) -> str:
    found = shutil.which(command[0])
    if found is None:
        raise UsageError(f"COMMAND {command[0]}: not found on PATH; give its full path")
    return found


def _print_schema() -> NoReturn:
    from distcheck.report.document import json_schema

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    raise typer.Exit


def _leave(code: int) -> NoReturn:
    raise typer.Exit(code)


def _command_first(words: list[str]) -> list[str]:
    """Return the arguments with the command before --local-rank.

    torch.distributed.launch puts --local-rank=N (before torch 2.0 --local_rank=N) before a script's arguments.
    """
    if len(words) > 1 and words[0].startswith(("--local-rank=", "--local_rank=")):
        return [words[1], words[0].replace("_", "-"), *words[2:]]
    return words


def main() -> NoReturn:
    """Run the command line and exit, never with a traceback or exit code 1."""
    try:
        words = _command_first(sys.argv[1:])
        code = _app(words)(words, prog_name="distcheck", standalone_mode=False)
    except UsageError as error:
        complain(str(error))
        code = USAGE
    except WriteError as error:
        complain(str(error))
        code = BROKEN
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 the last resort
        code = _unforeseen(error)
    sys.exit(code if isinstance(code, int) else 0)


_MUST_BE = {"integer": "a whole number", "number": "a number", "boolean": "1 or 0"}


def _unread(error: Any) -> str:
    """Return option, value and expected type of a malformed number or boolean, else ''."""
    must_be = re.search(r"valid (integer|number|boolean)", str(error.format_message()))
    names = getattr(getattr(error, "param", None), "opts", None)
    if must_be is None or not names:
        return ""
    own = sys.argv[1:][: sys.argv[1:].index("--")] if "--" in sys.argv else sys.argv[1:]  # the rest is COMMAND
    words = [part for word in own for part in word.split("=", 1)]
    given = next((words[n + 1] for n, word in enumerate(words[:-1]) if word in names), None)
    variable = getattr(error.param, "envvar", None)
    if given is None and isinstance(variable, str):
        return f"{variable}={os.environ.get(variable, '')} ({names[0]}): must be {_MUST_BE[must_be[1]]}."
    return f"{names[0]} {given}: must be {_MUST_BE[must_be[1]]}."


def _unforeseen(error: Exception) -> int:
    """Print an error in one line and return the exit code.

    If DISTCHECK_TRACEBACK is set, raise an unexpected error instead.
    """
    if hasattr(error, "format_message"):  # raised by typer for invalid options
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)  # noqa: T201 help after wrong usage
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
        f"distcheck failed: {type(error).__name__}: {error}{place}; set DISTCHECK_TRACEBACK=1 for a traceback, and "
        "report this"
    )
    return BROKEN
