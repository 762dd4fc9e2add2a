"""The islands on which the ranks of a job lie, and the groups of its mesh on them.

An island is where ranks exchange data without the network between nodes: a node, or an NVLink domain of several nodes
(as in a GB200 NVL72), which NVML names by clusterUuid and cliqueId.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.gpu import Fabric, Gpus
from distcheck.rules.gpu.nodes import gpu_nodes
from distcheck.rules.job.kinds import kinds
from distcheck.rules.job.mesh import in_order, mesh_of
from distcheck.rules.wording import once
from distcheck.selection.nccl_settings import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.mesh import Mesh

_NVL72 = ("GB200", "GB300")
"""Models of GPUs whose NVLink domain has 72 of them (https://www.nvidia.com/en-us/data-center/gb200-nvl72/)."""


Domain = tuple[str, int]
"""The cluster and the clique of an NVLink domain."""


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
    keys = [job.process_of(rank).node for rank in in_order(job)]
    places = [domains.get(key, key) for key in keys]
    nodes = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    large = any(isinstance(place, tuple) for place in numbers)
    room = max(Counter(places).values(), default=0)
    return Islands(
        [numbers[place] for place in places],
        [nodes[key] for key in keys],
        [job.node_names[key] for key in nodes],
        [_name(job, place) for place in numbers],
        "NVLink domain" if large else "node",
        max(room, 72) if large and _of_nvl72(job) else room,
        unread,
    )


def _name(job: Job, place: Domain | str) -> str:
    return job.node_names[place] if isinstance(place, str) else f"NVLink domain {place[0][:8]}/{place[1]}"


@once
def _of_nvl72(job: Job) -> bool:
    """Return whether the job has GPUs of a rack whose 72 GPUs share an NVLink domain."""
    devices = (gpu for node in job.nodes if isinstance(node.gpus, Gpus) for gpu in node.gpus.devices)
    names = {gpu.name for gpu in devices if isinstance(gpu.name, str)}
    return any(word in name for name in names for word in _NVL72)


def _domains(job: Job) -> tuple[dict[str, Domain], str]:
    """Return the NVLink domain of each node in one that can have several nodes, and why others are unknown."""
    if all(number_of(job, kind.first, "NCCL_MNNVL_ENABLE", 2) == 0 for kind in kinds(job)):
        return {}, ""  # NCCL then uses no NVLink between nodes
    known: dict[str, Domain] = {}
    unread = ""
    for node in gpu_nodes(job):
        gpus = [gpu.health for gpu in node.gpus.devices if not gpu.lost] if isinstance(node.gpus, Gpus) else [None]
        if None in gpus:
            unread = f"{job.asked.command} did not read the NVLink domains of the nodes"
            continue
        fabrics = (health.fabric for health in gpus if health is not None)
        domains = {
            (fabric.cluster, fabric.clique) for fabric in fabrics if isinstance(fabric, Fabric) and fabric.cluster
        }
        if len(domains) == 1:
            (known[node.key],) = domains
    shared = Counter(known.values())
    return {key: domain for key, domain in known.items() if shared[domain] > 1 or _of_nvl72(job)}, unread


def badly_placed(mesh: Mesh, name: str, of: Sequence[int], room: int) -> list[range]:
    """Return the groups of a dimension that span more islands than they must, or lie on them unevenly.

    `of` is the island of each rank, in rank order; `room` is how many ranks an island can have.
    """
    least = -(-mesh.size(name) // room)
    bad = []
    for group in mesh.groups(name):
        shares = Counter(of[group.start : group.stop : group.step])
        if len(shares) > least or len(set(shares.values())) > 1:
            bad.append(group)
    return bad


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
    where, spanned = islands(job), []
    for name in mesh.names:
        groups = mesh.groups(name)
        over = _least_and_most(groups, where.of) if where.kind != "node" else None
        spanned.append(Spanned(name, len(groups), groups[0], _least_and_most(groups, where.node), over))
    return spanned


def _least_and_most(groups: list[range], of: Sequence[int]) -> tuple[int, int]:
    numbers = {len(set(of[group.start : group.stop : group.step])) for group in groups}
    return min(numbers), max(numbers)
