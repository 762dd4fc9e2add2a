"""The report as one self-contained HTML file: no script, no font, no network."""

from __future__ import annotations

import math
import re
from importlib import resources
from typing import NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from distcheck.collectives.plan import label
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import size
from distcheck.report import Detail, tables
from distcheck.report.document import document
from distcheck.report.expected import provenance
from distcheck.report.harmless import harmless
from distcheck.report.legend import LEGEND
from distcheck.report.measured import figure, first_calls, models
from distcheck.report.schema import Document
from distcheck.report.sections import DETAILED, evidence_lines, gaps, problems
from distcheck.report.summary import advice, counts, headline, outcome_of
from distcheck.rules.diagnose import Diagnosis

_CODE = re.compile(r"`([^`]+)`")
WIDTH, HEIGHT = 700, 266
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 30, 30


class PlottedCurve(NamedTuple):
    """Bus bandwidth of one operation over sizes, in SVG coordinates."""

    op: str
    points: list[tuple[float, float, str]]
    """x, y and the tooltip of the point."""

    @property
    def path(self) -> str:
        """The points in the format of an SVG polyline."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in self.points)


class Chart(NamedTuple):
    """Curves and the ticks of the two axes."""

    curves: list[PlottedCurve]
    sizes: list[tuple[float, str]]
    speeds: list[tuple[float, str]]


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the page."""
    report = document(job, diagnosis)
    ranks, others = tables.ranks(report, everything=options.all_ranks, whole_uuids=True)
    return page("report.html.j2").render(
        report=report,
        headline=headline(job, report),
        outcome=outcome_of(report),
        advice=advice(report),
        counts=counts(diagnosis),
        problems=problems(diagnosis.findings, everything=options.verbose),
        detailed=math.inf if options.verbose else DETAILED,
        evidence=lambda evidence: evidence_lines(evidence, everything=options.verbose),
        not_checked=tables.not_checked(gaps(diagnosis.not_checked)),
        ranks=ranks,
        others=others,
        sweep=tables.sweep(report),
        times=tables.times(report, everything=options.all_ranks),
        devices=tables.devices(report),
        provenance=provenance(report.bandwidth),
        models=[*models(report), *first_calls(job)],
        chart=chart(report),
        ended=job.collectives.ended if isinstance(job.collectives, Collectives) else "",
        legend=LEGEND,
        options=options,
        box=(WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM),
    )


def page(name: str) -> Template:
    """Return a template of this package."""
    environment = Environment(
        loader=FunctionLoader(lambda name: resources.files("distcheck.report").joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(harmless=harmless, marked=marked)
    return environment.get_template(name)


def marked(text: str) -> Markup:
    """Return escaped text, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 already escaped


def chart(report: Document) -> Chart | None:
    """Return the chart of busbw over size (logarithmic); None if there is no curve."""
    figures = [
        (label(row.op, row.dtype), row.bytes, row.busbw_GBps)
        for row in report.bandwidth
        if row.busbw_GBps is not None and row.bytes > 0 and row.group == "world"
    ]
    sizes = sorted({number for _, number, _ in figures})
    if len(sizes) < 2:
        return None
    top = _round_up(max(speed for _, _, speed in figures))

    def across(number: int) -> float:
        share = math.log(number / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(speed: float) -> float:
        return HEIGHT - BOTTOM - speed / top * (HEIGHT - TOP - BOTTOM)

    curves = [
        PlottedCurve(
            op,
            [
                (across(number), up(speed), f"{op}, {size(number)}: {figure(speed)} GB/s")
                for its_op, number, speed in sorted(figures)
                if its_op == op
            ],
        )
        for op in dict.fromkeys(op for op, _, _ in figures)
    ]
    every = -(-len(sizes) // 6)
    return Chart(
        curves,
        [(across(number), size(number)) for number in sizes[::every]],
        [(up(top * n / 4), f"{top * n / 4:g}") for n in range(5)],
    )


def _round_up(speed: float) -> float:
    """Return the next 1, 2, 4 or 8 times a power of ten, whose quarters are short numbers."""
    power = 10.0 ** math.floor(math.log10(speed)) if speed > 0 else 1.0
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= speed)
