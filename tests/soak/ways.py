"""Every way in which people start distcheck, on nodes 1 and 2 of a cluster on which nothing is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.inside import MASTER, mapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.cluster import Cluster
    from cluster.running import Running

    Start = Callable[[Cluster, tuple[str, ...]], list[Running]]

_NODES = ("node1", "node2")
_TORCHRUN = str(Path(sys.prefix, "bin", "torchrun"))
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_NAMES = ("MASTER_ADDR", "MASTER_PORT")


def _local(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    return [cluster.start("node1", "distcheck", *command, "--nproc", "3")]


def _agents(cluster: Cluster, command: tuple[str, ...], *options: str, numbered: bool) -> list[Running]:
    agent = (_TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *options)
    return [
        cluster.start(
            node,
            *agent,
            *(("--node-rank", str(number)) if numbered else ()),
            *("--no-python", "distcheck", *command),
            env={"OMP_NUM_THREADS": "1"},
        )
        for number, node in enumerate(_NODES)
    ]


def _torchrun(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    return _agents(cluster, command, "--master-addr", "node1", "--master-port", "29555", numbered=True)


def _torchrun_c10d(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    options = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29556", "--rdzv-id", "soak")
    return _agents(cluster, command, *options, numbered=False)


def _srun(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    tasks = mapped("SLURM_", "PROCID NTASKS LOCALID", "distcheck", *command)
    return [cluster.start("node1", "srun", "--nodes=2", "--ntasks-per-node=1", *tasks, env=MASTER)]


def _salloc(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    return [cluster.start("node1", "salloc", "--nodes=2", "--ntasks-per-node=2", "distcheck", *command)]


def _openmpi(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    carried = [word for name in _NAMES for word in ("-x", f"{name}={MASTER[name]}")]
    ranks = mapped("OMPI_COMM_WORLD_", "RANK SIZE LOCAL_RANK", "distcheck", *command)
    return [cluster.start("node1", "mpirun", "--host", "node1:1,node2:1", *carried, *ranks, env=_AS_ROOT)]


def _mpich(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    carried = [word for name in _NAMES for word in ("-genv", name, MASTER[name])]
    ranks = mapped("", "PMI_RANK PMI_SIZE MPI_LOCALRANKID", "distcheck", *command)
    return [cluster.start("node1", "mpiexec.hydra", "-hosts", "node1,node2", "-ppn", "1", "-n", "2", *carried, *ranks)]


def _ssh(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    return [cluster.start("head", "distcheck", *command, "--hosts", "node[1-2]", "--nproc", "2")]


def _by_hand(cluster: Cluster, command: tuple[str, ...]) -> list[Running]:
    master = ("--world-size", "2", "--master-addr", "node1", "--master-port", "29500")
    return [
        cluster.start(node, "distcheck", *command, "--rank", str(rank), *master) for rank, node in enumerate(_NODES)
    ]


WAYS: dict[str, Start] = {
    "--nproc": _local,
    "torchrun": _torchrun,
    "torchrun c10d": _torchrun_c10d,
    "srun": _srun,
    "salloc": _salloc,
    "mpirun (Open MPI)": _openmpi,
    "mpiexec (MPICH)": _mpich,
    "ssh": _ssh,
    "by hand": _by_hand,
}
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("gate",),
    ("net",),
    ("bandwidth", "--time-limit", "2"),
    ("env",),
    ("gpu",),
)
"""As people give them, with the sizes that they have by themselves."""
