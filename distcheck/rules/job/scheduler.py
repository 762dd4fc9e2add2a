"""The commands of the scheduler that the environment shows, where a rule writes them for Slurm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from distcheck.rules.job.world import allotted_nodes
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distcheck.facts.job import Job
    from distcheck.rules.finding import Fix

_SLURM = re.compile(r"(?:#SBATCH|scontrol|sinfo|sacct|squeue|srun|export SLURM_\w+=|export \w+=\$SLURM_)")
_REQUEST = re.compile(r"#SBATCH --([a-z-]+)(?:=(\w+))?$|scontrol update (nodename)=(\S+) state=drain")
_MARKS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST")
# https://help.altair.com (PBS Professional, qsub), https://www.ibm.com/docs/en/spectrum-lsf (bsub)
_IN_OTHER_WORDS: Mapping[str, Mapping[str, str]] = {
    "PBS_JOBID": {
        "gpus-per-node": "#PBS -l select={nodes}:ngpus={value}",
        "ntasks-per-node": "#PBS -l select={nodes}:mpiprocs={value}",
        "exclusive": "#PBS -l place=scatter:excl",
        "nodename": "pbsnodes -o {value}",
    },
    "LSB_JOBID": {
        "gpus-per-node": '#BSUB -gpu "num={value}"',
        "ntasks-per-node": '#BSUB -R "span[ptile={value}]"',
        "exclusive": "#BSUB -x",
        "nodename": "badmin hclose {value}",
    },
    "KUBERNETES_SERVICE_HOST": {
        "gpus-per-node": "# in the container: resources: {{limits: {{nvidia.com/gpu: {value}}}}}",
    },
}


@once
def scheduler(job: Job) -> str:
    """Return the variable by which the job's scheduler is known, '' without one."""
    return next((mark for mark in _MARKS if any(mark in r.environment for r in job.ranks)), "")


def as_scheduled(job: Job, fix: Fix) -> Fix:
    """Return a fix with the commands of the job's own scheduler in place of Slurm's, or without."""
    where, here = scheduler(job), job.launched is not None and job.launched.engine == "slurm"
    # An administrator who looks at a node by hand has the scheduler's commands and none of its variables.
    if where == "SLURM_JOB_ID" or here or (not where and job.asked.command == "node"):
        return fix
    if not any(map(_SLURM.match, fix.commands)):
        return fix
    commands = (_translated(job, where, command) if _SLURM.match(command) else command for command in fix.commands)
    return msgspec.structs.replace(fix, commands=tuple(command for command in commands if command))


def _translated(job: Job, where: str, command: str) -> str:
    request = _REQUEST.match(command)
    if request is None:
        return ""
    words = _IN_OTHER_WORDS.get(where, {}).get(request[1] or request[3], "")
    nodes = max(allotted_nodes(job.ranks[0]) or 1, len(job.nodes)) if job.ranks else len(job.nodes)
    return words.format(nodes=nodes, value=request[2] or request[4])
