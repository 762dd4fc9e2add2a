"""One run of distcheck in one process: what is asked of it, how it ends, and what it collects about itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts import (
    Asked,
    Attempt,
    Bind,
    CudaView,
    Gpus,
    Installed,
    Job,
    Look,
    Missing,
    NodeFacts,
    Placement,
    ProcessFacts,
    RankFacts,
    Resolution,
)
from distcheck.probe import environment, host, network, ports, process
from distcheck.rules.diagnose import Diagnosis, diagnose
from distcheck.run.record import Record
from distcheck.run.watchdog import GRACE_SECONDS, armed

if TYPE_CHECKING:
    from distcheck.launch.remote.spec import Outside
    from distcheck.rollcall.protocol import Report


class Request(NamedTuple):
    """What this process is to do."""

    asked: Asked
    placements: tuple[Placement, ...]
    """The ranks for which it speaks."""
    environ: Mapping[str, str]
    connect_seconds: float = 3.0
    iterations: int | None = None
    time_limit_seconds: float | None = None
    """For the whole sweep."""
    start: float = 0.0
    """time.monotonic() when the process started."""
    quiet: bool = False
    outside: Outside | None = None
    """How to start the probes when this process is none itself."""
    on_collected: Callable[[Report], None] | None = None
    """Told what this process knows of itself, before it meets anybody."""

    @property
    def own_ranks(self) -> frozenset[int]:
        """The ranks for which this process speaks."""
        return frozenset(p.rank for p in self.placements if p.rank is not None)

    @property
    def speaks_for_all(self) -> bool:
        """Whether nobody else belongs to the job."""
        return self.placements[0].world_size == len(self.placements) == len(self.own_ranks)

    @property
    def meets(self) -> bool:
        """Whether other processes, or at least a MASTER_PORT to bind, belong to this job."""
        return any(p.can_meet for p in self.placements) and "meeting" in self.asked.looks

    @property
    def starts_ranks(self) -> bool:
        """Whether this process has ranks to start: its own from outside, or the one that measures."""
        return self.asked.started_here or (self.asked.measures and bool(self.own_ranks))


class Outcome(NamedTuple):
    """How it ended."""

    job: Job
    diagnosis: Diagnosis
    exit_code: int
    reported: bool
    """Whether this process had to publish the report, alone or for all."""


_UNKNOWN = 20
NOBODY_TO_MEET = "the placement is not valid, so nobody could be met"
NEVER_MET = "rank 0 was never met"
WITH_OTHERS: tuple[Look, ...] = ("peers", "collectives", "isolation")
"""Looks that a process cannot take alone."""

Publish = Callable[[Job, Diagnosis, int], int]
"""Writes the report; returns the exit code, 70 instead of the verdict's when it could not be written."""


def run(request: Request, publish: Publish) -> Outcome:
    """Run a preflight to its end and return how it ended."""
    with armed(request.start + request.asked.timeout_seconds + GRACE_SECONDS, _UNKNOWN) as dog:
        if request.outside is not None:
            from distcheck.run.outside import run_outside

            return run_outside(request, request.outside, publish, dog)
        lone = request.speaks_for_all or not request.meets
        if not lone or request.starts_ranks or not {"gpu", "peers"}.isdisjoint(request.asked.looks):
            from distcheck.run.context import Session

            return Session(request, publish, dog).run_to_end()
        return _run_alone(request, publish)


