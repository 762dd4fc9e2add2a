"""Which nodes NCCL takes for one host, and which of them are certainly different machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.wording import grouped
from distcheck.selection.nccl_settings import setting_of

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts

HOSTID = "NCCL_HOSTID"


class Host(NamedTuple):
    """What NCCL identifies a host by: src/misc/utils.cc (getHostHash)."""

    chosen: bool
    """Whether `name` is NCCL_HOSTID, from the environment or a file, and not the host name."""
    name: str
    boot_id: str
    """'' beside NCCL_HOSTID and where it is unknown."""


def nccl_hosts(job: Job) -> dict[Host, list[NodeFacts]]:
    """Return the nodes by the hosts that NCCL takes them for; a node may be several."""
    by_setting = ranks_by(job, lambda rank: setting_of(job, rank, HOSTID))
    own = {id(rank): setting.value for setting, ranks in by_setting.items() for rank in ranks}
    found: dict[Host, list[NodeFacts]] = {}
    for node in job.nodes:
        boot = "" if isinstance(node.boot_id, Missing) else node.boot_id
        names = {own.get(id(rank)) for rank in job.ranks_on(node)} if own else set()
        for name in names or {None}:
            host = Host(False, node.hostname, boot) if name is None else Host(True, name, "")  # noqa: FBT003
            found.setdefault(host, []).append(node)
    return found


def machines(nodes: list[NodeFacts]) -> list[NodeFacts]:
    """Return one node of each machine that certainly differs, by boot id or hardware id."""
    by_boot = grouped(nodes, lambda node: node.boot_id)
    known = not any(isinstance(boot, Missing) for boot in by_boot)  # nodes with different boot ids differ
    found: list[NodeFacts] = []
    for alike in by_boot.values() if known else [nodes]:
        kept: list[NodeFacts] = []
        for node in alike:
            if all(_different(node, other) for other in kept):
                kept.append(node)
        found += kept
    return found


def _different(one: NodeFacts, other: NodeFacts) -> bool:
    boots = {one.boot_id, other.boot_id}
    if not any(isinstance(b, Missing) for b in boots) and len(boots) > 1:
        return True
    ids = [n.network.machine_id if n.network else Missing(reason="not looked at") for n in (one, other)]
    return not any(isinstance(i, Missing) for i in ids) and ids[0] != ids[1]
