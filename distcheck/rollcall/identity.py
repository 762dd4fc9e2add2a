"""Which job a process belongs to, and what the network may learn of it."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping

from distcheck.facts import Placement

SIDE_DOORS = 4


def job_key(environ: Mapping[str, str], placement: Placement) -> str:
    """Name the job that a process belongs to: the scheduler's job and step, torchrun's run, or by hand the user.

    MASTER_ADDR and MASTER_PORT are not part of it: a job whose ranks disagree about them must still be able to meet.
    A DISTCHECK_TOKEN tells two jobs of one user apart that were started by hand on one host.
    """
    token = environ.get("DISTCHECK_TOKEN")
    if token:
        from distcheck.rollcall import seal

        return f"token {seal.name_of(token)}"
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE"):
        if environ.get(name) and placement.launcher not in {"by hand", "distcheck"}:
            return f"{name}={environ[name]}"
    if environ.get("TORCHELASTIC_RUN_ID"):
        return f"torchrun {environ['TORCHELASTIC_RUN_ID']} uid {os.getuid()}"
    return f"uid {os.getuid()}"


def job_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return what only the processes of this job know, None where there is no DISTCHECK_TOKEN."""
    token = environ.get("DISTCHECK_TOKEN")
    if not token:
        return None
    from distcheck.rollcall import seal

    return seal.secret_of(token)


def side_ports(job: str) -> tuple[int, ...]:
    """Return the ports of the side doors: below the ephemeral range, the same on every rank of a job."""
    first = 21000 + zlib.crc32(job.encode()) % 2500 * SIDE_DOORS
    return tuple(range(first, first + SIDE_DOORS))


def public_key(job: str) -> str:
    """Return the job's name as it crosses the network: nobody who listens learns a user or job id."""
    return hashlib.sha256(job.encode()).hexdigest()[:32]
