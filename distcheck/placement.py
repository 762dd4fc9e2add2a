"""Who this process is: launcher variables in, `Placement` out, by one table per launcher.

torch itself reads only RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; scripts read LOCAL_RANK beside them
(https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization). What a launcher sets in
their stead stands in `TABLES`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from distcheck.facts import Launcher, Placement

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
"""The variables that place a rank: ignored, when inherited, by the ranks that distcheck starts."""


class Table(NamedTuple):
    """Which variables of a launcher say what; `marker` is there if, and only if, it started the process as a rank."""

    launcher: Launcher
    marker: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""
    node_rank: str = ""


# Nearest first: a torchrun inside an srun inside an mpirun decides. A Slurm batch script has SLURM_PROCID=0 without
# being a rank; only a step has SLURM_STEP_ID (seen with Slurm 22.05). OMPI_COMM_WORLD_NODE_RANK is the rank on the
# node and not the node's rank, so it is not in the table.
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
    Table("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
    Table("slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
    Table("pals", "PALS_RANKID", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE", "PALS_NODEID"),
    Table("hydra", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
# The step of salloc's own shell (LaunchParameters=use_interactive_step; slurm.h: SLURM_INTERACTIVE_STEP): as little a
# rank as a batch script is.
_INTERACTIVE_STEP = ("SLURM_STEP_ID", "4294967290")


def integer(text: str | None) -> int | None:
    """Return the number that torch's ``int()`` would read, None when it would not or when no job is so large."""
    try:
        number = int(text) if text else None
    except ValueError:
        return None
    return number if number is None or abs(number) < 1 << 31 else None


def find_table(environ: Mapping[str, str]) -> Table | None:
    """Return the table of the launcher that started this process, None when no launcher did."""
    marks = ((t, environ.get(t.marker)) for t in TABLES)
    return next((t for t, value in marks if value and (t.marker, value) != _INTERACTIVE_STEP), None)


def place(environ: Mapping[str, str] = os.environ, options: Placement | None = None) -> Placement:
    """Read a process's placement.

    What the user gave by hand (`options`) wins, then the variables that torch reads, then the launcher's own.
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
    launcher: Launcher = table.launcher if table else "none" if rank is None else "by hand"
    return Placement(
        rank=rank,
        world_size=first(options.world_size, "WORLD_SIZE", table.world_size if table else ""),
        local_rank=first(options.local_rank, "LOCAL_RANK", table.local_rank if table else ""),
        local_world_size=first(None, "LOCAL_WORLD_SIZE", table.local_world_size if table else ""),
        node_rank=first(None, "GROUP_RANK", table.node_rank if table else ""),
        master_addr=_travels(options.master_addr or environ.get("MASTER_ADDR")) or None,
        master_port=first(options.master_port, "MASTER_PORT", ""),
        launcher=launcher,
        by_options=options.rank is not None and options.world_size is not None,
    )


def _travels(text: str | None) -> str:
    """Return text in which bytes that are no UTF-8 are replaced, so that it can be encoded."""
    return (text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def local_placements(nproc: int, master_addr: str, master_port: int) -> tuple[Placement, ...]:
    """Return the placements of `nproc` ranks on this machine, as ``torchrun --standalone`` would number them."""
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
    """Return a rank's environment: the inherited one without foreign rank variables, with the placement's own."""
    foreign = ("TORCHELASTIC_", "PET_")
    kept = {k: v for k, v in environ.items() if k not in RANK_VARIABLES and not k.startswith(foreign)}
    return kept | exported(placement)


def exported(placement: Placement) -> dict[str, str]:
    """Return the variables that torch and scripts read, as far as the placement knows them."""
    values = {
        "RANK": placement.rank,
        "LOCAL_RANK": placement.local_rank,
        "WORLD_SIZE": placement.world_size,
        "LOCAL_WORLD_SIZE": placement.local_world_size,
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": placement.master_port,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
