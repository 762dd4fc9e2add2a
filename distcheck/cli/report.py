"""The command report: saved jobs, judged again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from distcheck.cli.command import command
from distcheck.cli.options import ReportOptions
from distcheck.cli.publish import check_writable, publish
from distcheck.facts.errors import UsageError


@command("Judge saved jobs again.", "distcheck report job.json --format html --output report.html")
def report(
    options: ReportOptions,
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE|DIR", help="What --save wrote.")] = None,
) -> None:
    """Merge saved jobs, judge them again, and render the report."""
    from distcheck.facts import saved
    from distcheck.rules.diagnose import diagnose

    if options.schema:
        typer.echo(_schema())
        return
    if not files:
        raise UsageError("report: no input; give the files or the directory that --save wrote")
    check_writable(options)
    job = saved.merge([saved.load(path) for path in saved.find(files)])
    asked = job.asked
    if options.baseline is not None:
        from distcheck.expectation.baseline import load

        asked = msgspec.structs.replace(asked, baseline=load(options.baseline))
        job = msgspec.structs.replace(job, asked=asked)
    strict = asked.strict if options.strict is None else options.strict
    diagnosis = diagnose(job, strict=strict, select=asked.select, ignore=asked.ignore)
    raise typer.Exit(publish(job, diagnosis, diagnosis.verdict.exit_code, options, to_stderr=False))


def _schema() -> str:
    from distcheck.report.schema import json_schema

    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode()
