"""The report as one JSON document on one line, for programs; docs/json.md describes it."""

from __future__ import annotations

import msgspec

from distcheck.facts.job import Job
from distcheck.report import Detail
from distcheck.report.document import document
from distcheck.report.harmless import storable
from distcheck.rules.diagnose import Diagnosis


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the document and a newline; of `options` only the comparison has an effect."""
    report = msgspec.structs.replace(document(job, diagnosis), comparison=options.comparison)
    try:
        line = msgspec.json.encode(report)
    except UnicodeEncodeError:  # bytes of an environment variable that are not UTF-8
        line = msgspec.json.encode(storable(report))
    return line.decode() + "\n"
