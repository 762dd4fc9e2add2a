"""Writes the results of a run: report, saved job, list of bad nodes, termination log."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distcheck.cli.options import Checking, Reporting
from distcheck.facts.errors import UsageError, WriteError
from distcheck.report import Detail
from distcheck.report.harmless import harmless

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.report.schema.comparison import Comparison
    from distcheck.rules.diagnose import Diagnosis

BROKEN = 70
"""The exit code when distcheck itself failed."""
REMEDY = "redirect it to a file on a disk with free space"
"""What helps if output that is no report cannot be written."""
_NARROWEST = 40
"""No table fits in fewer columns."""


def check_writable(options: Reporting, inputs: Iterable[Path] = ()) -> None:
    """Check before the run that each output can be written, and replaces no input and no other output.

    Raises:
        UsageError: it cannot, or it does.
    """
    from distcheck.facts.touch import touch

    taken = {os.fsdecode(touch(path, "FILE", path.resolve)): "an input" for path in inputs}
    for name in ("output", "save", "exclude_file", "passing_file", "reason_file"):
        path = getattr(options, name, None)
        if path is None:
            continue
        from distcheck.facts.outputs import check_writable as check

        option = f"--{name.replace('_', '-')}"
        replaced = check(path, option)
        if replaced is not None:
            other = taken.setdefault(replaced, option)
            if other != option:
                raise UsageError(f"{option} {path}: this file is {other} too; choose another")


def publish(
    job: Job,
    diagnosis: Diagnosis,
    code: int,
    options: Reporting,
    *,
    to_stderr: bool,
    comparison: Comparison | None = None,
) -> int:
    """Write all requested outputs and return the exit code.

    A failed write is reported and the others continue; the exit code is 70 then. With the format nagios it is that of a
    plugin, unless COMMAND waits for it.
    """
    from distcheck.report import render, termination_log
    from distcheck.rules.diagnose import passing_nodes
    from distcheck.rules.finding import excluded_nodes

    failed, broken = False, BROKEN
    if options.format == "nagios" and not to_stderr and not job.interrupted:
        from distcheck.report import nagios

        code, broken = (nagios.UNKNOWN if code == BROKEN else nagios.state(diagnosis)).code, nagios.UNKNOWN.code

    def attempt(output: Any) -> None:
        nonlocal failed
        try:
            output()
        except WriteError as error:
            complain(str(error))
            failed = True

    if isinstance(options, Checking) and (path := options.save) is not None:
        from distcheck.facts.saved import save

        attempt(lambda: save(job, path))
    if isinstance(options, Checking) and (exclude := options.exclude_file) is not None:
        nodes = excluded_nodes(diagnosis.findings)
        attempt(lambda: _write(exclude, "".join(f"{node}\n" for node in nodes)))
    if isinstance(options, Checking) and (passing := options.passing_file) is not None:
        good = passing_nodes(job, diagnosis)
        attempt(lambda: _write(passing, "".join(f"{node}\n" for node in good)))
    if job.hang is None and (code != 0 or not to_stderr):  # on a pass, the log is COMMAND's; a running job owns it
        termination_log.write(job, diagnosis)
    stream = sys.stderr if to_stderr else sys.stdout
    text = render(options.format, job, diagnosis, options=_detail(options, stream)._replace(comparison=comparison))
    if options.output is not None:
        output = options.output
        before = failed
        attempt(lambda: _write(output, text))
        if failed == before:
            return broken if failed else code
    attempt(lambda: print_to(stream, text, document=options.format != "text"))
    return broken if failed else code


def _write(path: Path, text: str) -> None:
    from distcheck.facts.outputs import write  # most runs write no file

    write(path, text)


def _detail(options: Reporting, stream: Any) -> Detail:
    """Return how much to show: the options of this name that the command has."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    given = {name: getattr(options, name) for name in Detail._fields if hasattr(options, name)}
    terminal = options.output is None and stream is not None and _is_terminal(stream)
    return Detail(
        **given,
        color=terminal and not plain,
        width=_columns(stream) if terminal else Detail().width,
        terminal=terminal,
    )


def _is_terminal(stream: Any) -> bool:
    """Return whether a stream is the user's terminal; Open MPI gives each rank one whose output may go to a file."""
    return stream.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ


def _columns(terminal: Any) -> int:
    """Return how many columns a terminal has, as COLUMNS or the kernel says."""
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(terminal.fileno()).columns)
    except (ValueError, OSError):
        columns = 0
    return max(_NARROWEST, columns or Detail().width)


def _takes_utf8(stream: Any) -> bool:
    return "utf" in (getattr(stream, "encoding", None) or "utf-8").lower()


def _shows_utf8(stream: Any) -> bool:
    """Return whether a stream takes UTF-8 and, if it is a terminal, whether the locale says that it shows it.

    Python itself sets LC_CTYPE in the C locale (PEP 538), but not the variables that come before it.
    """
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "C"
    coerced = not os.environ.get("LC_ALL") and os.environ.get("LC_CTYPE") == "C.UTF-8"
    return _takes_utf8(stream) and (not _is_terminal(stream) or ("utf" in locale.lower() and not coerced))


def as_shown(text: str, stream: Any) -> str:
    """Return text as a stream shows it: in ASCII if that, or the locale of a terminal, is not UTF-8."""
    if _shows_utf8(stream):
        return text
    from distcheck.report.plain import ascii_only

    return ascii_only(text)


def print_to(stream: Any, text: str, remedy: str = "use --output FILE", *, document: bool = False) -> None:
    """Print a text as the stream shows it, or a document in UTF-8; if that fails, the error ends with the remedy.

    Raises:
        WriteError: the stream is closed, or nothing reads it any more.
    """
    if stream is None:  # the descriptor was closed before Python started
        raise WriteError(f"cannot write to stdout: it is closed; {remedy}")
    try:
        if document and not _takes_utf8(stream):
            stream.buffer.write(text.encode("utf-8", "backslashreplace"))
        else:
            stream.write(text if document else as_shown(text, stream))
        stream.flush()
    except (OSError, ValueError) as error:
        # Otherwise Python flushes again at exit and fails again, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise WriteError(f"cannot write to {stream.name}: {error}; {remedy}") from error


def complain(text: str) -> None:
    """Print an error of distcheck itself to stderr, in one line; if that fails, the exit code remains."""
    with contextlib.suppress(WriteError):
        print_to(sys.stderr, f"distcheck: error: {harmless(text)}\n")
