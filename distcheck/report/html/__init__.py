"""The report as one self-contained HTML file: no font, no network; its only script copies texts.

Each section of the page has a template of its own. What it shows is worked out beside it: `heat` (nodes), `pairs`
(paths between nodes), `curves` (bandwidth), `facts` (of every rank).
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from distcheck.facts.job import Job
from distcheck.facts.ranges import fold
from distcheck.report import Detail, tables
from distcheck.report.comparison import lines, title
from distcheck.report.document import document
from distcheck.report.harmless import harmless
from distcheck.report.headline import outcome_of
from distcheck.report.html import curves
from distcheck.report.html.facts import sheet
from distcheck.report.html.heat import SIGNS, heat_map
from distcheck.report.html.pairs import matrix
from distcheck.report.legend import LEGEND
from distcheck.report.measured import measured
from distcheck.report.schema.document import Document
from distcheck.report.sections import DETAILED, Problem, evidence_lines, gaps, problems
from distcheck.report.summary import checked, counts
from distcheck.rules.diagnose import Diagnosis

_CODE = re.compile(r"`([^`]+)`")
SECTIONS = {
    "gpus": "GPUs",
    "findings": "Findings",
    "not-checked": "Not checked",
    "comparison": "Comparison",
    "nodes": "Nodes",
    "paths": "Paths between nodes",
    "bandwidth": "Bandwidth",
    "ranks": "Ranks",
    "facts": "Facts",
    "columns": "Columns",
}
"""The sections in their order. A section's name is its id on the page and that of its template."""
_ON_PASS = ("findings", "comparison", "bandwidth", "nodes", "paths")
"""What a pass shows first."""
_BOX = (curves.LEFT, curves.RIGHT, curves.TOP, curves.BOTTOM, curves.WIDTH, curves.HEIGHT)


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the page."""
    report = document(job, diagnosis)
    facts = sheet(job, report)
    contents = {
        "gpus": tables.gpus(report, everything=options.verbose, whole_uuids=True),
        "findings": problems(diagnosis.findings, everything=options.verbose),
        "not-checked": tables.not_checked(gaps(diagnosis.not_checked)),
        "comparison": options.comparison,
        "nodes": heat_map(job, report),
        "paths": matrix(job),
        "bandwidth": measured(job, report, everything=options.all_ranks),
        "ranks": _rank_table(job, report, options),
        "facts": facts if facts.common or facts.splits else None,
        "columns": LEGEND if options.legend else {},
    }
    return page("report.html.j2").render(
        report=report,
        contents=contents,
        sections=_sections(report.verdict, contents, quiet=options.quiet),
        checked=checked(job, report),
        outcome=outcome_of(job, diagnosis),
        counts=counts(report, diagnosis),
        detailed=math.inf if options.verbose else DETAILED,
        evidence=lambda case: evidence_lines(case.evidence, everything=options.verbose, said=case.message),
        charts=curves.charts(job, report),
        options=options,
        script=_script(),
    )


def _rank_table(job: Job, report: Document, options: Detail) -> tables.Grid:
    if job.hang is None:
        return tables.ranks(report, everything=options.all_ranks, whole_uuids=True)
    from distcheck.report.hang import hang_table  # only for `distcheck hang`

    return hang_table(job, everything=options.all_ranks)


def _sections(verdict: str, contents: Mapping[str, object], *, quiet: bool) -> list[tuple[str, str]]:
    """Return name and title of each section that has contents; a pass shows its figures before what was not checked."""
    names = [name for name in SECTIONS if contents[name] and (not quiet or name in {"findings", "comparison"})]
    if verdict in {"pass", "warn"}:
        names.sort(key=lambda name: _ON_PASS.index(name) if name in _ON_PASS else len(_ON_PASS))
    return [(name, SECTIONS[name]) for name in names]


def page(name: str) -> Template:
    """Return a template of this package."""
    return environment().get_template(name)


@cache
def environment() -> Environment:
    """Return the environment of the templates: every value that one shows is made harmless and escaped."""
    found = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters.update(marked=marked, lined=lined)
    found.globals.update(
        anchor=_anchor, box=_BOX, fold=fold, legend=LEGEND, lines=lines, signs=SIGNS, tables=tables, title_of=title
    )
    return found


def _shown(value: object) -> object:
    """Return a value as a template shows it; Markup is a part of the page already."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _source(name: str) -> str:
    return resources.files("distcheck.report.html").joinpath(name).read_text("utf-8")


def _script() -> dict[str, str]:
    """Return the page's script, and its hash: the page's policy allows no other."""
    text = _source("copy.js")
    known = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "hash": known}  # noqa: S704 our own


def _anchor(problem: Problem) -> str:
    """Return the id of a problem on the page."""
    name = re.sub(r"[^a-z0-9-]", "-", problem.rule.lower())
    return f"{name}-{problem.severity}{'' if problem.confirmed else '-not-confirmed'}"


def marked(text: str) -> Markup:
    """Return harmless, escaped text, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(harmless(text)))))  # noqa: S704 already escaped


def lined(lines: Iterable[str]) -> Markup:
    """Return harmless, escaped lines as one text."""
    return Markup("\n").join(map(harmless, lines))
