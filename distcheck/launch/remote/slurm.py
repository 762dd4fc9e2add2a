"""Starts a Slurm allocation's probes by one srun: per task, or with --nproc per node.

| layout | srun's options |
|---|---|
| each task a rank | those that sbatch and salloc set in SLURM_*: the layout of ``srun python train.py`` |
| the same without bad nodes | --nodes N --ntasks M, and --ntasks-per-node if all nodes have the same number |
| each task a node | --nodes N --ntasks N --ntasks-per-node 1 |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from distcheck.facts.errors import UsageError
from distcheck.launch.remote.assignment import Assignment, encode
from distcheck.launch.remote.spec import Command, Outside, Words, probe_argv
from distcheck.selection.nodelist import tasks_per_node
from distcheck.selection.placement import integer

WORDS = Words(
    of_task=re.compile(r"^\s*(\d+): (.*)"),
    of_node=(
        re.compile(r"srun: error: (\S+?): tasks? [\d,\[\]-]+: (.*)"),
        re.compile(r"srun: error: Task launch for \S+ failed on node (\S+): (.*)"),
        re.compile(r"(?:slurmstepd|slurmd): error: (\S+): (.*)"),
    ),
)


def commands(launch: Outside, assignment: Assignment) -> Sequence[Command]:
    """Return the one command that starts all probes."""
    number = str(len(launch.hosts))
    layout: tuple[str, ...] = ()
    if launch.multiplies:
        layout = ("--nodes", number, "--ntasks", number, "--ntasks-per-node", "1", "--cpu-bind", "none")
    elif launch.trimmed:  # srun would take the numbers of the whole allocation
        layout = ("--nodes", number, "--ntasks", str(sum(launch.ranks_by_host)))
        if len(set(launch.ranks_by_host)) == 1:
            layout += ("--ntasks-per-node", str(launch.ranks_by_host[0]))
    nodes = ("--nodelist", ",".join(launch.hosts))
    return (
        Command(
            key="srun",
            argv=(
                "srun", "--label", "--kill-on-bad-exit=0", "--export=ALL", *nodes, *layout, *launch.arguments,
                *probe_argv(launch, encode(assignment)),
            ),
        ),
    )  # fmt: skip


def hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the allocation.

    Raises:
        UsageError: the list is missing or malformed.
    """
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    text = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    try:
        found = tuple(NodeSet(text))
    except NodeSetException as error:
        raise UsageError(f"SLURM_JOB_NODELIST {text!r} is not a node list: {error}") from error
    if not found:
        raise UsageError("SLURM_JOB_NODELIST is empty: run distcheck in an sbatch script or inside salloc")
    return found


def tasks_by_host(environ: Mapping[str, str], number: int) -> tuple[int, ...]:
    """Return srun's tasks per node: SLURM_TASKS_PER_NODE, such as ``5,1(x3)``, else one each."""
    counts = tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", ""))
    return counts if len(counts) == number else (1,) * number


def distribution(environ: Mapping[str, str], arguments: Sequence[str]) -> tuple[str, int | None]:
    """Return srun's task distribution and plane size; its own option takes precedence."""
    options = " ".join(arguments)
    if given := re.findall(r"(?:^|\s)(?:--distribution[= ]|-m ?)(\S+)", options):
        return given[-1], None
    return environ.get("SLURM_DISTRIBUTION", ""), integer(environ.get("SLURM_DIST_PLANESIZE"))


def default_port(environ: Mapping[str, str]) -> int:
    """Return a MASTER_PORT derived from the job id, so that jobs on a shared node differ."""
    job = environ.get("SLURM_JOB_ID", "")
    return 20000 + (int(job) if job.isdecimal() else 0) % 10000
