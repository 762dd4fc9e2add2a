"""What a running job of a node is made of."""

from __future__ import annotations

from typing import NamedTuple

from distcheck.facts.hang import HowNumbered
from distcheck.probe.hang.processes import ProcessTable

_THREADS = ("gloo_", "pt_gloo", "pt_nccl", "pt_tcpstore", "NCCL")
"""How the names begin of threads that torch, Gloo and NCCL start for a process group."""


class Member(NamedTuple):
    """A process that is a rank."""

    pid: int
    rank: int | None
    local_rank: int | None
    numbered: HowNumbered
    meets: str = ""
    """Its MASTER_ADDR and MASTER_PORT, where those of the ranks differ."""


class Running(NamedTuple):
    """A job on this node."""

    name: str
    world_size: int | None
    ranks_per_node: int | None
    local: bool
    launcher: str
    members: tuple[Member, ...]
    ended: tuple[int, ...]
    """Zombies."""


def communicates(table: ProcessTable, pid: int) -> bool:
    """Return whether a process has threads of a process group or of its store, or a meeting place in its variables."""
    named = table.environment(pid) or {}
    return "MASTER_PORT" in named or any(name.startswith(_THREADS) for name in table.threads(pid))
