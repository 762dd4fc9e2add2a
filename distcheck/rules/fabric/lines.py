"""The ports of the nodes' RDMA adapters, and which of them NCCL would use."""

from __future__ import annotations

from functools import lru_cache
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import OWN_LINKS, Hca, HcaPort, Infiniband
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import RankFacts
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.wording import grouped, listed, nodes_of, numbers_of, once
from distcheck.selection import gids
from distcheck.selection.adapters import HCA, allows, off
from distcheck.selection.nccl_settings import of_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from distcheck.rules import Outcome

PKEY = "NCCL_IB_PKEY"
_SETTINGS = (HCA, *gids.SETTINGS, PKEY)
_REFUSED = frozenset({"denied", "absent"})
_SHOWN = 16
"""Nodes, and ports of each, that evidence shows."""


class FabricPort(msgspec.Struct, frozen=True, gc=False):
    """A port of an adapter on a node."""

    node: NodeFacts
    hca: Hca
    port: HcaPort
    name: str
    """The port's name as NCCL_IB_HCA writes it: mlx5_0:1."""
    active: bool
    """Whether NCCL can use the port."""
    own: bool
    """Whether NCCL's own transport supports the port's link layer."""


class View(NamedTuple):
    """A node whose adapters were read, its ranks that use NCCL's InfiniBand transport, and its ports."""

    node: NodeFacts
    ranks: tuple[RankFacts, ...]
    adapters: Infiniband
    lines: tuple[FabricPort, ...]
    """The ports that the ranks' NCCL_IB_HCA allows, in any state."""
    taken: tuple[FabricPort, ...]
    """The ports that NCCL's own transport would use."""
    active: tuple[Hca, ...]
    """The adapters with an active port that NCCL's own transport could use, whether or not it can be opened."""
    alike: tuple[tuple[Mapping[str, str], tuple[RankFacts, ...]], ...]
    """The ranks by what they set of `_SETTINGS`."""
    lists: Mapping[str, Sequence[RankFacts]]
    """The ranks by NCCL_IB_HCA, '' if it is not set."""


def alone(job: Job) -> bool:
    """Return whether one node is checked by itself, without a job (distcheck node)."""
    return "node" in job.asked.looks


def uses_nccl(job: Job) -> bool:
    """Return whether the ranks use NCCL between several nodes, or a node is checked by itself."""
    return alone(job) or (job.backend == "nccl" and len(job.nodes) > 1)


@once
def views(job: Job) -> tuple[View, ...]:
    """Return the nodes that use RDMA adapters, or would if they had any."""
    if not uses_nccl(job):
        return ()

    def read(rank: RankFacts) -> tuple[tuple[str, str], ...] | None:
        values = of_rank(job, rank)
        return None if off(values) else tuple((name, values[name]) for name in _SETTINGS if name in values)

    settings = {id(rank): own for own, ranks in ranks_by(job, read).items() for rank in ranks}
    found = []
    for node in job.nodes:
        if not isinstance(node.infiniband, Infiniband):
            continue
        ranks = tuple([rank for rank in job.ranks_on(node) if id(rank) in settings])
        if ranks:
            groups = grouped(ranks, lambda rank: settings[id(rank)])
            alike = tuple((dict(own), tuple(several)) for own, several in groups.items())
            lists: dict[str, list[RankFacts]] = {}
            for values, several in alike:
                lists.setdefault(values.get(HCA, ""), []).extend(several)
            lines = tuple(ports(node, node.infiniband, lists))
            up = [i for i in lines if i.own and i.active]
            taken = tuple([i for i in up if i.hca.device_file not in _REFUSED])
            active = tuple({i.hca.name: i.hca for i in up}.values())
            found.append(View(node, ranks, node.infiniband, lines, taken, active, alike, lists))
    return tuple(found)


def ports(node: NodeFacts, adapters: Infiniband, lists: Iterable[str] = ("",)) -> Iterator[FabricPort]:
    """Yield the ports of a node's adapters that one of these values of NCCL_IB_HCA allows."""
    values = tuple(lists)
    for hca in adapters.hcas:
        for port in hca.ports:
            if name := _allowed(values, hca.name, port.number):
                yield FabricPort(node, hca, port, name, port.state == "ACTIVE", port.link_layer in OWN_LINKS)


