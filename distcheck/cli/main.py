"""Parses the command line, runs the command, and exits with its code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Annotated, NoReturn, cast

import typer

from distcheck import __version__
from distcheck.cli.command import Entry, LazyGroup
from distcheck.cli.publish import BROKEN, REMEDY, complain, print_to
from distcheck.facts.errors import UsageError, WriteError, exhausted

USAGE = 2
CONFIGURATION = 30
"""The exit code when the configuration of the job or the site keeps distcheck from running."""
MODULES = {
    "env": "check",
    "net": "check",
    "gpu": "check",
    "bandwidth": "check",
    "isolate": "check",
    "gate": "gate",
    "node": "node",
    "report": "report",
    "explain": "explain",
}
"""The commands, in the order of --help, and the module of this package that defines each."""
_PARSING_FAILED = cast("type[Exception]", typer.BadParameter.mro()[1])
"""The base of typer's errors about a command line (click's UsageError, of which newer versions have a copy)."""


def app(words: list[str]) -> typer.Typer:
    """Return the app with the command that `words` begins with, else with all commands.

    Shell completion needs all commands. typer reads the options of every registered command before it parses; all of
    ours took an eighth of the start-up.
    """
    called = _called(words)
    found = typer.Typer(
        cls=LazyGroup,
        add_completion=not called,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Check whether torch.distributed will start on these nodes with these ranks, and run at full speed.",
        epilog="\b\nExample:\n  distcheck gate --nproc 2\n\n"
        "With torchrun, srun, mpirun, ssh and others: distcheck gate --help",
    )
    found.callback(invoke_without_command=True)(_root)
    for name in called or MODULES:
        entry(name).add_to(found)
    return found


def _called(words: list[str]) -> list[str]:
    return [word for word in words[:1] if word in MODULES]


def entry(name: str) -> Entry:
    """Return a command by its name."""
    return cast("Entry", getattr(importlib.import_module(f"distcheck.cli.{MODULES[name]}"), name))


def _print_version(wanted: bool) -> None:  # noqa: FBT001 typer's form
    if wanted:
        print_to(sys.stdout, f"distcheck {__version__}\n", REMEDY)
        raise typer.Exit


def _root(
    context: typer.Context,
    _version: Annotated[  # noqa: FBT002 typer's form
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Define the options without a command; without anything, print the help."""
    if context.invoked_subcommand is None:
        with contextlib.suppress(WriteError):
            print_to(sys.stderr, f"{context.get_help()}\n")
        raise typer.Exit(USAGE)


def main() -> NoReturn:
    """Run the command line and exit, never with a traceback or exit code 1."""
    words = _command_first(sys.argv[1:])
    try:
        code = app(words)(words, prog_name="distcheck", standalone_mode=False)
    except UsageError as error:
        complain(str(error))
        code = USAGE
    except WriteError as error:
        complain(str(error))
        code = BROKEN
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except _PARSING_FAILED as error:
        place = " ".join(["distcheck", *_called(words), "--help"])
        said = error.format_message()  # type: ignore[attr-defined]
        complain(f"{said if said.endswith('?') else said.rstrip('.') + '.'} See: {place}")
        code = USAGE
    except Exception as error:  # noqa: BLE001 the last resort
        code = _unforeseen(error)
    sys.exit(code if isinstance(code, int) else 0)


def _command_first(words: list[str]) -> list[str]:
    """Return the arguments with the command before --local-rank.

    torch.distributed.launch puts --local-rank=N (before torch 2.0 --local_rank=N) before a script's arguments.
    """
    if len(words) > 1 and words[0].startswith(("--local-rank=", "--local_rank=")):
        return [words[1], words[0].replace("_", "-"), *words[2:]]
    return words


def _unforeseen(error: Exception) -> int:
    """Print an error in one line and return the exit code.

    If DISTCHECK_TRACEBACK is set, raise the error instead.
    """
    if os.environ.get("DISTCHECK_TRACEBACK"):
        raise error
    if limit := exhausted(error):
        complain(f"distcheck cannot run: {limit}")
        return CONFIGURATION
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f" at {where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else ""
    complain(
        f"distcheck failed: {type(error).__name__}: {error}{place}; set DISTCHECK_TRACEBACK=1 for a traceback, and "
        "report this"
    )
    return BROKEN
