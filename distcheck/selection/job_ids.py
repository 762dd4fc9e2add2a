"""The scheduler's job ids that identify a job, because every rank of it has them."""

from __future__ import annotations

from collections.abc import Mapping

from distcheck.facts.placement import Placement
from distcheck.selection.placement import integer

_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_OF_LAUNCH = "PMIX_NAMESPACE"
_HAND_ON = {"slurm", "jsrun", "pals", "hydra", "horovod"}
"""Launchers that give every rank the environment of the scheduler's job."""


def with_shared_ids(environ: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """Return the environment without the job ids that other ranks of the job may lack.

    In a shell of salloc, qsub or bsub only the first node has them, if ssh starts the other agents of torchrun or the
    daemons of Open MPI. Open MPI gives all ranks its own id. Slurm gives its id to the agents that a step started.
    """
    launcher = placement.launcher
    if launcher == "openmpi":
        lacking: tuple[str, ...] = _IDS
    elif launcher in _HAND_ON or (launcher == "torchrun" and _share_environment(environ, placement)):
        lacking = ()
    else:
        lacking = (*_IDS, _OF_LAUNCH)
    return {name: value for name, value in environ.items() if name not in lacking}


def _share_environment(environ: Mapping[str, str], placement: Placement) -> bool:
    """Whether all ranks have one torchrun agent, or agents that one Slurm step started on several nodes."""
    one_agent = placement.world_size is not None and placement.world_size == placement.local_world_size
    return one_agent or (integer(environ.get("SLURM_STEP_NUM_NODES")) or 1) > 1
