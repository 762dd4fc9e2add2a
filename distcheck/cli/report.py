"""The command report: saved jobs, judged again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from distcheck.cli.command import command
from distcheck.cli.options import ReportOptions
from distcheck.cli.publish import REMEDY, check_writable, print_to, publish
from distcheck.facts.base import Missing
from distcheck.facts.errors import UsageError
from distcheck.facts.job import Collectives, Job

_HISTORY_SECONDS = 60.0
"""A large history on a slow network file system takes this long to read, at most."""


@command("Judge saved jobs again.", "distcheck report job.json --format html --output report.html")
def report(
    options: ReportOptions,
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE|DIR", help="What --save wrote.")] = None,
) -> None:
    """Merge saved jobs, judge them again, and render the report; or show the nodes of a history."""
    from distcheck.facts import saved
    from distcheck.rules.diagnose import diagnose

    if options.schema:
        print_to(sys.stdout, f"{_schema()}\n", REMEDY)
        return
    if options.history is not None:
        _show_history(options.history, options, files)
        return
    if options.would:
        raise UsageError("--would: give the history too, for example --history /shared/distcheck")
    if not files:
        raise UsageError("report: no input; give the files or the directory that --save wrote")
    earlier = [] if options.baseline is None else [options.baseline]
    with _naming(options.baseline):
        inputs = saved.find(earlier)
    check_writable(options, [*inputs, *saved.find(files)])
    job = saved.load_launch(files)
    if options.policy is not None:
        job = _under(options.policy, job)
    asked = job.asked
    with _naming(options.baseline):
        before = saved.load_launch(earlier) if earlier else None
    if before is not None and isinstance(before.collectives, Collectives) and before.collectives.measurements:
        from distcheck.expectation.baseline import of

        asked = msgspec.structs.replace(asked, baseline=of(before, str(options.baseline)))
        job = msgspec.structs.replace(job, asked=asked)
    strict = asked.strict if options.strict is None else options.strict
    diagnosis = diagnose(job, strict=strict, select=asked.select, ignore=asked.ignore)
    compared = None
    if before is not None:
        from distcheck.report.comparison import Earlier, comparison
        from distcheck.rules.diagnose import judge

        compared = comparison(Earlier(str(options.baseline), before, judge(before)), job, diagnosis)
    code = diagnosis.verdict.exit_code
    raise typer.Exit(publish(job, diagnosis, code, options, to_stderr=False, comparison=compared))


def _under(place: Path, job: Job) -> Job:
    """Return a job as if this had been the site's policy where it was judged.

    Raises:
        UsageError: the policy is not valid.
    """
    from distcheck.cli.policy_file import in_force

    policy, asked = in_force(place), job.asked
    if policy is None or policy.problem:
        raise UsageError(f"--policy {policy.problem if policy else place}")
    where = asked.policy.node if asked.policy else next((node.name for node in job.nodes), "")
    policy = msgspec.structs.replace(policy, node=where)
    from_policy = asked.command == "node" and asked.gpus == asked.site().expect.gpus  # not from --gpus
    gpus = policy.on().expect.gpus if from_policy else asked.gpus
    asked = msgspec.structs.replace(asked, policy=policy, mode=None, gpus=gpus)
    return msgspec.structs.replace(job, asked=asked)


@contextlib.contextmanager
def _naming(baseline: Path | None) -> Iterator[None]:
    """Begin an error of the body with the option and its value."""
    try:
        yield
    except UsageError as error:
        named = str(error).startswith(str(baseline))
        raise UsageError(f"--baseline {error}" if named else f"--baseline {baseline}: {error}") from error


def _show_history(folder: Path, options: ReportOptions, files: list[Path] | None) -> None:
    """Write the report of a history."""
    import asyncio

    from distcheck.facts.outputs import write
    from distcheck.probe.history import totals
    from distcheck.report import history

    if files:
        raise UsageError(f"report --history {folder}: drop {files[0]}; saved jobs have a report of their own")
    if options.format not in history.FORMATS:
        raise UsageError(f"--format {options.format}: report --history has only {', '.join(history.FORMATS)}")
    check_writable(options)
    found = asyncio.run(totals(str(folder), _HISTORY_SECONDS))
    if isinstance(found, Missing):
        raise UsageError(f"--history {found.reason}")
    text = history.render(
        options.format, history.document(str(folder), found), everything=options.verbose, would=options.would
    )
    if options.output is None:
        print_to(sys.stdout, text, document=options.format != "text")
    else:
        write(options.output, text)


def _schema() -> str:
    from distcheck.report.schema.document import json_schema

    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode()
