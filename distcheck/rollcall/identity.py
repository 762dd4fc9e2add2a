"""The job that a process belongs to, and what the network may see of it."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping

from distcheck.facts.placement import Placement
from distcheck.selection.placement import integer

SIDE_DOORS = 4
_OF_SCHEDULER = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_OF_OPEN_MPI = "PMIX_NAMESPACE"
_HAND_ON = {"slurm", "jsrun", "pals", "hydra", "horovod"}
"""Launchers that give every rank the environment of the scheduler's job."""


def job_key(environ: Mapping[str, str], placement: Placement) -> str:
    """Return the job's name: from the scheduler, torchrun's run, or by hand the user.

    MASTER_ADDR and MASTER_PORT are not part of it: ranks that disagree about them must still find each other.
    A DISTCHECK_TOKEN separates two jobs that one user starts by hand on one host.
    """
    token = environ.get("DISTCHECK_TOKEN")
    if token:
        from distcheck.rollcall import seal

        return f"token {seal.name_of(token)}"
    for name in _shared_ids(environ, placement):
        if environ.get(name):
            return f"{name}={environ[name]}"
    if environ.get("TORCHELASTIC_RUN_ID"):
        return f"torchrun {environ['TORCHELASTIC_RUN_ID']} uid {os.getuid()}"
    return f"uid {os.getuid()}"


def _shared_ids(environ: Mapping[str, str], placement: Placement) -> tuple[str, ...]:
    """Return the names of the job ids that all ranks have, if one has them.

    In a shell of salloc, qsub or bsub only the first node has the scheduler's, if ssh starts the other agents of
    torchrun or the daemons of Open MPI. Open MPI gives all ranks its own, and Slurm its own to the agents of a step.
    """
    launcher = placement.launcher
    if launcher == "openmpi":
        return (_OF_OPEN_MPI,)
    if launcher == "torchrun":
        one_agent = placement.world_size is not None and placement.world_size == placement.local_world_size
        return _OF_SCHEDULER if one_agent or (integer(environ.get("SLURM_STEP_NUM_NODES")) or 1) > 1 else ()
    return (*_OF_SCHEDULER, _OF_OPEN_MPI) if launcher in _HAND_ON else ()


def job_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return the secret that the job's processes share, None without a DISTCHECK_TOKEN."""
    token = environ.get("DISTCHECK_TOKEN")
    if not token:
        return None
    from distcheck.rollcall import seal

    return seal.secret_of(token)


def side_ports(job: str) -> tuple[int, ...]:
    """Return the side ports: below the ephemeral range, the same on every rank of a job."""
    first = 21000 + zlib.crc32(os.fsencode(job)) % 2500 * SIDE_DOORS
    return tuple(range(first, first + SIDE_DOORS))


def public_key(job: str) -> str:
    """Return the job's name as sent over the network: a hash, which hides user and job ids."""
    return hashlib.sha256(os.fsencode(job)).hexdigest()[:32]
