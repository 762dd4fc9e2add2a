"""Which ranks take a whole GPU, which a MIG device, and whether the job mixes both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.gpu import usable_name
from distcheck.rules.gpu.assigned import Take, takes
from distcheck.rules.gpu.nodes import seen, values
from distcheck.rules.wording import majority, once
from distcheck.selection.visible_devices import device_of, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts.gpu import Gpu
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts


@once
def taken(job: Job) -> tuple[Take, ...]:
    """Return what each rank takes, for the ranks whose GPU is known; nothing if no rank takes a MIG device."""
    found = tuple(takes(job))
    return found if any(take.sliced for take in found) else ()


class Undivided(NamedTuple):
    """A node with GPUs in MIG mode without MIG devices, and the ranks that need these GPUs."""

    node: NodeFacts
    gpus: tuple[Gpu, ...]
    without: tuple[RankFacts, ...]
    """Ranks that get no GPU because of it; none for `distcheck node`."""
    usable: int
    """GPUs of the node that CUDA shows."""
    total: int
    """GPUs that CUDA would show without MIG mode."""


@once
def undivided(job: Job) -> tuple[Undivided, ...]:
    """Return the nodes where ranks or `distcheck node --gpus` lack GPUs in empty MIG mode.

    CUDA shows MIG devices, and nothing else of a GPU in MIG mode: it skips the GPU and renumbers the others.

    Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide (CUDA Device Enumeration)
    """
    found = []
    for node, devices in seen(job):
        empty = [gpu for gpu in devices if gpu.mig is True and _is_empty(gpu)]
        if not empty or any(gpu.lost for gpu in devices):
            continue
        usable, total = (len(visible(None, gpus).uuids) for gpus in (devices, _whole(devices)))
        without: dict[int, RankFacts] = {}
        needed: set[int] = set()
        for ranks, _, value, fault, own, expected in values(job, node):
            if fault or not any(_is_empty(gpu) for gpu in own):
                continue
            meant = visible(value, _whole(own)).uuids
            for rank in ranks:
                shown = rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else expected.uuids
                local = rank.placement.local_rank
                beyond = local is not None and len(shown) <= local < len(meant)  # the one GPU is another rank's
                if not beyond and (shown or device_of(local, meant) is None):
                    continue
                without[id(rank)] = rank
                needed |= {gpu.index for gpu in own if _is_empty(gpu) and usable_name(gpu) in meant}
        if "node" in job.asked.looks:
            without, needed = {}, {gpu.index for gpu in empty if usable < (job.asked.gpus or 1) <= total}
        if needed:
            gpus = tuple(gpu for gpu in empty if gpu.index in needed)
            found.append(Undivided(node, gpus, tuple(without.values()), usable, total))
    return tuple(found)


def _is_empty(gpu: Gpu) -> bool:
    return gpu.mig is True and not gpu.mig_uuids


def _whole(devices: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return tuple(msgspec.structs.replace(gpu, mig=False) if _is_empty(gpu) else gpu for gpu in devices)


class Mixture(NamedTuple):
    """A job in which some ranks take MIG devices and some whole GPUs."""

    odd: tuple[Take, ...]
    """What differs from the majority of nodes; everything without a majority."""
    usual: bool
    """Whether there is a majority."""
    chosen: bool
    """Whether CUDA_VISIBLE_DEVICES of the odd ranks names what they take."""


@once
def mixture(job: Job) -> Mixture | None:
    """Return how the job mixes MIG devices and whole GPUs, None if it does not."""
    sides = {sliced: [t for t in taken(job) if t.sliced is sliced] for sliced in (True, False)}
    if not all(sides.values()):
        return None
    nodes = {sliced: {t.node.key for t in side} for sliced, side in sides.items()}
    everywhere = nodes[True] | nodes[False]
    voters = nodes if len(everywhere) > 1 else sides
    usual = majority(voters, of=len(everywhere) if len(everywhere) > 1 else len(taken(job)))
    odd = taken(job) if usual is None else tuple(sides[not usual])
    chosen = any(t.rank.environment.get("CUDA_VISIBLE_DEVICES", "").startswith(("MIG-", "GPU-")) for t in odd)
    return Mixture(odd, usual is not None, chosen)


def by_mixture(job: Job, ranks: Iterable[RankFacts]) -> bool:
    """Return whether ranks share a MIG device because only their nodes are in MIG mode."""
    mixed = mixture(job)
    if mixed is None or mixed.chosen:
        return False
    odd = {id(t.rank) for t in mixed.odd if t.sliced}
    return all(id(rank) in odd for rank in ranks)
