"""The placement of a process in its job, and its variables."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Facts, Rank

Launcher = Literal[
    "torchrun", "slurm", "openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod", "deepspeed", "ray", "azureml",
    "sagemaker", "kubernetes", "distcheck", "by hand", "none",
]  # fmt: skip
_LARGEST_WORLD = 1 << 20
NOBODY_TO_MEET = "the placement is not valid, so there was no roll call"
"""Why what needs other processes was not looked at where `Placement.can_meet` is not true."""


class Placement(Facts, frozen=True):
    """A process's place in the job and its launcher; None for values unset or not a number."""

    rank: Rank | None = None
    world_size: Rank | None = None
    local_rank: Rank | None = None
    local_world_size: Rank | None = None
    node_rank: Rank | None = None
    master_addr: str | None = None
    master_port: Rank | None = None
    launcher: Launcher = "none"
    by_options: bool = False
    """True if rank and world size came from --rank and --world-size."""
    master_derived: bool = False
    """True if no master was set and distcheck derived one that all ranks can derive."""

    @property
    def can_meet(self) -> bool:
        """Whether this rank and the master are known.

        A rank beyond the world size may join the roll call; the rules then report it.
        """
        return (
            self.rank is not None
            and self.rank >= 0
            and self.world_size is not None
            and bool(self.master_addr)
            and self.master_port is not None
            and 1 <= self.master_port <= 65535
        )


class Variables(Facts, frozen=True):
    """Allow-listed variables of a process, secrets redacted."""

    values: dict[str, str]
