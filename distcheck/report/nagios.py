"""The report as one line for Nagios, Icinga and others that run its plugins, with performance data.

Sources: https://www.monitoring-plugins.org/doc/guidelines.html (return codes, performance data),
https://icinga.com/docs/developer-guidelines/latest/doc/300-plugins/304-performance-data-metrics/ (labels).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.report import Detail
from distcheck.report.document import document
from distcheck.rules.diagnose import Diagnosis


class PluginState(NamedTuple):
    """A state of a service: its word and the exit code of the plugin."""

    word: str
    code: int


OK, WARNING, CRITICAL, UNKNOWN = (PluginState(w, n) for n, w in enumerate(("OK", "WARNING", "CRITICAL", "UNKNOWN")))
_STATES = {"pass": OK, "warn": WARNING, "unknown": UNKNOWN, "job": CRITICAL, "node": CRITICAL}


def state(diagnosis: Diagnosis) -> PluginState:
    """Return the state of a judged job; what is only observed leaves it OK."""
    observed = diagnosis.would is not None and diagnosis.verdict.exit_code == 0
    return OK if observed else _STATES[diagnosis.verdict.name]


def line(state: PluginState, text: str) -> str:
    """Return the output of a plugin without performance data."""
    return f"DISTCHECK {state.word} - {text.replace('|', '/')}"


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the line; `options` has no effect."""
    del options
    figures = " ".join(f"'{label}'={value}" for label, value in _figures(job, diagnosis))
    return f"{line(state(diagnosis), document(job, diagnosis).headline)} | {figures}\n"


def _figures(job: Job, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield the performance data: a label, and the value with its unit."""
    report = document(job, diagnosis)
    severities = Counter(finding.severity for finding in report.findings)
    gpus = [gpu for node in job.nodes if isinstance(node.gpus, Gpus) for gpu in node.gpus.devices]
    yield "time", f"{report.seconds:.3f}s;;;0"
    yield "errors", f"{severities['error']};;;0"
    yield "warnings", f"{severities['warning']};;;0"
    yield "not_checked", f"{len({gap.rule for gap in report.not_checked})};;;0"
    yield "nodes", f"{len(job.nodes)};;;0"
    yield "gpus", f"{len(gpus)};;;0"
    heat = [gpu.health.temperature_celsius for gpu in gpus if gpu.health is not None]
    if known := [celsius for celsius in heat if not isinstance(celsius, Missing)]:
        yield "gpu_celsius", str(max(known))
    largest = {
        (row.op, row.dtype): row for row in sorted(report.bandwidth, key=lambda row: row.bytes) if row.group == "world"
    }
    for (op, dtype), row in largest.items():
        if row.busbw_GBps is not None:
            yield f"{op}_{dtype}_busbw_GBps", f"{row.busbw_GBps:.6g};;;0"
