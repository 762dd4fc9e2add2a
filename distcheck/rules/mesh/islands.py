"""The islands on which the ranks of a job lie, and the groups of its mesh on them.

An island is where ranks exchange data without the network between nodes: a node, or an NVLink domain of several nodes
(as in a GB200 NVL72), which NVML names by clusterUuid and cliqueId.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.gpu import Fabric, Gpus
from distcheck.rules.gpu.nodes import nvidia_nodes
from distcheck.rules.job.kinds import kinds
from distcheck.rules.job.mesh import in_order, mesh_of
from distcheck.rules.wording import once
from distcheck.selection.nccl_settings import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.mesh import Mesh
    from distcheck.facts.node import NodeFacts

_NVL72 = ("GB200", "GB300")
"""Models of GPUs whose NVLink domain has 72 of them (https://www.nvidia.com/en-us/data-center/gb200-nvl72/)."""


class Islands(NamedTuple):
    """Where the ranks are; nodes and islands are numbered in the order of their first rank."""

    of: list[int]
    """The island of each rank, in rank order."""
    node: list[int]
    """The node of each rank, in rank order."""
    node_names: list[str]
    names: list[str]
    """The names of the islands: node1, NVLink domain 3f2a…/1."""
    kind: str
    """node, or NVLink domain if an island has several nodes."""
    room: int
    """The most ranks that an island can have, as far as is known."""
    unread: str = ""
    """Why the NVLink domains are unknown, so that each node counts as an island; empty if they are known."""


@once
def islands(job: Job) -> Islands:
    """Return the islands of the ranks."""
    domains, unread = _domains(job)
    nodes: dict[str, int] = {}
    keys: dict[tuple[str, int] | str, int] = {}
    names, on_node, on_island = [], [], []
    for rank in in_order(job):
        key = job.process_of(rank).node
        domain = domains.get(key)
        if (domain or key) not in keys:
            names.append(f"NVLink domain {domain[0][:8]}/{domain[1]}" if domain else job.node_names[key])
        on_node.append(nodes.setdefault(key, len(nodes)))
        on_island.append(keys.setdefault(domain or key, len(keys)))
    large = bool(domains) and any(isinstance(key, tuple) for key in keys)
    room = max(Counter(on_island).values(), default=0)
    if large and _of_nvl72(job):
        room = max(room, 72)
    return Islands(
        on_island,
        on_node,
        [job.node_names[key] for key in nodes],
        names,
        "NVLink domain" if large else "node",
        room,
        unread,
    )


@once
def _of_nvl72(job: Job) -> bool:
    """Return whether the job has GPUs of a rack whose 72 GPUs share an NVLink domain."""
    devices = (gpu for node in job.nodes if isinstance(node.gpus, Gpus) for gpu in node.gpus.devices)
    names = {gpu.name for gpu in devices if isinstance(gpu.name, str)}
    return any(word in name for name in names for word in _NVL72)


def _domains(job: Job) -> tuple[dict[str, tuple[str, int]], str]:
    """Return the NVLink domain of each node in one that can have several nodes, and why others are unknown."""
    if all(number_of(job, kind.first, "NCCL_MNNVL_ENABLE", 2) == 0 for kind in kinds(job)):
        return {}, ""  # NCCL then uses no NVLink between nodes
    found: dict[str, tuple[str, int]] = {}
    unread = ""
    for node in nvidia_nodes(job):
        domains = _domains_of(node)
        if domains is None:
            unread = f"{job.asked.command} did not read the NVLink domains of the nodes"
        elif len(domains) == 1:
            (found[node.key],) = domains
    shared = Counter(found.values())
    return {key: domain for key, domain in found.items() if shared[domain] > 1 or _of_nvl72(job)}, unread


def _domains_of(node: NodeFacts) -> set[tuple[str, int]] | None:
    """Return the NVLink domains of a node's GPUs; None if they were not read."""
    if not isinstance(node.gpus, Gpus):
        return None
    found = set()
    for gpu in node.gpus.devices:
        if gpu.lost:
            continue
        if gpu.health is None:
            return None
        if isinstance(gpu.health.fabric, Fabric) and gpu.health.fabric.cluster:
            found.add((gpu.health.fabric.cluster, gpu.health.fabric.clique))
    return found


def badly_placed(mesh: Mesh, name: str, of: Sequence[int], room: int) -> list[range]:
    """Return the groups of a dimension that span more islands than they must, or lie on them unevenly.

    Args:
        mesh: with all sizes.
        name: the dimension.
        of: the island of each rank, in rank order.
        room: how many ranks an island can have.
    """
    least = -(-mesh.size(name) // room)
    found = []
    for group in mesh.groups(name):
        here = of[group.start : group.stop : group.step]
        distinct = len(set(here))
        if distinct > least or (distinct > 1 and len(set(Counter(here).values())) > 1):
            found.append(group)
    return found


class Spanned(NamedTuple):
    """How many nodes and islands the groups of a dimension span: least and most."""

    name: str
    groups: int
    example: range
    nodes: tuple[int, int]
    islands: tuple[int, int] | None
    """None where the islands are the nodes."""


@once
def spans(job: Job) -> list[Spanned]:
    """Return how the groups of each dimension lie; empty without a mesh, or if not every rank joined."""
    mesh = mesh_of(job)
    if mesh is None or not in_order(job):
        return []
    where, found = islands(job), []
    for name in mesh.names:
        groups = mesh.groups(name)
        over = _least_and_most(groups, where.of) if where.kind != "node" else None
        found.append(Spanned(name, len(groups), groups[0], _least_and_most(groups, where.node), over))
    return found


def _least_and_most(groups: list[range], of: Sequence[int]) -> tuple[int, int]:
    numbers = {len(set(of[group.start : group.stop : group.step])) for group in groups}
    return min(numbers), max(numbers)
