"""The reports: a judged job in, a string out; no input, no output, no judging.

One module per format. Only the module of the requested format is imported, because tabulate and jinja2 cost start-up
time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast, get_args

from distcheck.facts.job import Job
from distcheck.rules.diagnose import Diagnosis

if TYPE_CHECKING:
    from distcheck.report.schema.comparison import Comparison

Format = Literal["text", "json", "html", "junit", "prometheus", "markdown", "nagios"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""Names of the formats and of their modules."""


class Detail(NamedTuple):
    """How much a report shows; machine-readable formats always show everything."""

    all_ranks: bool = False
    """Show a row for every rank."""
    legend: bool = False
    """Explain the columns."""
    timings: bool = False
    """Show timings."""
    verbose: bool = False
    """Show info findings too, and shorten nothing."""
    quiet: bool = False
    """Show only the findings and the verdict line."""
    color: bool = False
    """Use ANSI colours; for terminals only."""
    width: int = 120
    """Most columns of a table: those of the terminal, or of a job log."""
    terminal: bool = False
    """Wrap every line of text at the width; elsewhere the first line, what was checked and evidence stay lines."""
    comparison: Comparison | None = None
    """What differs from an earlier run."""


PLAIN = Detail()


class _Format(Protocol):
    def render(self, job: Job, diagnosis: Diagnosis, options: Detail) -> str: ...


def render(format: str, job: Job, diagnosis: Diagnosis, *, options: Detail = PLAIN) -> str:  # noqa: A002 as `--format`
    """Return the report of a judged job in one of `FORMATS`, ending with a newline.

    Raises:
        ValueError: the format is unknown.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    module = cast("_Format", importlib.import_module(f"{__name__}.{format}"))
    return module.render(job, diagnosis, options)
