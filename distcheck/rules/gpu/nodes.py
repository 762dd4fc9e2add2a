"""Which nodes the GPU rules look at, which GPUs their ranks see, and how a GPU is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Gpus, is_instinct, usable_name
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import Fault, NamedGpu, NotChecked
from distcheck.rules.gpu.nvml_errors import NO_DRIVER, error_code
from distcheck.rules.wording import about, grouped, listed, numbers_of, once, same
from distcheck.selection.gpu_variables import SELECTING, deciding, selected
from distcheck.selection.visible_devices import BadItem, Visible, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from distcheck.rules import Outcome


class Value(NamedTuple):
    """The variable that selects the GPUs of ranks of one node, and how CUDA or HIP reads it."""

    ranks: Sequence[RankFacts]
    variable: str
    """CUDA_VISIBLE_DEVICES; on AMD's GPUs also HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES."""
    value: str | None
    """None: unset."""
    fault: BadItem | None
    """What is wrong with it."""
    own: tuple[Gpu, ...]
    """Those of the node's GPUs that the processes of these ranks may open."""
    shown: Visible


@once
def gpu_nodes(job: Job) -> tuple[NodeFacts, ...]:
    """Return the nodes with GPUs, by what they show or by ``--gpus``, on which the job uses NCCL or RCCL."""
    return tuple(node for node in job.nodes if _concerns(job, node) and (job.asked.gpus or _shows_gpus(node)))


def _concerns(job: Job, node: NodeFacts) -> bool:
    """Return whether the job uses NCCL or RCCL on a node: not with other backends."""
    if job.asked.backend not in {"nccl", "auto"}:
        return False
    if job.asked.gpus or not isinstance(node.torch, TorchBuild):
        return True
    if node.accelerator == "amd":
        # A CPU's or a desktop's graphics, and a torch without ROCm: the job does not use it.
        return node.torch.hip is not None or job.asked.backend == "nccl" or _may_have_instinct(node)
    # A graphics card without NVIDIA's driver, and a torch without CUDA: the job does not use it.
    no_driver = isinstance(node.gpus, Missing) and error_code(node.gpus.reason) in NO_DRIVER
    unused = job.asked.backend == "auto" and node.torch.cuda is None and no_driver
    return node.torch.hip is None and not unused


def _may_have_instinct(node: NodeFacts) -> bool:
    """Return whether a node has AMD GPUs for compute, or its driver did not tell."""
    if isinstance(node.gpus, Missing):
        return "not loaded" not in node.gpus.reason or "Instinct" in node.gpus.reason
    return node.gpus is not None and any(map(is_instinct, node.gpus.devices))


def _shows_gpus(node: NodeFacts) -> bool:
    return node.accelerator != "none" or (isinstance(node.gpus, Gpus) and bool(node.gpus.devices))


def equipped(node: NodeFacts) -> bool:
    """Return whether a node has usable GPUs, as far as is known."""
    if isinstance(node.gpus, Gpus):
        return any(usable_name(gpu) for gpu in node.gpus.devices)
    return node.accelerator != "none"


def lacks_gpus(job: Job, node: NodeFacts, *, others: bool) -> bool:
    """Return whether a node needs GPUs and has none; `others`: other nodes have some."""
    needed = job.asked.backend == "nccl" or (job.asked.backend == "auto" and others)
    return needed and not _shows_gpus(node) and _concerns(job, node)


@once
def seen(job: Job) -> list[tuple[NodeFacts, tuple[Gpu, ...]]]:
    """Return the nodes whose driver answered, with the GPUs that it counted."""
    return [(node, node.gpus.devices) for node in gpu_nodes(job) if isinstance(node.gpus, Gpus)]


@once
def without_loss(job: Job) -> list[tuple[NodeFacts, tuple[Gpu, ...]]]:
    """Return those of `seen` that have lost no GPU; gpu-fell-off-bus reports the others."""
    return [(node, devices) for node, devices in seen(job) if not any(gpu.lost for gpu in devices)]


def not_seen(job: Job, but: Sequence[NodeFacts] = ()) -> Iterator[NotChecked]:
    """Yield the nodes whose driver did not answer, so that their GPUs are unknown."""
    known = {node.key for node in but}
    silent = [n for n in gpu_nodes(job) if not isinstance(n.gpus, Gpus) and n.key not in known]
    why = ((n, n.gpus.reason if isinstance(n.gpus, Missing) else "the driver was not asked") for n in silent)
    yield from nodes_unread(job, why)


