"""How distcheck is started in front of a job, by what starts the job: for --help, `explain` and the README."""

from __future__ import annotations

import re
from textwrap import indent
from typing import NamedTuple


class GateLine(NamedTuple):
    """What starts a job, and the gate in front of it."""

    launcher: str
    command: str
    note: str = ""
    """What to know of it, in a line or two."""


STARTS = (
    GateLine(
        "as typed on each node (torchrun, accelerate, deepspeed, vllm, …)",
        "distcheck gate -- torchrun --nnodes 2 --node-rank 1 --master-addr n1 t.py",
        "The gate reads from the command which ranks it will start.",
    ),
    GateLine(
        "inside torchrun",
        "torchrun … --no-python distcheck gate -- python train.py",
        "-m distcheck does the same. Without either, torchrun takes distcheck for a\n"
        "Python file and fails: can't open file '…/distcheck'.",
    ),
    GateLine("srun (Slurm)", "srun --ntasks-per-node 8 distcheck gate --export -- python train.py"),
    GateLine(
        "sbatch, salloc (Slurm)",
        "distcheck gate --nproc 8 && srun python train.py",
        "The gate starts its own srun, 8 ranks per node.",
    ),
    GateLine("mpirun, mpiexec, horovodrun (MPI)", "mpirun -np 16 distcheck gate --export -- python train.py"),
    GateLine("ssh", "distcheck gate --hosts 'node[1-4]' --nproc 8 -- ./launch.sh"),
    GateLine("Kubernetes", "distcheck gate", "In an init container: docs/schedulers/kubernetes.md."),
    GateLine("by hand, in a shell each", "distcheck gate --rank 1 --world-size 4 --master-addr n1 --master-port 29500"),
)


def starts_of(words: str) -> tuple[GateLine, ...]:
    """Return how distcheck is started with the launchers of this name."""
    wanted = words.lower()
    return tuple(start for start in STARTS if wanted in re.findall(r"\w+", start.launcher.lower()))


def described(starts: tuple[GateLine, ...] = STARTS) -> str:
    """Return lines for a terminal: each launcher, and below it the command and what to know of it."""
    return "\n".join(
        f"{start.launcher}:\n" + indent("\n".join(filter(None, (start.command, start.note))), "  ") for start in starts
    )
