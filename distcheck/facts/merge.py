"""GPUs as the processes of one node see them: together the node's, and of each process what it is kept to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from distcheck.facts import Gpu, GpuLoads, Gpus, Missing, NodeFacts, ProcessFacts
from distcheck.facts.gpu import usable_name


def combine(
    known: Iterable[tuple[NodeFacts, ProcessFacts]],
) -> tuple[dict[str, NodeFacts], tuple[ProcessFacts, ...]]:
    """Return one node for all of its processes, by its key, and the processes.

    Mostly all see the same GPUs, and one of them has read their condition for all. Where each is kept to its own, by
    a device cgroup of Slurm's or in containers, the node has all of them, and each process its own.
    """
    pairs = list(known)
    told: dict[str, list[NodeFacts]] = {}
    for node, _ in pairs:
        told.setdefault(node.key, []).append(node)
    nodes = {key: _combined(views) for key, views in told.items()}
    return nodes, tuple(_with_own(process, node, nodes[node.key]) for node, process in pairs)


def with_loads(node: NodeFacts, loads: GpuLoads | Missing) -> NodeFacts:
    """Return a node whose GPUs were watched while the collectives ran."""
    if not isinstance(node.gpus, Gpus):
        return node
    if isinstance(loads, Missing):
        return replace(node, gpus=replace(node.gpus, unwatched=loads.reason))

    def watched(gpu: Gpu) -> Gpu:
        uuid = gpu.uuid if isinstance(gpu.uuid, str) else ""
        return replace(gpu, load=loads.gpus.get(uuid), lost=gpu.lost or loads.lost.get(uuid, ""))

    xids = loads.xids if isinstance(loads.xids, tuple) else node.xids
    return replace(node, xids=xids, gpus=replace(node.gpus, devices=tuple(map(watched, node.gpus.devices))))


def _combined(told: Sequence[NodeFacts]) -> NodeFacts:
    first = told[0]
    views = [node.gpus for node in told if isinstance(node.gpus, Gpus)]
    if not isinstance(first.gpus, Gpus) or not views:
        return first
    alike = len({_identity(view.devices) for view in views}) == 1
    whole = max(views, key=_fullness) if alike else _joined(views)
    return replace(first, gpus=replace(whole, unread=_unread(whole, told, alike=alike)))


def _joined(views: Sequence[Gpus]) -> Gpus:
    fullest: dict[object, Gpu] = {}
    for view in sorted(views, key=_fullness, reverse=True):
        for gpu in view.devices:
            fullest.setdefault(_name(gpu), gpu)
    # On a whole node NVML counts by address; what two GPUs are to each other is known by another count.
    devices = sorted(fullest.values(), key=lambda gpu: gpu.pci if isinstance(gpu.pci, str) else "~")
    numbered = tuple(replace(gpu, index=index) for index, gpu in enumerate(devices))
    return replace(max(views, key=_fullness), devices=numbered, peer_access=())


def _unread(whole: Gpus, told: Sequence[NodeFacts], *, alike: bool) -> str:
    """Return why not all of a node's GPUs were read; empty where they were, and where nobody gave a reason.

    A process to which NVML said nothing may have had a GPU that no other sees.
    """
    silent = [node.gpus.reason for node in told if isinstance(node.gpus, Missing)]
    own = not alike or len(whole.devices) < len(told)
    unknown = any(gpu.health is None and usable_name(gpu) for gpu in whole.devices)
    if not unknown and not (silent and own):
        return whole.unread
    halted = [node.gpus.unread for node in told if isinstance(node.gpus, Gpus) and node.gpus.unread]
    return next(iter([*halted, *silent]), "")


def _with_own(process: ProcessFacts, told: NodeFacts, node: NodeFacts) -> ProcessFacts:
    if not isinstance(told.gpus, Gpus) or not isinstance(node.gpus, Gpus):
        return process
    if _identity(told.gpus.devices) == _identity(node.gpus.devices):
        return process
    own = replace(
        told.gpus, devices=tuple(replace(gpu, health=None, load=None) for gpu in told.gpus.devices), peer_access=()
    )
    return replace(process, gpus=own)


def _fullness(view: Gpus) -> tuple[int, bool]:
    """Rank views by how much they tell of the GPUs' condition."""
    return sum(gpu.health is not None for gpu in view.devices), not view.unread


def _identity(devices: Iterable[Gpu]) -> tuple[object, ...]:
    return tuple(map(_name, devices))


def _name(gpu: Gpu) -> object:
    """Return what tells a GPU from others of its node; of one that says nothing of itself its number alone."""
    return gpu.uuid if isinstance(gpu.uuid, str) else gpu.pci if isinstance(gpu.pci, str) else gpu.index
