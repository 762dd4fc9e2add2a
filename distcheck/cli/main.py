"""Parses the command line, runs the command, and exits with its code."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from itertools import pairwise
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
    "hang": "hang",
    "policy": "policy",
    "report": "report",
    "explain": "explain",
}
"""The commands, in the order of --help, and the module of this package that defines each."""
_ALSO_IN_FRONT = frozenset({"-q", "--quiet", "-v", "--verbose"})
"""Options that people type before the command, too."""
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
        problem = said if said.endswith("?") else f"{said.rstrip('.')}.{_hint(words)}"
        complain(f"{problem} See: {place}")
        code = USAGE
    except Exception as error:  # noqa: BLE001 the last resort
        code = _unforeseen(error)
    else:
        sys.exit(code if isinstance(code, int) else 0)
    sys.exit(_as_plugin(words, code))


def _as_plugin(words: list[str], code: int) -> int:
    """Return the exit code of a run that ended without a report; for --format nagios, print that and return UNKNOWN."""
    given = [w.partition("=")[2] or after for w, after in pairwise([*words, ""]) if w.startswith("--format")]
    if (given or [os.environ.get("DISTCHECK_FORMAT", "")])[-1] != "nagios":
        return code
    from distcheck.report.nagios import UNKNOWN, line

    with contextlib.suppress(WriteError):
        print_to(sys.stdout, line(UNKNOWN, f"no report: exit code {code}; its error is on standard error") + "\n")
    return UNKNOWN.code


def _hint(words: list[str]) -> str:
    """Return how to name a COMMAND, if the words seem to hold one: click takes its options for distcheck's."""
    if _called(words) == ["gate"]:
        return "" if "--" in words else " Put -- before COMMAND."
    named = not _called(words) and (words[0] == "--" or not words[0].startswith("-"))
    return " In front of a command: distcheck gate -- COMMAND." if named else ""


def _command_first(words: list[str]) -> list[str]:
    """Return the arguments with the command before --quiet, --verbose and --local-rank, and the last spelt with a dash.

    torch.distributed.launch and deepspeed put --local-rank=N, or --local_rank=N, before a script's arguments.
    """
    if len(words) > 1 and words[0] in _ALSO_IN_FRONT and words[1] in MODULES:
        return [words[1], words[0], *words[2:]]
    if len(words) > 1 and words[0].startswith(("--local-rank=", "--local_rank=")):
        words = [words[1], words[0], *words[2:]]
    end = words.index("--") if "--" in words else len(words)
    return [re.sub("^--local_rank(?=$|=)", "--local-rank", word) for word in words[:end]] + words[end:]


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
