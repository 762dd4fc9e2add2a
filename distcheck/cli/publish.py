"""Writes the results of a run: report, saved job, list of bad nodes, termination log."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from distcheck.cli.options import Checking, Reporting
from distcheck.facts.errors import WriteError
from distcheck.report import Detail

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.report.schema import Comparison
    from distcheck.rules.diagnose import Diagnosis

BROKEN = 70
"""The exit code when distcheck itself failed."""


def check_writable(options: Reporting) -> None:
    """Raise WriteError or UsageError before the run if an output cannot be written."""
    from distcheck.facts import saved

    for name in ("output", "save", "exclude_file", "reason_file"):
        path = getattr(options, name, None)
        if path is not None:
            saved.check_writable(path, f"--{name.replace('_', '-')}")


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

    A failed write is reported and the others continue; the exit code is 70 then.
    """
    from distcheck.facts import saved
    from distcheck.report import render, termination_log
    from distcheck.rules.finding import excluded_nodes

    failed = False

    def attempt(write: Any) -> None:
        nonlocal failed
        try:
            write()
        except WriteError as error:
            complain(str(error))
            failed = True

    if isinstance(options, Checking) and (save := options.save) is not None:
        attempt(lambda: saved.save(job, save))
    if isinstance(options, Checking) and (exclude := options.exclude_file) is not None:
        nodes = excluded_nodes(diagnosis.findings)
        attempt(lambda: saved.write(exclude, "".join(f"{node}\n" for node in nodes)))
    if code != 0 or not to_stderr:  # on a pass, the termination log belongs to COMMAND
        termination_log.write(job, diagnosis)
    stream = sys.stderr if to_stderr else sys.stdout
    text = render(options.format, job, diagnosis, options=_detail(options, stream)._replace(comparison=comparison))
    if options.output is not None:
        output = options.output
        before = failed
        attempt(lambda: saved.write(output, text))
        if failed == before:
            return BROKEN if failed else code
    attempt(lambda: print_to(stream, text))
    return BROKEN if failed else code


def _detail(options: Reporting, stream: Any) -> Detail:
    """Return how much to show: the options of this name that the command has."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or options.output is not None
    given = {name: getattr(options, name) for name in Detail._fields if hasattr(options, name)}
    return Detail(**given, color=not plain and stream is not None and stream.isatty())


def print_to(stream: Any, text: str, remedy: str = "use --output FILE") -> None:
    """Print a report; if that fails, the error ends with the remedy.

    Raises:
        WriteError: the stream is closed, or nothing reads it any more.
    """
    if stream is None:  # the descriptor was closed before Python started
        raise WriteError(f"cannot write the report to stdout: it is closed; {remedy}")
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        # Otherwise Python flushes again at exit and fails again, with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise WriteError(f"cannot write the report to {stream.name}: {error}; {remedy}") from error


def complain(text: str) -> None:
    """Print an error of distcheck itself to stderr."""
    print(f"distcheck: error: {text}", file=sys.stderr, flush=True)  # noqa: T201 errors belong to stderr
