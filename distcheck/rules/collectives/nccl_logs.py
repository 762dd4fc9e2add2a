"""What the ranks' NCCL logs say together: who told, which communicators cross nodes, what was set."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts import Job, Missing, NcclLog, Nic, NodeFacts, Pci, RankFacts
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import grouped, listed, named, numbers_of, once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OWN = ("InfiniBand", "Ethernet")
"""The links over which NCCL's own IB transport works; AWS's EFA says Unspecified and needs a plugin."""


class Told(NamedTuple):
    """A rank whose log was read."""

    rank: RankFacts
    node: NodeFacts
    log: NcclLog


@once
def told(job: Job) -> tuple[Told, ...]:
    """Return the ranks whose log was read."""
    return tuple(
        Told(rank, job.node_of(rank), rank.run.nccl)
        for rank in job.ranks
        if rank.run is not None and isinstance(rank.run.nccl, NcclLog)
    )


def not_told(job: Job) -> Iterator[NotChecked]:
    """Yield whose log could not be read; it is worth having, and no run fails for want of it."""
    silent = [(rank, rank.run.nccl.reason) for rank in job.ranks if rank.run and isinstance(rank.run.nccl, Missing)]
    for reason, group in grouped(silent, lambda item: item[1]).items():
        ranks = [rank for rank, _ in group]
        nodes = tuple(dict.fromkeys(job.node_of(rank).name for rank in ranks))
        yield NotChecked(reason=reason, ranks=numbers_of(ranks), nodes=nodes, required=False)


def crossing(job: Job) -> list[Told]:
    """Return the ranks whose communicator reaches ranks on other nodes, and not by NVLink."""
    if len(nodes_in_use(job)) < 2:
        return []
    return [t for t in told(job) if t.log.ranks in {None, job.world_size} and not (t.log.mnnvl and t.log.nodes == 1)]


def nodes_in_use(job: Job) -> list[NodeFacts]:
    """Return the nodes on which there are ranks."""
    return [node for node in job.nodes if job.ranks_on(node)]


def setting(t: Told, name: str) -> str:
    """Return the value of a variable as NCCL took it, '' when it is not set."""
    return t.log.settings.get(name) or t.rank.environment.get(name, "")


def switched_on(t: Told, name: str) -> bool:
    """Tell whether a variable that is read as a number is set and not 0."""
    try:
        return int(setting(t, name) or "0", 0) != 0
    except ValueError:
        return False


def settings_shown(ranks: Sequence[Told], *names: str) -> dict[str, str]:
    """Return which of these variables are set for one of the ranks, as evidence."""
    return {name: value for name in names for value in [next((setting(t, name) for t in ranks), "")] if value}


def adapters(node: NodeFacts) -> list[Nic]:
    """Return a node's adapters that are up and that NCCL's own IB transport can use: InfiniBand and RoCE."""
    return [nic for nic in _up(node) if nic.link_layer in _OWN]


def plugin_adapters(node: NodeFacts) -> list[Nic]:
    """Return a node's adapters that are up and that NCCL can use through a plugin only, as AWS's EFA."""
    return [nic for nic in _up(node) if nic.link_layer and nic.link_layer not in _OWN]


def _up(node: NodeFacts) -> list[Nic]:
    return [nic for nic in node.pci.nics if nic.kind == "ib" and nic.active] if isinstance(node.pci, Pci) else []


def adapter_names(nics: Sequence[Nic]) -> str:
    """Name adapters: mlx5_0 (InfiniBand, 400 Gb/s) and mlx5_1 (…)."""
    return listed(
        [
            f"{nic.name} ({nic.link_layer}{'' if nic.rate_Gbps is None else f', {nic.rate_Gbps:g} Gb/s'})"
            for nic in nics
        ],
        most=2,
    )


def who(job: Job, ranks: Sequence[Told]) -> str:
    """Name ranks and their nodes."""
    return named(job, [t.rank for t in ranks])
