"""The report as Prometheus metrics, for node_exporter's textfile collector."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import get_args

from distcheck.facts.job import Job
from distcheck.report import Detail
from distcheck.report.document import document
from distcheck.report.harmless import harmless
from distcheck.report.schema.document import STATUSES, Found
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import SEVERITIES, VerdictName

Sample = tuple[dict[str, str], float | None]
_MOST = 256
"""Nodes and GPUs with findings, those with errors first: a finding may name all of a large job."""


def render(job: Job, diagnosis: Diagnosis, options: Detail) -> str:
    """Return the metrics; `options` has no effect."""
    del options
    report = document(job, diagnosis)
    found = Counter((finding.rule, finding.severity) for finding in diagnosis.findings)
    statuses = Counter(row.status for row in report.ranks)
    world = {(row.op, row.dtype, str(row.bytes)): row.busbw_GBps for row in report.bandwidth if row.group == "world"}
    lines = [
        *_metric(
            "distcheck_verdict",
            "1 for the verdict of the last run, 0 for the others.",
            (({"verdict": name}, float(name == report.verdict)) for name in get_args(VerdictName)),
        ),
        *_metric("distcheck_exit_code", "Exit code of the last run.", [({}, report.exit_code)]),
        *_metric(
            "distcheck_would_exit_code",
            "Exit code of the last run if nothing were only observed.",
            [({}, report.would.exit_code if report.would else report.exit_code)],
        ),
        *_metric(
            "distcheck_last_run_timestamp_seconds", "Unix time at which the last run ended.", [({}, _unix(report.at))]
        ),
        *_metric("distcheck_duration_seconds", "Duration of the last run.", [({}, report.seconds)]),
        *_metric(
            "distcheck_findings",
            "Findings of the last run.",
            (({"rule": rule, "severity": severity}, n) for (rule, severity), n in sorted(found.items())),
        ),
        *_metric(
            "distcheck_node_findings",
            f"Findings of the last run that name a node, or a GPU of it; at most {_MOST} series, errors first.",
            islice(_by_place(report.findings), _MOST),
        ),
        *_metric(
            "distcheck_ranks",
            "Ranks of the last run.",
            (({"status": status}, statuses[status]) for status in STATUSES),
        ),
        *_metric(
            "distcheck_busbw_GBps",
            "Bus bandwidth in 1e9 bytes per second.",
            ((dict(zip(("op", "dtype", "bytes"), name, strict=True)), busbw) for name, busbw in world.items()),
        ),
    ]
    return "\n".join(lines) + "\n"


def _unix(at: str) -> float | None:
    """Return a report's time in seconds, None if it has none that can be read.

    A sample of its own: node_exporter skips files whose samples have a timestamp.
    https://github.com/prometheus/node_exporter#textfile-collector
    """
    try:
        return dt.datetime.strptime(at, "%Y-%m-%d %H:%M:%S %z").timestamp()
    except ValueError:
        return None


def _by_place(findings: Iterable[Found]) -> Iterator[Sample]:
    """Yield the number of findings of each rule on each node, and on each GPU that they name, errors first."""
    places: Counter[tuple[str, ...]] = Counter()
    for found in sorted(findings, key=lambda found: SEVERITIES.index(found.severity)):
        what = found.rule, found.severity
        places.update((*what, gpu.node, str(gpu.index), gpu.uuid or "") for gpu in found.gpus)
        with_gpus = {gpu.node for gpu in found.gpus}
        places.update((*what, node, "", "") for node in found.nodes if node not in with_gpus)
    for place, number in places.items():
        yield dict(zip(("rule", "severity", "node", "gpu", "uuid"), place, strict=True)), number


def _metric(name: str, meaning: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        if value is not None:
            written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            yield f"{name}{{{written}}} {value:.10g}" if written else f"{name} {value:.10g}"


def _escaped(text: str) -> str:
    return harmless(text).replace("\\", r"\\").replace('"', r"\"")
