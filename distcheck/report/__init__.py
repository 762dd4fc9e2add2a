"""The reports: a judged job in, a string out; no input, no output, no judging.

One module per format; only the module of the format that is wanted is imported, because tabulate and jinja2
cost start-up time.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol, cast

from distcheck.facts import Job
from distcheck.rules.diagnose import Diagnosis

FORMATS = ("text", "json", "html", "junit", "prometheus", "markdown")
"""Names of the formats, and of the modules of this package."""


class Detail(NamedTuple):
    """How much a report shows; formats that machines read always show everything."""

    all_ranks: bool = False
    """Every rank has its row, however many there are."""
    legend: bool = False
    """What the columns and words mean."""
    timings: bool = False
    """What took how long."""
    verbose: bool = False
    """Info findings too, and nothing is shortened."""
    quiet: bool = False
    """Findings and the last line only."""
    color: bool = False
    """ANSI colours; for terminals only."""


PLAIN = Detail()


class _Format(Protocol):
    def render(self, job: Job, diagnosis: Diagnosis, options: Detail) -> str: ...


def render(format: str, job: Job, diagnosis: Diagnosis, *, options: Detail = PLAIN) -> str:  # noqa: A002 as `--format`
    """Return the report of a judged job in one of `FORMATS`, ending with a newline.

    Raises:
        ValueError: there is no such format.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")
    module = cast("_Format", importlib.import_module(f"{__name__}.{format}"))
    return module.render(job, diagnosis, options)