def _run_alone(request: Request, publish: Publish) -> Outcome:
    """Look at what can be seen without waiting for anybody; asyncio's start-up is not paid for."""
    record = Record(request)
    place = request.placements[0]
    agent = request.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    own = _try_own_master(place, request.connect_seconds, agent=agent) if request.meets else None
    reached = own is None or any(a.outcome == "met" for a in own.attempts)
    record.node = host.collect(request.environ, addresses=not reached)
    record.process = process_facts(record.uid, record.node, request.environ, request.placements)
    if own is not None:
        record.note(bind=own.bind, resolution=own.resolution, attempts=own.attempts, role="host")
    record.ranks = tuple(
        rank_facts(record.uid, record.node, p, environment.collect(request.environ)) for p in request.placements
    )
    record.met = request.speaks_for_all
    if not record.met:
        record.skip(WITH_OTHERS, NOBODY_TO_MEET)
    record.note(stage="done")
    job = record.job()
    diagnosis = judge(job)
    return Outcome(job, diagnosis, publish(job, diagnosis, diagnosis.verdict.exit_code), reported=True)


class _OwnMaster(NamedTuple):
    resolution: Resolution | Missing
    bind: Bind
    attempts: tuple[Attempt, ...]


def _try_own_master(place: Placement, seconds: float, *, agent: bool) -> _OwnMaster:
    """Resolve MASTER_ADDR, bind MASTER_PORT, and see whether the one leads to the other."""
    resolution = network.resolve(place.master_addr or "")
    sock, bind = network.bind(place.master_port or 0, agent=agent)
    attempts: tuple[Attempt, ...] = ()
    if sock is not None:
        with sock:
            if isinstance(resolution, Resolution):
                attempts = tuple(network.knock_at_own(sock, address, seconds) for address in resolution.addresses)
    return _OwnMaster(resolution, bind, attempts)


def judge(job: Job) -> Diagnosis:
    """Judge a job by the rules that its user chose."""
    return diagnose(job, strict=job.asked.strict, select=job.asked.select, ignore=job.asked.ignore)


def process_facts(
    uid: str, node: NodeFacts, environ: Mapping[str, str] = os.environ, placements: Iterable[Placement] = ()
) -> ProcessFacts:
    """Collect the facts of this process, which speaks for these ranks."""
    first = next((p for p in placements if p.rank in {0, None}), None)
    return ProcessFacts(
        uid=uid,
        node=node.key,
        pid=os.getpid(),
        command=process.command_of(os.getpid()),
        ancestors=process.ancestors(),
        agent=process.agent(environ),
        installed=Installed(python=node.python, prefix=sys.prefix, torch=node.torch, nccl=host.nccl_beside(node.torch)),
        shm_device=process.shm_device(environ),
        stage="node",
        free_ports=ports.free_near(first.master_port, node.unprivileged_port_start, node.ephemeral_ports)
        if first is not None
        else (),
    )


def rank_facts(
    uid: str,
    node: NodeFacts,
    placement: Placement,
    variables: dict[str, str],
    cuda: CudaView | Missing | None = None,
) -> RankFacts:
    """Join what is known of a rank, and find the GPU that it will take among those of its node.

    Which GPUs it sees CUDA tells; where it could not be asked or does not start, NVML's list and the rank's variables.
    """
    uuids: tuple[str, ...] | Missing | None = None
    stop, device = "", None
    if isinstance(node.gpus, Gpus):
        from distcheck.selection.visible_devices import visible

        uuids, stop = visible(variables.get("CUDA_VISIBLE_DEVICES"), node.gpus.devices)
    elif isinstance(node.gpus, Missing):
        uuids = node.gpus
    if isinstance(cuda, CudaView):
        from distcheck.probe.cuda import as_nvml_names

        devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
        cuda = as_nvml_names(cuda, devices, predicted=uuids if isinstance(uuids, tuple) else ())
        named = tuple(shown.uuid for shown in cuda.devices)
        uuids = named if all(named) and not cuda.error else uuids
    if isinstance(uuids, tuple):
        from distcheck.selection.visible_devices import device_of

        device = device_of(placement.local_rank, uuids)
    return RankFacts(
        process=uid,
        placement=placement,
        environment=variables,
        visible_gpus=uuids,
        visible_stop=stop,
        gpu=device,
        cuda=cuda,
        cpu_list=process.allowed_cpu_list(),
        cpus=process.allowed_cpus(),  # the rank is this process, or one that it forks
    )
