"""Who this process is: launcher variables in, `Placement` out, one table per launcher.

torch itself reads only RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; scripts also read LOCAL_RANK
(https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization). `TABLES` lists the
variables that each launcher sets instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from distcheck.facts.placement import Launcher, Placement
from distcheck.selection.meeting_place import derived
from distcheck.selection.nodelist import tasks_per_node

RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""The variables that place a rank; ranks that distcheck starts ignore inherited ones."""


class Table(NamedTuple):
    """A launcher's variables; `marker` is set if and only if it started the process as a rank."""

    launcher: Launcher
    marker: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""
    node_rank: str = ""


# Innermost first: a torchrun inside an srun inside an mpirun decides. A Slurm batch script has SLURM_PROCID=0 but is
# not a rank; only a step has SLURM_STEP_ID (seen with Slurm 22.05). OMPI_COMM_WORLD_NODE_RANK is the rank on the
# node, not the node's rank, so it is not in the table.
TABLES = (
    Table("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    Table(
        "horovod",
        "HOROVOD_RANK",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
    ),
    Table(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Table(
        "mvapich",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    Table(
        "mvapich",
        "MVP_COMM_WORLD_RANK",
        "MVP_COMM_WORLD_RANK",
        "MVP_COMM_WORLD_SIZE",
        "MVP_COMM_WORLD_LOCAL_RANK",
        "MVP_COMM_WORLD_LOCAL_SIZE",
    ),
    Table(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "JSM_NAMESPACE_LOCAL_RANK",
        "JSM_NAMESPACE_LOCAL_SIZE",
    ),
    Table("slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
    Table("pals", "PALS_RANKID", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE", "PALS_NODEID"),
    Table("hydra", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
# The step of salloc's own shell (LaunchParameters=use_interactive_step; slurm.h: SLURM_INTERACTIVE_STEP) is not a
# rank, like a batch script.
_INTERACTIVE_STEP = ("SLURM_STEP_ID", "4294967290")


# What set torch's own variables if no table applies: the first whose mark is set beside RANK.
_MARKS: tuple[tuple[Launcher, str], ...] = (
    ("deepspeed", "CROSS_RANK"),  # deepspeed/launcher/launch.py
    ("ray", "RAY_JOB_ID"),  # in every worker process, beside what Ray Train sets in it at run time
    ("azureml", "AZUREML_RUN_ID"),
    ("sagemaker", "SM_CURRENT_HOST"),
    ("kubernetes", "JOB_COMPLETION_INDEX"),
    ("kubernetes", "PET_NODE_RANK"),
)


def integer(text: str | None) -> int | None:
    """Return the number that torch's ``int()`` would read, None if invalid or too large."""
    try:
        number = int(text) if text else None
    except ValueError:
        return None
    return number if number is None or abs(number) < 1 << 31 else None


def find_table(environ: Mapping[str, str]) -> Table | None:
    """Return the table of the launcher that started this process, None without a launcher."""
    for table in TABLES:
        value = environ.get(table.marker)
        if value and (table.marker, value) != _INTERACTIVE_STEP:
            return table
    return None


def place(environ: Mapping[str, str] = os.environ, options: Placement | None = None, mpiexec: str = "") -> Placement:
    """Return a process's placement.

    Options given by the user win, then the variables that torch reads, then the launcher's own. If the meeting place is
    not set it is derived (`mpiexec`: see `meeting_place.derived`). A wrong value stays, for the rules.
    """
    options = options or Placement()
    table = find_table(environ)

    def first(given: int | None, variable: str, launcher_variable: str) -> int | None:
        if given is not None:
            return given
        if variable in environ:
            return integer(environ[variable])
        return integer(environ.get(launcher_variable))

    rank = first(options.rank, "RANK", table.rank if table else "")
    addr = as_text(options.master_addr or environ.get("MASTER_ADDR")) or None
    port = first(options.master_port, "MASTER_PORT", "")
    lacks_addr, lacks_port = not environ.get("MASTER_ADDR"), not environ.get("MASTER_PORT")
    filled = False
    if table and (lacks_addr or lacks_port) and not (options.master_addr or options.master_port):
        own_addr, own_port = derived(table.launcher, environ, mpiexec)
        filled = (lacks_addr and bool(own_addr)) or (lacks_port and own_port is not None)
        addr = own_addr or addr if lacks_addr else addr
        port = own_port if lacks_port else port
    return Placement(
        rank=rank,
        world_size=first(options.world_size, "WORLD_SIZE", table.world_size if table else ""),
        local_rank=first(options.local_rank, "LOCAL_RANK", table.local_rank if table else ""),
        local_world_size=_local_world_size(environ, table),
        node_rank=_node_rank(environ, table),
        master_addr=addr,
        master_port=port,
        launcher=table.launcher if table else _who_set(environ, rank),
        by_options=options.rank is not None and options.world_size is not None,
        master_derived=filled,
    )


def _who_set(environ: Mapping[str, str], rank: int | None) -> Launcher:
    if rank is None:
        return "none"
    return next((name for name, mark in _MARKS if "RANK" in environ and environ.get(mark)), "by hand")


def _local_world_size(environ: Mapping[str, str], table: Table | None) -> int | None:
    if "LOCAL_WORLD_SIZE" in environ:
        return integer(environ["LOCAL_WORLD_SIZE"])
    if table is None:
        return integer(environ.get("LOCAL_SIZE")) if environ.get("CROSS_RANK") else None
    if table.launcher != "slurm":
        return integer(environ.get(table.local_world_size))
    return tasks_here(environ)


def _node_rank(environ: Mapping[str, str], table: Table | None) -> int | None:
    # Ray and AzureML set NODE_RANK; scripts that start torchrun use it for the same number.
    names = ("GROUP_RANK", table.node_rank) if table else ("GROUP_RANK", "NODE_RANK", "CROSS_RANK", "PET_NODE_RANK")
    return next((integer(environ[name]) for name in names if name in environ), None)


def tasks_here(environ: Mapping[str, str]) -> int | None:
    """Return how many tasks of its step Slurm placed on this node, None if unknown."""
    node = integer(environ.get("SLURM_NODEID"))
    tasks = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", ""))
    return tasks[node] if node is not None and 0 <= node < len(tasks) else None


def beside(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return this task's index among the launcher's tasks on its node, and their number.

    0 and 1 if unknown. Only the launcher's own variables count: LOCAL_WORLD_SIZE may be meant for ranks that a task
    will start.
    """
    table = find_table(environ)
    if table is None:
        return 0, 1
    tasks = tasks_here(environ) if table.launcher == "slurm" else integer(environ.get(table.local_world_size))
    number = integer(environ.get(table.local_rank))
    return (number, tasks) if tasks and number is not None and 0 <= number < tasks else (0, 1)


def as_text(text: str | None) -> str:
    """Return a variable's value with invalid UTF-8 replaced, so that it can be encoded."""
    return (text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def local_placements(nproc: int, master_addr: str, master_port: int) -> tuple[Placement, ...]:
    """Return placements of `nproc` ranks on this machine, as ``torchrun --standalone`` does."""
    return tuple(
        Placement(
            rank=i,
            world_size=nproc,
            local_rank=i,
            local_world_size=nproc,
            node_rank=0,
            master_addr=master_addr,
            master_port=master_port,
            launcher="distcheck",
        )
        for i in range(nproc)
    )


def rank_environment(environ: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """Return a rank's environment: the inherited one with only the placement's rank variables."""
    foreign = ("TORCHELASTIC_", "PET_")
    kept = {k: v for k, v in environ.items() if k not in RANK_VARIABLES and not k.startswith(foreign)}
    return kept | exported(placement)


def exported(placement: Placement) -> dict[str, str]:
    """Return the variables that torch and scripts read, as far as the placement has them."""
    values = {
        "RANK": placement.rank,
        "LOCAL_RANK": placement.local_rank,
        "WORLD_SIZE": placement.world_size,
        "LOCAL_WORLD_SIZE": placement.local_world_size,
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": placement.master_port,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
