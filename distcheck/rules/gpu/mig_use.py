"""Which ranks take a whole GPU and which a MIG device of one, and what the job mixes of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.gpu import usable_name
from distcheck.rules.gpu.nodes import VARIABLE, seen, values
from distcheck.rules.wording import majority, once
from distcheck.selection.visible_devices import device_of, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts import Gpu, Job, NodeFacts, RankFacts


class Taken(NamedTuple):
    """What a rank takes: a whole GPU, or a MIG device of it."""

    rank: RankFacts
    node: NodeFacts
    gpu: Gpu
    sliced: bool


@once
def taken(job: Job) -> tuple[Taken, ...]:
    """Return what the ranks take whose GPU is known."""
    return tuple(
        Taken(rank, node, gpu, sliced=rank.gpu != gpu.uuid)
        for node, devices in seen(job)
        for rank in job.ranks_on(node)
        if rank.gpu is not None
        for gpu in devices
        if rank.gpu == gpu.uuid or rank.gpu in gpu.mig_uuids or _is_old_name(rank.gpu, gpu)
    )


def _is_old_name(name: str, gpu: Gpu) -> bool:
    """Whether a MIG device of a GPU is named as drivers before 470 named it: by the GPU's UUID."""
    return name.startswith("MIG-") and isinstance(gpu.uuid, str) and name.startswith(f"MIG-{gpu.uuid}/")


class Undivided(NamedTuple):
    """A node with GPUs in MIG mode on which no MIG device was made, and who would need them."""

    node: NodeFacts
    gpus: tuple[Gpu, ...]
    without: tuple[RankFacts, ...]
    """Ranks that are left without a GPU by it; none on a node that is looked at by itself."""
    usable: int
    """GPUs of the node that CUDA shows."""
    total: int
    """What it would show were they whole."""


@once
def undivided(job: Job) -> tuple[Undivided, ...]:
    """Return the nodes on which ranks, or `distcheck node --gpus`, lack GPUs that are in MIG mode and hold nothing.

    CUDA shows MIG devices, and of a GPU in MIG mode nothing else: it leaves the GPU out and numbers the others anew.
    Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide (CUDA Device Enumeration)
    """
    found = []
    for node, devices in seen(job):
        empty = [gpu for gpu in devices if _is_empty(gpu)]
        if not empty or any(gpu.lost for gpu in devices):
            continue
        usable, total = (len(visible(None, gpus).uuids) for gpus in (devices, _whole(devices)))
        without: dict[int, RankFacts] = {}
        needed: set[int] = set()
        for rank, value, fault, own, expected in values(job, node):
            if fault or not any(_is_empty(gpu) for gpu in own):
                continue
            shown = rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else expected.uuids
            meant, local = visible(value, _whole(own)).uuids, rank.placement.local_rank
            beyond = local is not None and len(shown) <= local < len(meant)  # of one GPU, another rank's
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
    """A job of which some ranks take MIG devices and some whole GPUs."""

    odd: tuple[Taken, ...]
    """Those that are not as most nodes are; all, where neither is usual."""
    usual: bool
    """Whether one of both is: then `odd` is the other."""
    chosen: bool
    """Whether the odd ones' own CUDA_VISIBLE_DEVICES names what they take."""


@once
def mixture(job: Job) -> Mixture | None:
    """Return what of a job is in MIG mode and what not, None where all ranks are alike."""
    sides = {sliced: [t for t in taken(job) if t.sliced is sliced] for sliced in (True, False)}
    if not all(sides.values()):
        return None
    nodes = {sliced: {t.node.key for t in side} for sliced, side in sides.items()}
    everywhere = nodes[True] | nodes[False]
    voters = nodes if len(everywhere) > 1 else sides
    usual = majority(voters, of=len(everywhere) if len(everywhere) > 1 else len(taken(job)))
    odd = tuple(taken(job)) if usual is None else tuple(sides[not usual])
    chosen = any(t.rank.environment.get(VARIABLE, "").startswith(("MIG-", "GPU-")) for t in odd)
    return Mixture(odd, usual is not None, chosen)


def by_mixture(job: Job, ranks: Iterable[RankFacts]) -> bool:
    """Tell whether ranks share a MIG device because their GPUs are in MIG mode and those of most nodes are not."""
    mixed = mixture(job)
    if mixed is None or mixed.chosen:
        return False
    odd = {id(t.rank) for t in mixed.odd if t.sliced}
    return all(id(rank) in odd for rank in ranks)
