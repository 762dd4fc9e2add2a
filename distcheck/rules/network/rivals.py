"""Adapters that take the traffic of the one that NCCL or Gloo uses: by the kernel's route, or in the same subnet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.rules.job.addresses import is_here
from distcheck.rules.network.interface_choices import LIBRARIES, Choice, Library, looks_virtual, within
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.wording import once
from distcheck.selection.interfaces import subnet

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface, Link

_LONE = {32, 128}
"""Prefix lengths of an address that belongs to the node and no subnet, as with routing on the host (BGP)."""


class Rival(NamedTuple):
    """An adapter that takes, or may take, the traffic of the one that a library uses on a node."""

    choice: Choice
    library: Library
    used: Interface
    other: Interface
    peer: str
    """An address to which the kernel sends by the other adapter; empty if packets may only arrive there."""

    @property
    def rates(self) -> tuple[int, int]:
        """The rates that the two adapters report in Mbit/s, 0 where one reports none."""
        used, other = (_link(self.choice, interface) for interface in (self.used, self.other))
        return (used.speed_Mbps or 0) if used else 0, (other.speed_Mbps or 0) if other else 0


@once
def rivals(job: Job) -> list[Rival]:
    """Return the adapters that take another one's traffic, at most one for each choice and library."""
    seen = survey(job)
    sent: dict[tuple[str, str], tuple[str, str]] = {}
    for trial in job.peers:
        for use in trial.uses if trial.sent_from else ():
            sent.setdefault((trial.source, use), (trial.address, trial.sent_from))
    found: list[Rival] = []
    for choice in seen.choices if seen.several else ():
        beside: dict[str, Interface | None] = {}
        for library in LIBRARIES:
            used = next(iter(choice.taken(library)), None)
            if used is None or not used.up or is_here(used.address):
                continue
            if used.address not in beside:
                beside[used.address] = _beside(choice, used)
            other = beside[used.address]
            rival = Rival(choice, library, used, other, "") if other else None
            found += [r for r in [_detour(choice, library, used, sent) if sent else None, rival] if r][:1]
    return found


def _detour(
    choice: Choice, library: Library, used: Interface, sent: dict[tuple[str, str], tuple[str, str]]
) -> Rival | None:
    """Return the adapter by which the kernel sends to another node, if that is not the one in use.

    A route through another adapter of the same rate is no detour where the other node is not in the subnet: hosts with
    several uplinks share the traffic among them.
    """
    for process in dict.fromkeys(rank.process for rank in choice.ranks):
        peer, source = sent.get((process, library), ("", ""))
        other = next((i for i in choice.interfaces if i.address == source), None)
        if other is None or _same(used, other) or is_here(source):
            continue
        if not _LONE.isdisjoint((used.prefix_bits, other.prefix_bits)):
            continue
        rival = Rival(choice, library, used, other, peer)
        if within(used, peer) or (all(rival.rates) and rival.rates[0] > rival.rates[1]):
            return rival
    return None


def _beside(choice: Choice, used: Interface) -> Interface | None:
    """Return another adapter in the subnet of the one in use, at which its packets may arrive.

    Either adapter answers when others ask for the hardware address of the one (ARP), unless arp_ignore is set. IPv6
    has no ARP.
    """
    net = subnet(used)
    if ":" in used.address or not used.prefix_bits or net is None:
        return None
    octets = used.prefix_bits // 8  # few addresses begin alike; only these are compared exactly
    head = "".join(f"{octet}." for octet in used.address.split(".")[:octets]) if octets < 4 else used.address
    for i in choice.interfaces:
        if not i.address.startswith(head) or not i.up or _same(used, i) or subnet(i) != net:
            continue
        links = _link(choice, used), _link(choice, i)
        bonded = any(link is not None and not {used.name, i.name}.isdisjoint(link.members) for link in links)
        quiet = all(link is not None and link.arp_ignore for link in links)
        if not (bonded or quiet or looks_virtual(choice.node, i)):
            return i
    return None


def _same(one: Interface, other: Interface) -> bool:
    """Whether two addresses belong to one adapter; eth0:1 is a label of an address of eth0."""
    return one.name.partition(":")[0] == other.name.partition(":")[0]


def _link(choice: Choice, interface: Interface) -> Link | None:
    links = () if isinstance(choice.network.links, Missing) else choice.network.links
    return next((link for link in links if link.name == interface.name.partition(":")[0]), None)
