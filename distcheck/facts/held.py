"""What other processes of a node hold of what a job's debugging aids use: ports, pipes and files of dumps."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Facts, Missing, Rank
from distcheck.facts.network import Bind, PortOwner

RAS, SERVER = "NCCL_RAS_ADDR", "start_debug_server"
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


class HeldFile(Facts, frozen=True):
    """A file that a rank would make or write, and that is another process's."""

    rank: Rank
    variable: str
    """Which variable begins its path."""
    path: str
    why: Literal["read", "foreign", "shared"]
    """read: a process has the pipe open; foreign: another user's, and it cannot be replaced; shared: a process of
    another job writes it too."""
    user: str = ""
    """Its owner, if it is there."""
    process: PortOwner | Missing | None = None
    """The process of the other job, if it is known."""


class Held(Facts, frozen=True):
    """What is held of what one process's ranks would use."""

    ports: dict[str, Bind] = {}
    """By what uses it: `RAS`, or `SERVER` in COMMAND's script."""
    files: tuple[HeldFile, ...] = ()