def nodes_unread(job: Job, unread: Iterable[tuple[NodeFacts, str]], *, required: bool = True) -> Iterator[NotChecked]:
    """Yield the nodes of which a fact is missing, one entry per reason."""
    for reason, pairs in grouped(unread, lambda pair: pair[1]).items():
        nodes = [node for node, _ in pairs]
        ranks = numbers_of(job.ranks_on(*nodes))
        yield NotChecked(reason=reason, nodes=tuple(node.name for node in nodes), ranks=ranks, required=required)


def about_nodes(job: Job, nodes: Sequence[NodeFacts], fault: Fault) -> Fault:
    """Return a fault of these nodes, whose names begin the message, and of their ranks."""
    names, ranks = tuple(node.name for node in nodes), numbers_of(job.ranks_on(*nodes))
    return msgspec.structs.replace(fault, message=f"{listed(names)}: {fault.message}", ranks=ranks, nodes=names)


@once
def _visible(job: Job) -> dict[str, Visible]:
    return {node.key: visible(None, devices) for node, devices in seen(job)}


def all_visible(job: Job, node: NodeFacts) -> Visible:
    """Return the GPUs that CUDA or HIP shows on a node of `seen` without a variable that selects some."""
    return _visible(job)[node.key]


def values(job: Job, node: NodeFacts) -> tuple[Value, ...]:
    """Return a node's ranks by the variables that select GPUs; empty where the driver did not answer."""
    return _values(job).get(node.key, ())


def ranks_without_fault(job: Job, node: NodeFacts) -> Iterator[RankFacts]:
    """Yield a node's ranks whose selection is read as intended, and those without one."""
    for each in values(job, node):
        if each.fault is None:
            yield from each.ranks


def each_value(job: Job, judge: Callable[[Value], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of values (``of=each_value``), once for all ranks of all nodes with an equal fault."""
    yield from not_seen(job)
    yield from by_fault(job, ((judge(value), value.ranks) for node, _ in seen(job) for value in values(job, node)))


def by_fault(job: Job, said: Iterable[tuple[Fault | Missing | None, Sequence[RankFacts]]]) -> Iterator[Outcome]:
    """Yield what a rule says of ranks, once for all with an equal fault."""
    found: dict[bytes | None, tuple[Fault | Missing, list[RankFacts]]] = {}
    for fault, ranks in said:
        if fault is not None:
            found.setdefault(same(fault), (fault, []))[1].extend(ranks)
    for fault, several in found.values():
        yield from about(job, several, fault)


@once
def _values(job: Job) -> dict[str, tuple[Value, ...]]:
    partial = {process.uid: process.gpus.devices for process in job.processes if process.gpus is not None}
    return {node.key: tuple(_of_node(job, node, devices, partial)) for node, devices in seen(job)}


def _of_node(
    job: Job, node: NodeFacts, devices: tuple[Gpu, ...], partial: dict[str, tuple[Gpu, ...]]
) -> Iterator[Value]:
    """Yield a node's values; `partial`: the GPUs of each process that may open only some of its node's."""
    alike: dict[tuple[object, ...], tuple[tuple[Gpu, ...], list[RankFacts]]] = {}
    for rank in job.ranks_on(node):
        own = partial.get(rank.process, devices)
        alike.setdefault((id(own), *map(rank.environment.get, SELECTING)), (own, []))[1].append(rank)
    for own, ranks in alike.values():
        variable, value, fault, shown = selected(ranks[0].environment, own, node.accelerator)
        yield Value(ranks, variable, value, fault, own, shown)


def selection(job: Job, rank: RankFacts) -> tuple[str, str | None]:
    """Return the variable that selects a rank's GPUs, and its value; None: unset."""
    return deciding(rank.environment, job.node_of(rank).accelerator)


def card(gpu: Gpu) -> dict[str, Any]:
    """Return what is known of a GPU's identity: UUID, PCI address, name."""
    known = {"uuid": gpu.uuid, "pci": gpu.pci, "name": gpu.name}
    return {name: value for name, value in known.items() if isinstance(value, str)}


def identity(node: NodeFacts, gpu: Gpu) -> NamedGpu:
    """Return a GPU of a node as findings name it."""
    return NamedGpu(node.name, gpu.index, gpu.uuid if isinstance(gpu.uuid, str) else None)


def name_of(gpu: Gpu) -> str:
    """Return a GPU's index, and its address if that is known: GPU 3 (0000:61:00.0)."""
    return f"GPU {gpu.index} ({gpu.pci})" if isinstance(gpu.pci, str) else f"GPU {gpu.index}"
