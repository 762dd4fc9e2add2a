"""The condition of each GPU and its ranks, and findings that name GPUs, nodes and ranks."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, Gpu, GpuHealth, Gpus, NvLinks, RemappedRows, usable_name
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.ranges import fold
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.gpu.nodes import card, identity, name_of, nodes_unread, not_seen, seen
from distcheck.rules.gpu.nvml_errors import error_code
from distcheck.rules.wording import brief, grouped, listed, numbers_of, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distcheck.rules import Outcome

_NOT_THERE = frozenset({2, 3, 13})
"""Invalid argument, not supported, function not found: this GPU or driver does not have the value."""
NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3
"""States of the fabric (nvml.h)."""
FEWEST_LOOKS = 4
"""A GPU seen at work less often is not judged."""
_MOST = 16
"""GPUs that a finding's evidence shows."""


class Presence(msgspec.Struct, frozen=True, gc=False):
    """A GPU that NVML could reach, its node, and the ranks that use it."""

    node: NodeFacts
    gpu: Gpu
    ranks: tuple[RankFacts, ...]
    used: bool
    """Whether the job uses it, as far as is known."""


class Reading(Presence, frozen=True, gc=False):
    """A GPU that NVML could read; a fault of an unused GPU does not stop the job."""

    health: GpuHealth


@once
def present(job: Job) -> tuple[Presence, ...]:
    """Return every GPU of the job's nodes that is not lost."""
    found = []
    for node, devices in seen(job):
        takers = grouped(job.ranks_on(node), attrgetter("gpu"))
        all_known = bool(takers) and None not in takers
        for gpu in devices:
            if not gpu.lost:
                ranks = tuple(rank for name in (usable_name(gpu), *gpu.mig_uuids) for rank in takers.get(name, ()))
                found.append(Presence(node, gpu, ranks, bool(ranks) or not all_known))
    return tuple(found)


@once
def readings(job: Job) -> tuple[Reading, ...]:
    """Return every GPU of the job's nodes whose condition was read."""
    there = present(job)
    return tuple(Reading(p.node, p.gpu, p.ranks, p.used, p.gpu.health) for p in there if p.gpu.health is not None)


@once
def by_node(job: Job) -> dict[str, list[Reading]]:
    """Return the GPUs whose condition was read, by their node's key."""
    return grouped(readings(job), lambda reading: reading.node.key)


def number(value: float | Missing | None) -> float:
    """Return a number, 0 if it is missing."""
    return 0 if value is None or isinstance(value, Missing) else value


@once
def not_read(job: Job) -> tuple[NotChecked, ...]:
    """Return the GPUs whose condition is unknown, with the reasons."""
    return tuple(_not_read(job))


def _not_read(job: Job) -> Iterator[NotChecked]:
    yield from not_seen(job)
    answered = [(node, node.gpus.unread) for node, _ in seen(job) if isinstance(node.gpus, Gpus)]
    yield from nodes_unread(job, (pair for pair in answered if pair[1]))
    read = {reading.gpu.uuid for reading in readings(job)}  # pods of one machine are nodes that may see the same GPUs
    unread = [
        each
        for each in present(job)
        if each.used
        and each.gpu.health is None
        and usable_name(each.gpu)
        and each.gpu.uuid not in read
        and not (isinstance(each.node.gpus, Gpus) and each.node.gpus.unread)
    ]
    for there in grouped(unread if read else (), lambda each: each.node.key).values():
        reason = f"no process has read the condition of {gpu_names([each.gpu for each in there])}"
        ranks = numbers_of(rank for each in there for rank in each.ranks)
        yield NotChecked(reason=reason, nodes=(there[0].node.name,), ranks=ranks)


