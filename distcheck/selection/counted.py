"""How many processes or nodes a job has by the variables of its launcher and its platform, WORLD_SIZE aside.

| variables | set by |
|---|---|
| the launcher's own (SLURM_NTASKS, OMPI_COMM_WORLD_SIZE, ...) | what started the process |
| SLURM_NTASKS | Slurm, for a batch script that starts the processes by itself |
| VC_TRAINER_NUM, VC_WORKER_NUM, ... | Volcano, the pods of each task of a job |
| PET_NNODES x PET_NPROC_PER_NODE | Kubeflow, and the manifests of Indexed Jobs and JobSets |
| PET_NNODES, NNODES, PBS_NUM_NODES, NHOSTS, SLURM_NNODES, SM_HOSTS | the same, schedulers and scripts |
| PBS_NODEFILE, LSB_DJOB_HOSTFILE, PE_HOSTFILE | schedulers, the file with the hosts |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from distcheck.selection.placement import find_table, integer

VOLCANO = re.compile(r"VC_\w+_NUM")
HOSTFILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
"""Variables that name a file with the job's hosts: of PBS, LSF and Grid Engine."""
_NODES = ("PET_NNODES", "NNODES", "SLURM_NNODES", "PBS_NUM_NODES", "NHOSTS")


class Counted(NamedTuple):
    """A number of a job's processes or nodes, and the variables that have it."""

    names: str
    number: int
    of: Literal["tasks", "processes", "nodes"]
    """tasks: the launcher started exactly these processes."""
    nodes: int = 0
    """The nodes on which they are; 0 if unknown."""


def counted(environ: Mapping[str, str], hosts: Mapping[str, int]) -> Iterator[Counted]:
    """Yield the numbers by a process's variables; none under torchrun, which sets WORLD_SIZE itself.

    `hosts` are the numbers of hosts in the files that `HOSTFILES` name.
    """
    table = find_table(environ)
    if table is not None and table.launcher == "torchrun":
        return
    values = {name: number for name in environ if (number := integer(environ[name])) is not None and number > 0}
    if table is not None and table.world_size in values:
        yield Counted(table.world_size, values[table.world_size], "tasks")
    if "SLURM_NTASKS" in values:
        yield Counted("SLURM_NTASKS", values["SLURM_NTASKS"], "processes", values.get("SLURM_NNODES", 0))
    if pods := [name for name in sorted(values) if VOLCANO.fullmatch(name)]:
        total, apart = sum(values[name] for name in pods), "KUBERNETES_SERVICE_HOST" in environ
        yield Counted(" and ".join(pods), total, "nodes" if apart else "processes", total if apart else 0)
    if {"PET_NNODES", "PET_NPROC_PER_NODE"} <= values.keys():
        total = values["PET_NNODES"] * values["PET_NPROC_PER_NODE"]
        yield Counted("PET_NNODES x PET_NPROC_PER_NODE", total, "processes")
    of_nodes = {name: values[name] for name in _NODES if name in values}
    for name, number in (*of_nodes.items(), *hosts.items()):
        yield Counted(name, number, "nodes", number)
    with suppress(ValueError):
        machines = msgspec.json.decode(environ.get("SM_HOSTS", "[]"), type=list[str])
        yield Counted("SM_HOSTS", len(machines), "nodes", len(machines))
