"""Which rank takes which GPU, and where that GPU and the node's network adapters are."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, GpuHealth, usable_name
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import Fault
from distcheck.rules.gpu.nodes import card, not_seen, seen
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.wording import brief, grouped, named, nodes_of, numbers_of, once, process_name
from distcheck.selection.adapters import HCA, chosen, off, overridden, served
from distcheck.selection.nccl_settings import of_rank
from distcheck.selection.pci import DISTANCES, ON_SWITCH, Distance, Near, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distcheck.rules import Outcome

WORDS: dict[Distance, str] = {
    "PIX": "on its switch",
    "PXB": "on its switches",
    "PHB": "on its root complex",
    "NODE": "on another root complex of its NUMA node",
    "SYS": "on another NUMA node",
}
_MOST = 16
"""Ranks that a finding's evidence shows."""


class Take(msgspec.Struct, frozen=True, gc=False):
    """A rank and the GPU that it takes."""

    rank: RankFacts
    node: NodeFacts
    gpu: Gpu
    place: PciPlace | None
    """None where sysfs does not show it."""

    @property
    def sliced(self) -> bool:
        """Return whether the rank takes a MIG device of the GPU."""
        return self.rank.gpu != usable_name(self.gpu)

    @property
    def cpus(self) -> str:
        """Return the CPUs next to the GPU, folded, from NVML or else sysfs; '' if unknown."""
        cpus = self.gpu.health.cpus if isinstance(self.gpu.health, GpuHealth) else ""
        return cpus if isinstance(cpus, str) and cpus else self.place.cpus if self.place else ""


@once
def takes_by_node(job: Job) -> dict[str, list[Take]]:
    """Return the GPU of every rank for which it is known, by their node's key; with MIG, the parent GPU."""
    found: dict[str, list[Take]] = {}
    for node, devices in seen(job):
        here = []
        by_name = {name: gpu for gpu in devices for name in (usable_name(gpu), *gpu.mig_uuids)}
        places = node.pci.gpus if isinstance(node.pci, Pci) else {}
        for rank in job.ranks_on(node):
            gpu = (by_name.get(rank.gpu) or _divided(rank.gpu, devices)) if rank.gpu else None
            if gpu is not None:
                place = None if isinstance(gpu.pci, Missing) else places.get(gpu.pci)
                here.append(Take(rank, node, gpu, place))
        if here:
            found[node.key] = here
    return found


