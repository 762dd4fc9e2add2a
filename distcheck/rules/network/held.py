"""Rules about what another job on the node holds of what a job's debugging aids use: ports, pipes, files of dumps."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.held import RAS, Held
from distcheck.facts.network import Bind
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.wording import found, grouped, listed, named, once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.held import HeldFile
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_MOST = 4


@rule("environment", severity="warning", scope="rank")
def net_debug_port_in_use(job: Job) -> Iterator[Outcome]:
    """Another process holds the port of torch's debug server, or of NCCL's RAS.

    The debug server of rank 0 (``torch.distributed.debug.start_debug_server``) listens on port 25999 unless the script
    gives another one. If that is taken, its process ends, and the job runs without it.
    At the address of NCCL_RAS_ADDR, processes of one user share the port, so that ``ncclras`` may ask the other job;
    if it is another user's, the job has no RAS. Usually it is a second job on the node.

    Found by looking up the listening socket: of NCCL_RAS_ADDR where it is set, of the debug server on rank 0's node
    where the text of COMMAND's script starts one. RAS's default port 28028 is not judged: all jobs of a node share it.

    Fix: Give each job a port of its own.

        {own|export NCCL_RAS_ADDR=localhost:$((20000 + SLURM_JOB_ID % 10000))}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
    """
    from distcheck.rules.job.settings import free_port
    from distcheck.rules.network.port_owners import holder, owner_commands

    for reason in dict.fromkeys(p.held.reason for p in job.processes if isinstance(p.held, Missing)):
        yield NotChecked(reason=reason, required=False)
    seen = [
        (job.node_of(rank).key, name, bind, rank)
        for rank, held in _held(job)
        for name, bind in held.ports.items()
        if name == RAS or rank.placement.rank == 0
    ]
    for (_, name, port), several in grouped(seen, lambda each: (*each[:2], each[2].port)).items():
        ranks, bind = [rank for *_, rank in several], several[0][2]
        who, evidence = holder(bind)
        free = free_port(job, port) or port + 1
        server = Fix(f"Give it another port: start_debug_server(port={free}).", owner_commands(job, ranks[0], bind))
        yield found(
            job,
            ranks,
            f"port {port} of {'NCCL_RAS_ADDR' if name == RAS else 'the debug server'} is held by {who}; "
            + ("ncclras may ask that process" if name == RAS else "rank 0 would run without the server"),
            None if name == RAS else server,
            evidence={"port": port, **evidence},
            values={"own": [f"export NCCL_RAS_ADDR=localhost:{free}"]},
        )


@rule("environment", severity="warning", scope="rank")
def torch_debug_file_in_use(job: Job) -> Iterator[Outcome]:
    """Another job on the node uses the same pipe or file of torch's Flight Recorder.

    torch appends the rank to TORCH_NCCL_DEBUG_INFO_PIPE_FILE and TORCH_FR_DUMP_TEMP_FILE, and nothing of the job. A
    rank of a second job replaces the pipe of the first one's, or fails with ``Error removing existing named pipe`` if
    that is another user's. Dumps overwrite each other: after a hang they are lost, or those of the wrong job.

    Found where the variables are set and the recorder is not off: by the file at each rank's path, by whether a process
    has the pipe open, and by the environment of this user's processes, which show a rank of another job.

    Fix: Give each job paths of its own.

        {own|export TORCH_FR_DUMP_TEMP_FILE=/tmp/trace_$SLURM_JOB_ID}

    See: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
    """
    seen = [(rank, file) for rank, held in _held(job) for file in held.files if file.rank == rank.placement.rank]
    for (variable, _), several in grouped(seen, lambda each: (each[1].variable, each[1].why)).items():
        ranks, files = [rank for rank, _ in several], [file for _, file in several]
        prefix = files[0].path.removesuffix(".pipe").removesuffix(str(files[0].rank))
        own = quote(f"{prefix}{ranks[0].placement.master_port or 0}_")
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {listed([file.path for file in files], _MOST)} {_words(files[0], len(files))}",
            evidence={file.path: _words(file, 1) for file in files[:16]},
            values={"own": [f"export {variable}={own}"]},
        )


def _words(file: HeldFile, number: int) -> str:
    """Return who uses files."""
    them = "it" if number == 1 else "them"
    if file.why == "foreign":
        return f"{'belongs' if number == 1 else 'belong'} to {file.user}, and torch cannot replace {them}"
    if file.why == "read":
        return f"{'is' if number == 1 else 'are'} open in a process of {file.user}; this job would replace {them}"
    from distcheck.rules.network.port_owners import holder

    return f"{'is' if number == 1 else 'are'} also written by {holder(Bind(0, 'in-use', '', file.process))[0]}"


@once
def _held(job: Job) -> list[tuple[RankFacts, Held]]:
    if all(process.held is None for process in job.processes):
        return []
    return [(rank, process.held) for rank, process, _ in job.placed if isinstance(process.held, Held)]
