"""The GIDs that NCCL uses on RoCE ports, and the addresses and subnets of these ports."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.infiniband import Gid
from distcheck.facts.rank import RankFacts
from distcheck.rules.fabric.lines import FabricPort, views
from distcheck.rules.wording import grouped, once
from distcheck.selection.gids import FAMILY, INDEX, V2, address, chosen, number, usable
from distcheck.selection.interfaces import subnet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.rules.finding import Severity

_MOST_ENTRIES = 8
"""Ports, and entries of each port's table, that evidence shows."""


class GidChoice(NamedTuple):
    """The GID that NCCL uses on a RoCE port, for the ranks of a node with the same settings."""

    ranks: tuple[RankFacts, ...]
    line: FabricPort
    gid: Gid | None
    """None: that entry is empty."""
    kind: str
    """The kind of the entry: RoCE v2 IPv4, RoCE v1 IPv6, empty."""
    by_hand: bool
    """Whether the ranks set NCCL_IB_GID_INDEX."""
    ipv4: bool
    """Whether the ranks look for IPv4 addresses."""

    @property
    def routable(self) -> bool:
        """Whether the entry also works beyond one Ethernet segment."""
        return self.kind.startswith(V2) and "link-local" not in self.kind


@once
def gid_choices(job: Job) -> list[GidChoice]:
    """Return the GIDs of the RoCE ports in use."""
    found = []
    for view in views(job):
        lines = [i for i in view.taken if i.port.link_layer == "Ethernet" and i.port.gid_slots]
        for values, ranks in view.alike:
            by_hand, ipv4 = number(values, INDEX, -1) >= 0, values.get(FAMILY) != "AF_INET6"
            for line in lines:
                gid = line.port.gids.get(chosen(line.port, values))
                found.append(GidChoice(ranks, line, gid, _kind(gid), by_hand, ipv4))
    return found


def _kind(gid: Gid | None) -> str:
    if gid is None:
        return "empty"
    own = address(gid)
    family = "an unknown address" if own is None else f"IPv{own.version}"
    local = " link-local" if own is not None and own.is_link_local else ""
    return f"{gid.kind or 'unknown type'} {family}{local}"


def misfits(job: Job, choices: list[GidChoice]) -> Iterator[tuple[GidChoice, str, Severity]]:
    """Yield the GIDs that are empty, unlike those of the same port of other nodes, or not routable.

    Each with what is wrong, in which {} stands for the ports, and how severe it is.
    """
    infiniband = with_infiniband(job)
    working = {id(c.ranks) for c in choices if c.routable or c.line.node.key in infiniband}
    for group in grouped(choices, lambda c: c.line.name).values():
        kinds = grouped([c for c in group if c.gid is not None], lambda c: c.kind)
        size = {kind: (sum(len(c.ranks) for c in alike), kind.startswith(V2)) for kind, alike in kinds.items()}
        usual = max(size, key=size.__getitem__, default="")
        differ = len(kinds) > 1 and len({c.line.node.key for c in group}) > 1
        for choice in group:
            works = id(choice.ranks) in working
            if choice.gid is None:
                yield (choice, "has no GID on {}", "error" if not works else "warning" if kinds else "info")
            elif differ and choice.kind != usual:
                yield (choice, f"is {choice.kind} on {{}}, and {usual} elsewhere", "error")
            elif not differ and not choice.routable:
                what = f"is {choice.kind} on {{}}; expected RoCE v2 with a routable address"
                yield (choice, what, "info" if works else "warning")


def with_infiniband(job: Job) -> set[str]:
    """Return the keys of the nodes on which NCCL uses an InfiniBand port."""
    return {v.node.key for v in views(job) if any(i.port.link_layer == "InfiniBand" for i in v.taken)}


def ports_of(choices: list[GidChoice]) -> list[FabricPort]:
    """Return the ports, each once."""
    return list({(c.line.node.key, c.line.name): c.line for c in choices}.values())


def tables(lines: Sequence[FabricPort]) -> dict[str, list[str]]:
    """Return the GID tables of the first ports, as evidence."""

    def table(line: FabricPort) -> list[str]:
        first = [*line.port.gids.items()][:_MOST_ENTRIES]
        return [f"{index}: {address(gid)} {gid.kind} {gid.interface}".rstrip() for index, gid in first]

    return {f"{line.node.name} {line.name}": table(line) for line in lines[:_MOST_ENTRIES]}


def readable(line: FabricPort) -> bool:
    """Whether the types of the GIDs are known: outside of the interface's network namespace they are not."""
    return all(gid.kind for gid in line.port.gids.values())


def elsewhere(choice: GidChoice) -> bool:
    """Whether the interface of the GID that NCCL uses is in another network namespace than the probing process."""
    gid, network = choice.gid, choice.line.node.network
    if gid is None:
        return False
    if not gid.interface:
        return not any(entry.kind or entry.interface for entry in choice.line.port.gids.values())
    links = network.links if network and isinstance(network.links, tuple) else ()
    return bool(links) and gid.interface not in {link.name for link in links}


def has_ipv4(line: FabricPort) -> bool:
    """Whether a port has a GID of type RoCE v2 with an IPv4 address."""
    gids = line.port.gids.values()
    return any(isinstance(address(gid), IPv4Address) for gid in gids if gid.kind == V2 and usable(gid))


def subnet_of(line: FabricPort, gid: Gid | None) -> str:
    """Return the subnet of a GID's address on its node, '' if unknown."""
    own = str(address(gid)) if gid is not None and usable(gid) else ""
    interfaces = line.node.interfaces if isinstance(line.node.interfaces, tuple) else ()
    return next((subnet(i) or "" for i in interfaces if i.address == own), "")
