"""Merges what the processes of a node see of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, GpuLoads, Gpus, usable_name
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import ProcessFacts


def combine(
    known: Iterable[tuple[NodeFacts, ProcessFacts]],
) -> tuple[dict[str, NodeFacts], tuple[ProcessFacts, ...]]:
    """Return one node for all of its processes, by key, and the processes.

    Usually all processes see the same GPUs, and one of them has read their health. If a Slurm device cgroup or a
    container limits each process to its own GPUs, the node gets all of them, and each process its own.
    """
    pairs = list(known)
    by_key: dict[str, list[NodeFacts]] = {}
    for node, _ in pairs:
        by_key.setdefault(node.key, []).append(node)
    nodes = {key: _combined(views) for key, views in by_key.items()}
    return nodes, tuple(_with_own(process, node, nodes[node.key]) for node, process in pairs)


def with_loads(node: NodeFacts, loads: GpuLoads | Missing) -> NodeFacts:
    """Return a node with what its GPUs showed while the collectives ran."""
    if not isinstance(node.gpus, Gpus):
        return node
    if isinstance(loads, Missing):
        return replace(node, gpus=replace(node.gpus, unwatched=loads.reason))

    def watched(gpu: Gpu) -> Gpu:
        uuid = gpu.uuid if isinstance(gpu.uuid, str) else ""
        return replace(gpu, load=loads.gpus.get(uuid), lost=gpu.lost or loads.lost.get(uuid, ""))

    xids = loads.xids if isinstance(loads.xids, tuple) else node.xids
    errors = loads.driver_errors if isinstance(loads.driver_errors, tuple) else node.driver_errors
    return replace(
        node, xids=xids, driver_errors=errors, gpus=replace(node.gpus, devices=tuple(map(watched, node.gpus.devices)))
    )


def _combined(told: Sequence[NodeFacts]) -> NodeFacts:
    if all(node is told[0] for node in told):  # brief reports were filled with the facts of one of them
        return told[0]
    looked = next((node.storage for node in told if node.storage is not None), None)
    first = replace(told[0], storage=looked)
    views = [node.gpus for node in told if isinstance(node.gpus, Gpus)]
    if not isinstance(first.gpus, Gpus) or not views:
        return first
    alike = len(views) == 1 or len({identity(view.devices) for view in views}) == 1
    whole = max(views, key=_fullness) if alike else _joined(views)
    return replace(first, gpus=replace(whole, unread=_unread(whole, told, alike=alike)))


def _joined(views: Sequence[Gpus]) -> Gpus:
    # NVML counts the GPUs that a device cgroup hides from a process, without a name, where it shows them to others.
    named = {(len(view.devices), gpu.index) for view in views for gpu in view.devices if usable_name(gpu)}
    fullest: dict[object, Gpu] = {}
    for view in sorted(views, key=_fullness, reverse=True):
        for gpu in view.devices:
            if usable_name(gpu) or gpu.lost or (len(view.devices), gpu.index) not in named:
                fullest.setdefault(_name(gpu), gpu)
    # NVML numbers a node's GPUs by address; the views' peer access uses other numbers, so it is dropped.
    devices = sorted(fullest.values(), key=lambda gpu: (gpu.pci if isinstance(gpu.pci, str) else "~", usable_name(gpu)))
    numbered = tuple(replace(gpu, index=index) for index, gpu in enumerate(devices))
    return replace(max(views, key=_fullness), devices=numbered, peer_access=())


def _unread(whole: Gpus, told: Sequence[NodeFacts], *, alike: bool) -> str:
    """Return why some of a node's GPUs were not read; empty if all were, or without a reason.

    A process without an answer from NVML may have a GPU that no other process sees.
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
    seen, whole = told.gpus.devices, node.gpus.devices
    if seen is whole or identity(seen) == identity(whole):
        return process
    own = replace(told.gpus, devices=tuple(replace(gpu, health=None, load=None) for gpu in seen), peer_access=())
    return replace(process, gpus=own)


def _fullness(view: Gpus) -> tuple[int, bool]:
    """Return a sort key: how much a view has of the GPUs' health."""
    return sum(gpu.health is not None for gpu in view.devices), not view.unread


def identity(devices: Iterable[Gpu]) -> tuple[object, ...]:
    """Return what tells whether two processes see the same GPUs."""
    return tuple(map(_name, devices))


def _name(gpu: Gpu) -> object:
    """Return what identifies a GPU on its node: its UUID, else its address, else its index."""
    return gpu.uuid if isinstance(gpu.uuid, str) else gpu.pci if isinstance(gpu.pci, str) else gpu.index
