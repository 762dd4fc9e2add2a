"""The ranks' NCCL logs: which were read, which communicators cross nodes, what was set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.nccl import NcclLog
from distcheck.facts.node import NodeFacts
from distcheck.facts.pci import Nic, Pci
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import listed, named, once, unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OWN = ("InfiniBand", "Ethernet")
"""Link layers that NCCL's own IB transport supports; AWS EFA reports Unspecified and needs a plugin."""


class Logged(msgspec.Struct, frozen=True, gc=False):
    """A rank whose NCCL log was read."""

    rank: RankFacts
    node: NodeFacts
    log: NcclLog


@once
def logged(job: Job) -> tuple[Logged, ...]:
    """Return the ranks whose NCCL log was read."""
    return tuple(
        [
            Logged(rank, node, run.nccl)
            for rank, _, node in job.placed
            if (run := rank.run) is not None and isinstance(run.nccl, NcclLog)
        ]
    )


def unread_logs(job: Job) -> Iterator[NotChecked]:
    """Yield the ranks whose log could not be read; this never fails a run."""
    silent = [(rank, rank.run.nccl.reason) for rank in job.ranks if rank.run and isinstance(rank.run.nccl, Missing)]
    yield from unread(job, silent)


@once
def crossing(job: Job) -> list[Logged]:
    """Return the ranks whose communicator reaches ranks on other nodes, and not by NVLink."""
    if len(nodes_in_use(job)) < 2:
        return []
    whole = {None, job.world_size}
    return [t for t in logged(job) if t.log.ranks in whole and not (t.log.mnnvl and t.log.nodes == 1)]


@once
def nodes_in_use(job: Job) -> list[NodeFacts]:
    """Return the nodes on which there are ranks."""
    return [node for node in job.nodes if job.ranks_on(node)]


def setting(t: Logged, name: str) -> str:
    """Return the value of a variable as NCCL read it, '' when it is not set."""
    return t.log.settings.get(name) or t.rank.environment.get(name, "")


def switched_on(t: Logged, name: str) -> bool:
    """Return whether a variable that NCCL reads as a number is set and not 0."""
    try:
        return int(setting(t, name) or "0", 0) != 0
    except ValueError:
        return False


def settings_shown(ranks: Sequence[Logged], *names: str) -> dict[str, str]:
    """Return which of these variables are set on any of the ranks, as evidence."""
    return {name: value for name in names for value in [next((setting(t, name) for t in ranks), "")] if value}


def adapters(node: NodeFacts) -> list[Nic]:
    """Return a node's active adapters for NCCL's own IB transport: InfiniBand and RoCE."""
    return [nic for nic in _up(node) if nic.link_layer in _OWN]


def plugin_adapters(node: NodeFacts) -> list[Nic]:
    """Return a node's active adapters that NCCL can use only through a plugin, such as EFA."""
    return [nic for nic in _up(node) if nic.link_layer and nic.link_layer not in _OWN]


def _up(node: NodeFacts) -> list[Nic]:
    return [nic for nic in node.pci.nics if nic.kind == "ib" and nic.active] if isinstance(node.pci, Pci) else []


def adapter_names(nics: Sequence[Nic]) -> str:
    """Return the names of adapters: mlx5_0 (InfiniBand, 400 Gb/s) and mlx5_1 (…)."""
    return listed(
        [
            f"{nic.name} ({nic.link_layer}{'' if nic.rate_Gbps is None else f', {nic.rate_Gbps:g} Gb/s'})"
            for nic in nics
        ],
        most=2,
    )


def who(job: Job, ranks: Sequence[Logged]) -> str:
    """Return the names of ranks and their nodes."""
    return named(job, [t.rank for t in ranks])
