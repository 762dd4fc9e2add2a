"""`distcheck node`: checks one node without ranks, peers or torch.

It ends within --timeout whatever hangs.

It runs outside jobs: by slurmd before a job (Prolog) or periodically (HealthCheckProgram), or as a DaemonSet. It runs
as root, with a nearly empty environment and possibly closed standard streams. Rank variables in the environment are
ignored.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.errors import WriteError
from distcheck.facts.history import History
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.outputs import write
from distcheck.facts.placement import Placement
from distcheck.facts.rank import RankFacts
from distcheck.facts.storage import Storage
from distcheck.probe import gpu, host, infiniband, pci
from distcheck.probe.fork import forking
from distcheck.probe.health import health
from distcheck.probe.own import process_facts
from distcheck.probe.state import state
from distcheck.report.headline import LONGEST, headline
from distcheck.rules import rules_for
from distcheck.rules.diagnose import Diagnosis, judge
from distcheck.run import storage
from distcheck.run.interrupts import InterruptedRunError, until_interrupted
from distcheck.run.record import Record
from distcheck.run.request import Publish, Request, RunResult
from distcheck.run.watchdog import armed, when_late

_RESERVE_SECONDS = 2.5
"""Kept back from --timeout: one second to kill a child that hangs, the rest to judge and report."""
_HISTORY_RESERVE_SECONDS = 1.2
"""Kept back from --timeout: one second to kill a child that hangs."""
_CHILD_SECONDS = 1.0
"""To start the child that looks at folders, and to end it."""
_PREFIX = "distcheck: "
"""A HealthCheckProgram recognizes the nodes that it drained by this prefix."""


def run(
    asked: Asked, environ: Mapping[str, str], publish: Publish, past: str = "", start: float | None = None
) -> RunResult:
    """Check this node, judge it, publish the report, and return the result.

    `past` is the folder with the node's history, empty without one; `start` is when the time limit began.
    """
    start = time.monotonic() if start is None else start
    with armed(start + asked.timeout_seconds, when_late(asked)):
        request = Request(asked, (Placement(),), environ, start=start)
        record = Record(request)
        seconds = max(0.1, asked.timeout_seconds - _RESERVE_SECONDS)
        try:
            with forking():  # the watchdog is the only thread
                looking = _look_and_read(asked, environ, seconds, past, record)
                record.node, record.history = asyncio.run(until_interrupted(looking))
        except InterruptedRunError as stop:
            job = msgspec.structs.replace(record.job(), interrupted=stop.args[0])
            diagnosis = judge(job)
            return RunResult(job, publish(job, diagnosis, diagnosis.verdict.exit_code), reported=True)
        record.process = process_facts(record.uid, record.node)
        # The report has one row, the node's; no variable counts as a rank's.
        record.ranks = (RankFacts(process=record.uid, placement=Placement(), environment={}),)
        record.met = True
        record.begin("done")
        job = record.job()
        diagnosis = judge(job)
        code = publish(job, diagnosis, diagnosis.verdict.exit_code)
        if past:
            from distcheck.run import history

            left = start + asked.timeout_seconds - time.monotonic() - _HISTORY_RESERVE_SECONDS
            asyncio.run(history.add(past, job, diagnosis, left))
        return RunResult(job, code, reported=True)


async def _look_and_read(
    asked: Asked, environ: Mapping[str, str], seconds: float, folder: str, record: Record
) -> tuple[NodeFacts, History | Missing | None]:
    """Query the node, and at the same time what earlier runs found on it."""
    looking = asyncio.ensure_future(_look(asked, environ, seconds, record.uid))
    await asyncio.sleep(0)  # it starts its children
    await asyncio.sleep(0)
    rules_for(record.job())  # imports the rules while the children start
    if not folder:
        return await looking, None
    from distcheck.probe import history
    from distcheck.run.history import SECONDS

    read = history.read(folder, (host.name_of_node(environ),), min(SECONDS, seconds))
    return await asyncio.gather(looking, read)


async def _look(asked: Asked, environ: Mapping[str, str], seconds: float, name: str) -> NodeFacts:
    """Query NVML, the PCI bus and the node at the same time, each in a killable child; then NCCL, if asked to."""
    until = time.monotonic() + seconds
    accelerator = gpu.accelerator(environ=environ)
    folders = _storage(asked, environ, seconds, name)
    parts = asyncio.gather(state(seconds), infiniband.infiniband(seconds), health(seconds), folders)
    gpus, places = None, None
    if accelerator != "none" or asked.gpus:
        gpus, places = await asyncio.gather(gpu.gpus(seconds, accelerator), pci.places(seconds))
        accelerator = gpu.accelerator(environ=environ, answer=gpus)
    own, adapters, system, found = await parts
    node = host.collect(
        environ,
        accelerator=accelerator,
        gpus=gpus,
        pci=places,
        state=own,
        infiniband=adapters,
        policy=asked.policy,
    )
    node = msgspec.structs.replace(node, host=system, storage=found)
    if not asked.diagnose:
        return node
    from distcheck.probe import nccl_diagnosis

    told = await nccl_diagnosis.diagnosis(node, environ, until - time.monotonic())
    return msgspec.structs.replace(node, diagnosis=told)


async def _storage(asked: Asked, environ: Mapping[str, str], seconds: float, name: str) -> Storage | Missing:
    """Look at the folders of --path and of this environment."""
    task = storage.task_of(asked, environ, name, seconds - _CHILD_SECONDS)
    if task is None:
        return Missing(reason=storage.TOO_LATE)
    child = storage.start(task, seconds, environ)
    try:
        return await storage.heard(child, seconds)
    finally:
        await child.close(_CHILD_SECONDS / 2)


def tell(job: Job, diagnosis: Diagnosis, reason_file: Path | None, *, syslog: bool) -> str:
    """Write the reason file and the syslog line; return the error, empty if there was none."""
    why = reason(job, diagnosis)
    if syslog:
        _tell_syslog(job, diagnosis)
    if reason_file is not None:
        try:
            write(reason_file, f"{why}\n" if why else "")
        except WriteError as error:
            return str(error)
    return ""


def reason(job: Job, diagnosis: Diagnosis, environ: Mapping[str, str] = os.environ) -> str:
    """Return why the node is unhealthy, for ``scontrol update Reason=``; empty if healthy.

    The reason is one line of printable ASCII without quotes, at most 200 characters, and begins with ``distcheck: ``.
    """
    if diagnosis.verdict.exit_code == 0:
        return ""
    number = environ.get("SLURM_JOB_ID", "")
    ending = f" [job={number}]" if number.isascii() and number.isdecimal() and len(number) < 20 else ""
    line = headline(job, diagnosis, LONGEST - len(_PREFIX) - len(ending))
    return _PREFIX + "".join(c if " " <= c <= "~" else "?" for c in line if c not in "\"'`\\$") + ending


def _tell_syslog(job: Job, diagnosis: Diagnosis) -> None:
    """Write one line to syslog, as daemon.err, .warning or .info.

    A log daemon that hangs would block syslog(3), and with it the verdict: it gets no line.
    """
    import syslog

    code = diagnosis.verdict.exit_code
    level = {0: syslog.LOG_INFO, 10: syslog.LOG_WARNING, 20: syslog.LOG_WARNING}.get(code, syslog.LOG_ERR)
    line = f"{time.strftime('%b %e %H:%M:%S')} distcheck[{os.getpid()}]: {headline(job, diagnosis)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log, suppress(OSError):
        log.settimeout(0)
        log.connect("/dev/log")
        log.send(f"<{syslog.LOG_DAEMON | level}>{line}".encode())
