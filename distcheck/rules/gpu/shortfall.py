"""Nodes with fewer GPUs than nodes with as many ranks, or than their PCI bus shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.gpu import Gpus, usable_name
from distcheck.facts.pci import Pci
from distcheck.rules.gpu.nodes import without_loss
from distcheck.rules.gpu.sharing import sharing_allowed
from distcheck.rules.wording import grouped, majority, once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.gpu import Gpu
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

_LIMITS = ("SLURM_", "PBS_", "LSB_", "KUBERNETES_")
_LIMIT = {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "JOB_ID", "RAY_JOB_ID", "AZUREML_RUN_ID", "SM_CURRENT_HOST"}
"""If one of these is set, a scheduler or a container may show only a part of the node's GPUs."""


class Shortfall(NamedTuple):
    """A node that lacks GPUs."""

    node: NodeFacts
    gpus: int
    """Its usable GPUs."""
    most: int
    """GPUs of the nodes that it was compared with; 0 without a comparison."""
    others: tuple[str, ...]
    """The names of those nodes."""
    blamed: bool
    """Whether those nodes are the majority."""
    whole: bool
    """Whether NVML lists all GPUs on the PCI bus of those nodes, as far as is known."""
    undriven: tuple[str, ...]
    """Addresses of GPUs on its own PCI bus that NVML does not list."""
    without: tuple[RankFacts, ...] = ()
    """Ranks that get no GPU."""


@once
def shortfalls(job: Job) -> tuple[Shortfall, ...]:
    """Return the nodes that lack GPUs.

    Other rules report a node that has lost a GPU or has none, and a node by itself without ranks.
    """
    if "node" in job.asked.looks:
        return ()
    counted: list[tuple[NodeFacts, tuple[Gpu, ...]]] = []
    for node, devices in without_loss(job):
        usable = tuple(filter(usable_name, devices))
        if usable and job.ranks_on(node):
            counted.append((node, usable))
    hidden = {node.key: undriven(job, node) for node, _ in counted}
    found = []
    for group in grouped(counted, lambda item: len(job.ranks_on(item[0]))).values():
        counts = grouped(group, lambda item: len(item[1]))
        most, usual = max(counts), majority(counts)
        if len(counts) == 1 and not any(hidden[node.key] for node, _ in group):
            continue
        full = counts[most]
        alike = grouped(full, lambda item: _models(item[1]))
        whole = not any(hidden[node.key] for node, _ in full)
        for node, usable in group:
            lists = hidden[node.key]
            without = _without(job, node, len(usable)) if len(usable) < most else ()
            others = full if without else alike.get(_models(usable), []) if usual in {most, None} else []
            if len(usable) < most and others:
                names = tuple(other.name for other, _ in others)
                found.append(Shortfall(node, len(usable), most, names, usual == most, whole, lists, without))
            elif lists:
                found.append(Shortfall(node, len(usable), 0, (), blamed=False, whole=False, undriven=lists))
    return tuple(found)


def _models(gpus: Sequence[Gpu]) -> frozenset[str]:
    return frozenset(str(gpu.name) for gpu in gpus)


def _without(job: Job, node: NodeFacts, count: int) -> tuple[RankFacts, ...]:
    """Return the ranks whose LOCAL_RANK is beyond the node's GPUs."""
    return tuple(
        rank
        for rank in job.ranks_on(node)
        if rank.gpu is None and (rank.placement.local_rank or 0) >= count and not sharing_allowed(job, rank)
    )


def undriven(job: Job, node: NodeFacts) -> tuple[str, ...]:
    """Return the GPUs on a node's PCI bus that NVML does not list.

    Empty where the variables show that NVML may list only a part.
    """
    gpus, pci = node.gpus, node.pci
    if not isinstance(gpus, Gpus) or not isinstance(pci, Pci):
        return ()
    listed = {gpu.pci for gpu in gpus.devices}
    unlisted = tuple(sorted(pci.gpus.keys() - listed))
    if not unlisted or any(not isinstance(address, str) for address in listed):
        return ()
    variables = {name for rank in job.ranks_on(node) for name in rank.environment}
    limited = not variables or variables & _LIMIT or any(name.startswith(_LIMITS) for name in variables)
    return () if limited else unlisted
