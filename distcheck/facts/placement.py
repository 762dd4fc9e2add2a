"""Who a process is in its job, and the variables that say so."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Facts, Rank

Launcher = Literal[
    "torchrun", "slurm", "openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod", "deepspeed", "ray", "azureml",
    "sagemaker", "kubernetes", "distcheck", "by hand", "none",
]  # fmt: skip
_LARGEST_WORLD = 1 << 20


class Placement(Facts, frozen=True):
    """Who a process is in the job, and which launcher said so; None where nobody said it or it was no number."""

    rank: Rank | None = None
    world_size: Rank | None = None
    local_rank: Rank | None = None
    local_world_size: Rank | None = None
    node_rank: Rank | None = None
    master_addr: str | None = None
    master_port: Rank | None = None
    launcher: Launcher = "none"
    by_options: bool = False
    """True when rank and world size came from --rank and --world-size."""
    master_derived: bool = False
    """True when nobody said where to meet, and distcheck took what all ranks can know."""

    @property
    def can_meet(self) -> bool:
        """Whether it is known where the ranks meet and who this one is.

        A rank beyond the world size may come: the others will tell what is wrong with it.
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