@lru_cache(1 << 12)
def _allowed(values: tuple[str, ...], name: str, number: int) -> str:
    """Return a port's name as NCCL_IB_HCA writes it, '' if none of these values allows it."""
    return f"{name}:{number}" if any(allows(value, name, number) for value in values) else ""


def not_read(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes whose adapters could not be read, or not all of them."""
    nodes = [node for node in job.nodes if uses_nccl(job) and _gap(node)]
    for reason, group in grouped(nodes, _gap).items():
        yield NotChecked(reason=reason, nodes=tuple(node.name for node in group), required=False)


def _gap(node: NodeFacts) -> str:
    if isinstance(node.infiniband, Missing):
        return node.infiniband.reason
    return node.infiniband.unread if isinstance(node.infiniband, Infiniband) else ""


@once
def by_name(job: Job) -> dict[str, list[FabricPort]]:
    """Return the ports of all nodes by name, without those of network plugins."""
    found: dict[str, list[FabricPort]] = {}
    for view in views(job):
        for line in view.lines:
            if line.own:
                found.setdefault(line.name, []).append(line)
    return found


def ranks_of(job: Job, lines: Iterable[FabricPort]) -> tuple[RankFacts, ...]:
    """Return the ranks on the nodes of ports."""
    nodes = {line.node.key: line.node for line in lines}
    return job.ranks_on(*nodes.values())


def where(lines: Iterable[FabricPort], most: int = 4) -> str:
    """Return ports with their nodes: mlx5_3:1 of node3."""
    nodes = grouped(lines, lambda line: line.node.name)
    shown = {name: listed([line.name for line in group], most) for name, group in nodes.items()}
    alike = grouped(shown, shown.__getitem__)
    return "; ".join(f"{ports} of {listed(names, most)}" for ports, names in alike.items())


def each_view(job: Job, judge: Callable[[View], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of nodes with adapters (``of=each_view``), one fault for all nodes of which it says it.

    The evidence is that of the first nodes together.
    """
    yield from not_read(job)
    said = [(view, fault) for view in views(job) if isinstance(fault := judge(view), Fault)]
    for alike in grouped(said, lambda each: _words(each[1])).values():
        ranks = [rank for view, _ in alike for rank in view.ranks]
        evidence = {name: value for _, fault in alike[:_SHOWN] for name, value in fault.evidence.items()}
        message = f"{listed(nodes_of(job, ranks))}: {alike[0][1].message}"
        yield _of_ranks(job, ranks, alike[0][1], message=message, evidence=evidence)


def each_port(job: Job, judge: Callable[[FabricPort], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of the ports that NCCL_IB_HCA allows (``of=each_port``), one fault for equal ones.

    In the commands of its fix, {hca} and {hca_port} stand for the first one.
    """
    yield from not_read(job)
    allowed = (line for view in views(job) for line in view.lines)
    said = [(line, fault) for line in allowed if isinstance(fault := judge(line), Fault)]
    for alike in grouped(said, lambda each: _words(each[1])).values():
        lines, fault = [line for line, _ in alike], alike[0][1]
        values = {"hca": (quote(lines[0].hca.name),), "hca_port": (str(lines[0].port.number),)}
        message = f"{where(lines)}: {fault.message}"
        yield _of_ranks(job, ranks_of(job, lines), fault, message=message, evidence=shown(lines), values=values)


def _words(fault: Fault) -> tuple[object, ...]:
    """Return what is equal for faults that one finding reports."""
    return fault.message, fault.severity, fault.scope, fault.owner


def _of_ranks(job: Job, ranks: Sequence[RankFacts], fault: Fault, **fields: object) -> Fault:
    return msgspec.structs.replace(fault, ranks=numbers_of(ranks), nodes=nodes_of(job, ranks), **fields)


def shown(lines: Iterable[FabricPort]) -> dict[str, list[str]]:
    """Return the state of ports by node, as evidence."""
    nodes = grouped(lines, lambda line: line.node.name)
    return {name: [f"{line.name} {_state(line)}" for line in group[:_SHOWN]] for name, group in nodes.items()}


def _state(line: FabricPort) -> str:
    rate = "" if line.port.rate_Gbps is None else f", {line.port.rate_Gbps:g} Gb/s"
    lanes = "" if line.port.lanes is None else f" ({line.port.lanes}X {line.port.speed})".replace(" )", ")")
    return f"{line.port.state or '?'}/{line.port.physical_state or '?'}{rate}{lanes}"
