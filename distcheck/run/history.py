"""What a run adds to the history of its nodes (``--history``)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sized

import msgspec

from distcheck import __version__
from distcheck.expectation.past import figures
from distcheck.facts.base import Missing
from distcheck.facts.history import SCHEMA, Noted, PastRun
from distcheck.facts.job import Collectives, Job
from distcheck.facts.node import TorchBuild
from distcheck.probe import history
from distcheck.rules.diagnose import Diagnosis
from distcheck.run.progress import warn

SECONDS = 3.0
"""The most that reading or writing may take, and `_SECONDS_PER_NODE` more: a file on a network takes milliseconds."""
_SECONDS_PER_NODE = 1e-3
_LEAST_SECONDS = 0.3
_LONGEST_BYTES = 4000
_FINDINGS = 16


async def read(folder: str, job: Job, seconds: float) -> Job:
    """Return the job with what earlier runs found on its nodes."""
    names = _names(job)
    found = await history.read(folder, names, min(_most(names), seconds))
    return msgspec.structs.replace(job, history=found)


async def add(folder: str, job: Job, diagnosis: Diagnosis, seconds: float) -> None:
    """Append this run to the history of each node; print a warning if that is not possible.

    A run whose ranks did not meet shows only some of its nodes, and is not recorded.
    """
    if not job.met:
        return
    if isinstance(job.history, Missing):
        problem = job.history.reason
    elif seconds < _LEAST_SECONDS:
        problem = "no time was left"
    else:
        new = lines(job, diagnosis, time.time())
        problem = await history.append(folder, new, min(_most(new), seconds))
    if problem:
        warn(f"--history: this run is not recorded for every node: {problem}")


def _most(nodes: Sized) -> float:
    return SECONDS + len(nodes) * _SECONDS_PER_NODE


def lines(job: Job, diagnosis: Diagnosis, now: float) -> dict[str, str]:
    """Return each node's line, shorter than 4 KiB."""
    noted = _noted(job, diagnosis)
    measured: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for figure in figures(job):
        measured[figure.node][figure.name] = figure.value
    ran = job.collectives if isinstance(job.collectives, Collectives) else None
    torch = {node.name: node.torch.version for node in job.nodes if isinstance(node.torch, TorchBuild)}
    return {
        name: _line(
            PastRun(
                schema=SCHEMA,
                node=name,
                time=round(now),
                run=job.run,
                command=job.asked.command,
                verdict=diagnosis.verdict.name,
                findings=tuple(noted.get(name, ())),
                distcheck=__version__,
                torch=torch.get(name, "")[:64],
                nccl=(ran.nccl if ran else "")[:64],
            ),
            measured.get(name, {}),
        )
        for name in dict.fromkeys((*_names(job), *noted))
    }


def _names(job: Job) -> tuple[str, ...]:
    """Return the names of the nodes, including those from which nothing was heard."""
    silent = [node.name for node in job.launched.nodes if node.outcome != "reported"] if job.launched else []
    return tuple(dict.fromkeys((*(node.name for node in job.nodes), *silent)))


def _noted(job: Job, diagnosis: Diagnosis) -> Mapping[str, list[Noted]]:
    """Return the findings of each node, errors first; those of a node that --need left out are of its first check."""
    found: defaultdict[str, dict[Noted, None]] = defaultdict(dict)
    for finding in diagnosis.findings:
        if finding.severity != "info" and not finding.excludes:
            noted = Noted(finding.rule, finding.severity, finding.scope, finding.confirmed)
            spared = msgspec.structs.replace(noted, observed=True)
            for name in finding.nodes:
                found[name][spared if name in finding.spared else noted] = None
    for spare in job.left_out:
        for rule in spare.rules:
            found[spare.node or spare.name][Noted(rule, "error", "node", spare.confirmed)] = None
    return {name: list(them)[:_FINDINGS] for name, them in found.items()}


def _line(run: PastRun, measured: Mapping[str, float]) -> str:
    """Return a run as a line, with as many figures as fit."""
    kept = dict(measured)
    while True:
        text = msgspec.json.encode(msgspec.structs.replace(run, figures=kept))
        if len(text) <= _LONGEST_BYTES or not kept:
            return text.decode()
        kept.popitem()