def high(counts: Iterable[int], least: int) -> int:
    """Return the threshold of a counter that is never reset: `least`, and 100 times the usual."""
    known = sorted(counts)
    return max(least, 100 * known[(len(known) - 1) // 2]) if len(known) > 1 else 100 * least


def on_grace(reading: Reading) -> bool:
    """Return whether a GPU is attached to a Grace CPU, by its memory's NUMA node or its name."""
    name = reading.gpu.name
    return isinstance(reading.health.own_numa_node, int) or (
        isinstance(name, str) and re.search(r"\bG[HB]\d", name) is not None
    )


def nvlinks_of(reading: Reading) -> NvLinks | None:
    """Return a GPU's NVLinks, None if unknown."""
    links = reading.health.nvlinks
    return links if isinstance(links, NvLinks) else None


def fabric_of(reading: Reading) -> Fabric | None:
    """Return a GPU's state in the NVSwitch fabric, None if unknown."""
    fabric = reading.health.fabric
    return fabric if isinstance(fabric, Fabric) else None


def not_ready(reading: Reading) -> str:
    """Return why a GPU is not in its NVSwitch fabric; '' if it is, or if there is no fabric."""
    fabric = fabric_of(reading)
    if fabric is None or nvlinks_of(reading) is None:
        return ""
    if fabric.state in {NOT_STARTED, IN_PROGRESS}:
        words = "has not started" if fabric.state == NOT_STARTED else "is still in progress"
        return f"fabric registration {words}; expected: completed"
    if fabric.state == COMPLETED and fabric.status:
        return f"fabric registration ended with NVML error {fabric.status}"
    return ""


def each_gpu(job: Job, judge: Callable[[Reading], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of GPUs (``of=each_gpu``), one fault for all nodes with the same ones.

    A fault of a GPU that no rank uses is an info. In the commands of its fix, {gpu} stands for the argument of
    nvidia-smi's ``-i``; a command with {pci} is given once for each GPU, with its PCI address.
    """
    yield from not_read(job)
    said = [(reading, fault) for reading in readings(job) if (fault := judge(reading)) is not None]
    yield from _unknown((reading, fault) for reading, fault in said if isinstance(fault, Missing))
    faults = [
        (reading, fault if reading.used else msgspec.structs.replace(fault, severity="info"))
        for reading, fault in sorted(said, key=lambda each: not each[0].used)
        if isinstance(fault, Fault)
    ]
    kinds = grouped(faults, lambda each: (each[0].used, each[1].severity, each[1].scope, each[1].owner, each[1].fix))
    for several in kinds.values():
        nodes = grouped(several, lambda each: each[0].node.key).values()
        for alike in grouped(nodes, lambda node: tuple((r.gpu.index, r.gpu.pci, f.message) for r, f in node)).values():
            yield _of_nodes(alike)


def _unknown(unread: Iterable[tuple[Reading, Missing]]) -> Iterator[NotChecked]:
    """Yield the values that the driver refused, without those that a GPU or driver does not have."""
    refused = ((reading, why.reason) for reading, why in unread if error_code(why.reason) not in _NOT_THERE)
    by_driver = ((reading, why) for reading, why in refused if why.startswith(("NVML", "amdgpu")))
    for (node, why), group in grouped(by_driver, lambda item: (item[0].node.name, item[1])).items():
        gpus = [reading.gpu for reading, _ in group]
        ranks = numbers_of(rank for reading, _ in group for rank in reading.ranks)
        yield NotChecked(reason=f"{gpu_names(gpus)}: {why}", nodes=(node,), ranks=ranks, required=False)


def _of_nodes(nodes: list[list[tuple[Reading, Fault]]]) -> Fault:
    first, names = nodes[0], [node[0][0].node.name for node in nodes]
    by_words = grouped(first, lambda each: each[1].message)
    parts = [f"{gpu_names([r.gpu for r, _ in several])}: {brief(words, 120)}" for words, several in by_words.items()]
    more = f"; and {len(parts) - 2} more of this kind" if len(parts) > 2 else ""
    evidence = {}
    for reading, fault in [each for node in nodes for each in node][:_MOST]:
        key = f"GPU {reading.gpu.index}" if len(nodes) == 1 else f"{reading.node.name} GPU {reading.gpu.index}"
        evidence[key] = ", ".join((*card(reading.gpu).values(), fault.message))
    gpus, one = [reading.gpu for reading, _ in first], first[0][1]
    return msgspec.structs.replace(
        one,
        confirmed=one.confirmed or one.severity != "error",  # only an error may be unconfirmed
        ranks=numbers_of(rank for node in nodes for reading, _ in node for rank in reading.ranks),
        nodes=tuple(names),
        gpus=tuple(identity(reading.node, reading.gpu) for node in nodes for reading, _ in node),
        message=brief(f"{listed(names, most=3)}: {'; '.join(parts[:2])}{more}", 300),
        evidence=evidence,
        values={"gpu": (_option(gpus),), "pci": tuple(gpu.pci for gpu in gpus if isinstance(gpu.pci, str))},
    )


def _option(gpus: list[Gpu]) -> str:
    """Return the argument of nvidia-smi's ``-i``: PCI addresses, also valid on the host, else NVML's numbers."""
    places = [gpu.pci for gpu in gpus if isinstance(gpu.pci, str)]
    if len(places) == len(gpus) and (len(gpus) == 1 or (gpus[0].health is not None and gpus[0].health.amd)):
        return ",".join(places)  # amd-smi's numbers are not KFD's
    return ",".join(str(gpu.index) for gpu in gpus)


def gpu_names(gpus: list[Gpu]) -> str:
    """Name GPUs of one node: GPU 3 (0000:61:00.0), GPUs 0-7."""
    if len(gpus) == 1:
        return name_of(gpus[0])
    return f"GPUs {fold(gpu.index for gpu in gpus)}"


def memory_failed(reading: Reading) -> bool:
    """Return whether the GPU's memory has failed; another finding reports it and the reset."""
    rows = reading.health.remapped_rows
    failure = isinstance(rows, RemappedRows) and rows.failure
    return failure or number(reading.health.ecc.uncorrected_volatile) > 0