def _divided(name: str, devices: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU of a MIG device that has the name of drivers before 470: the GPU's UUID and two numbers."""
    old = (gpu for gpu in devices if isinstance(gpu.uuid, str) and name.startswith(f"MIG-{gpu.uuid}/"))
    return next(old, None)


def takes(job: Job) -> Iterator[Take]:
    """Yield the GPU of every rank for which it is known."""
    return chain.from_iterable(takes_by_node(job).values())


class Routes(NamedTuple):
    """How a GPU's traffic can reach the network."""

    value: str | None
    """NCCL_IB_HCA."""
    got: Near
    """The nearest of the adapters that NCCL may use."""
    left_out: Near | None
    """Nearer adapters, active and at least as fast, that NCCL_IB_HCA excludes."""
    down: Near | None
    """Nearer adapters that NCCL would use if one of their ports were up."""


@once
def routes(job: Job) -> list[tuple[Take, Routes]]:
    """Return how the ranks' GPUs reach the network over NCCL's InfiniBand transport, where that is known.

    It is worked out once for GPUs at the same place among the same adapters with the same NCCL_IB_HCA.
    """
    by_list = ranks_by(job, partial(_list, job))
    lists = {id(rank): value for (value,), ranks in by_list.items() for rank in ranks}
    trees: dict[tuple[tuple[Nic, ...], bool], dict[tuple[PciPlace, str | None], Routes | None]] = {}
    found = []
    for here in takes_by_node(job).values():
        pci = here[0].node.pci
        if not isinstance(pci, Pci):
            continue
        known = trees.setdefault((pci.nics, pci.virtual), {})
        for take in here:
            if take.place is None or id(take.rank) not in lists:
                continue
            key = take.place, lists[id(take.rank)]
            if key not in known:
                known[key] = _routes(take.place, pci.nics, key[1], virtual=pci.virtual)
            if (way := known[key]) is not None:
                found.append((take, way))
    return found


def _list(job: Job, rank: RankFacts) -> tuple[str | None] | None:
    """Return a rank's NCCL_IB_HCA, None if its NCCL does not choose among the adapters."""
    settings = of_rank(job, rank)
    return None if off(settings) or overridden(settings) else (settings.get(HCA),)


def _routes(place: PciPlace, there: tuple[Nic, ...], value: str | None, *, virtual: bool) -> Routes | None:
    nics = tuple(nic for nic in there if served(nic))
    mine = tuple(nic for nic in nics if chosen(nic, value))
    got = nearest(place, mine, virtual=virtual)
    if got is None:
        return None
    # A nearer but slower adapter may serve storage or logins, and is excluded on purpose.
    best_got = max(got.nics, key=lambda nic: nic.rate_Gbps or 0)
    alike = tuple(nic for nic in nics if _as_good(nic, best_got))
    if_up = tuple(_if_up(nic) for nic in mine if nic.link_layer == best_got.link_layer)
    best = nearest(place, if_up, virtual=virtual)
    return Routes(value, got, _nearer(nearest(place, alike, virtual=virtual), got), _nearer(best, got))


def _as_good(nic: Nic, other: Nic) -> bool:
    return nic.link_layer == other.link_layer and (nic.rate_Gbps or 0) >= (other.rate_Gbps or 0)


def _if_up(nic: Nic) -> Nic:
    """Return an adapter as if one of its ports were up."""
    return Nic(nic.name, nic.place, nic.kind, nic.link_layer)


def _nearer(found: Near | None, than: Near) -> Near | None:
    return found if found is not None and reach(found.distance) < reach(than.distance) else None


def reach(way: Distance) -> int:
    """Return 0 for a path over switches, 1 through a CPU, 2 between NUMA nodes."""
    return 0 if way in ON_SWITCH else 2 if way == DISTANCES[-1] else 1


def each_take(job: Job, judge: Callable[[Take], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of ranks and their GPUs (``of=each_take``), one fault for all nodes with the same ones."""
    yield from not_seen(job)
    said = ((take, judge(take)) for take in takes(job))
    yield from (fault for _, fault in merged(job, [(take, fault) for take, fault in said if isinstance(fault, Fault)]))


def merged(job: Job, faults: Sequence[tuple[Take, Fault]]) -> Iterator[tuple[Take, Fault]]:
    """Yield one fault for all nodes with the same faults on the same GPUs, and its first rank."""
    nodes = grouped(faults, lambda fault: fault[0].node.key).values()
    for alike in grouped(nodes, lambda node: tuple((take.gpu.index, fault.message) for take, fault in node)).values():
        several = list(chain.from_iterable(alike))
        yield several[0][0], _of_ranks(job, several)


def _of_ranks(job: Job, faults: list[tuple[Take, Fault]]) -> Fault:
    first, ranks = faults[0][1], [take.rank for take, _ in faults]
    rest = f"; same for {named(job, ranks[1:])}" if len(ranks) > 1 else ""
    evidence = card(faults[0][0].gpu) if len(ranks) == 1 else {}
    for take, fault in faults[:_MOST] if len(ranks) > 1 else ():
        number = take.rank.placement.rank
        evidence[process_name(job, take.rank) if number is None else f"rank {number}"] = fault.message
    message = brief(f"{named(job, ranks[:1])}: {first.message}{rest}", 300)
    own = {"message": message, "evidence": evidence, "ranks": numbers_of(ranks), "nodes": nodes_of(job, ranks)}
    return msgspec.structs.replace(first, **own)
