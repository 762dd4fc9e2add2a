"""Whether the interfaces of NCCL and Gloo fit together and can be reached."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from distcheck.rules.job.addresses import canonical, is_here, resolved
from distcheck.rules.network.interface_choices import (
    LIBRARIES,
    Choice,
    Library,
    choices,
    interfaces_of,
    link_local,
    link_of,
    looks_virtual,
    misspelt,
    only_this_host,
    outside,
    over_nodes,
    sharing,
    within,
)
from distcheck.rules.network.translation import translated
from distcheck.rules.network.trials import between_nodes
from distcheck.rules.wording import once
from distcheck.selection.interfaces import IFNAME, decides, subnet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface, Link
    from distcheck.facts.node import NodeFacts

Flaw = Literal[
    "", "syntax", "nothing", "here", "link-local", "duplicate", "down", "family", "other-network", "unreachable",
    "slow",
]  # fmt: skip
Standing = Literal["met", "missed", "closed", "untried"]
K = TypeVar("K")
_SLOWER = 4
"""How many times slower than the link to rank 0 a link must be to count as the wrong one."""


class Reach(NamedTuple):
    """How nodes reached addresses of other nodes: the key of the node and the address."""

    met: frozenset[tuple[str, str]]
    failed: frozenset[tuple[str, str]]
    doors: frozenset[tuple[str, str]]
    """Endpoints at which a node and rank 0 reach each other."""
    nodes_met: frozenset[str]
    purposes: frozenset[tuple[str, str, str]]
    """The uses for which each address was tried."""

    def standing(self, node: NodeFacts, address: str) -> Standing:
        """Return how an address of a node is reached.

        met: from at least one other node. missed: from none, although the node is reached at another address.
        closed: neither the address nor the node is reached. untried: no node tried.
        """
        here = (node.key, canonical(address))
        if here in self.met:
            return "met"
        if here not in self.failed:
            return "untried"
        return "missed" if node.key in self.nodes_met else "closed"


def reach(job: Job) -> Reach:
    """Return the trials between nodes, summed up by target address."""
    tried = {(target, t.address, t.uses, t.connected) for _, target, t in between_nodes(job)}
    ends = [(key, canonical(address), uses, met) for key, address, uses, met in tried]
    met = frozenset((key, address) for key, address, _, met in ends if met)
    return Reach(
        met,
        frozenset((key, address) for key, address, _, met in ends if not met),
        frozenset((key, address) for key, address, uses, _ in ends if "master" in uses),
        frozenset(key for key, _ in met),
        frozenset((key, address, use) for key, address, uses, _ in ends for use in uses),
    )


def own_way(job: Job, reach: Reach, node: NodeFacts) -> Interface | None:
    """Return the interface through which a node and rank 0 reach each other, None if unknown.

    Known from the trials, else from MASTER_ADDR, else from the subnet shared with most other nodes.
    """
    doors = reach.doors
    known = next((i for i in interfaces_of(node) if (node.key, canonical(i.address)) in doors and outside(i)), None)
    if known is not None:
        return known
    rest = [i for i in interfaces_of(node) if outside(i)]
    masters = frozenset[str]().union(*(resolved(job, r) for r in job.ranks_on(node)[:1]))
    known = next((i for i in rest if canonical(i.address) in masters or any(within(i, m) for m in masters)), None)
    if known is not None:
        return known
    likely = [i for i in rest if not looks_virtual(node, i)]
    return max(likely, key=lambda i: sharing(job, node, i), default=None)


class Survey(NamedTuple):
    """All choices of a job, seen together."""

    job: Job
    several: bool
    choices: list[Choice]
    reach: Reach
    shared: dict[str, list[NodeFacts]]
    """Nodes that have the same address, by address; without container bridges."""
    usual_subnet: dict[Library, str | None]
    """The subnet of most nodes' first interface, None when no subnet is the most common."""
    usual_family: dict[Library, bool | None]
    """Whether most nodes' first interface has an IPv6 address, None when both are equally common."""
    cut_off: frozenset[tuple[str, Library]]
    """Nodes that reached none of the addresses they tried of those that other nodes use for a library."""

    known: dict[Library, list[tuple[Choice, Flaw]]]
    """Cache of the faulty choices."""

    def faulty(self, library: Library) -> list[tuple[Choice, Flaw]]:
        """Return the choices for a library that have a fault, each with the one that it has."""
        if library not in self.known:
            judged = ((choice, self._fault(choice, library)) for choice in self.choices)
            self.known[library] = [(choice, fault) for choice, fault in judged if fault]
        return self.known[library]

    def _fault(self, choice: Choice, library: Library) -> Flaw:
        taken = choice.taken(library)
        if library == "nccl" and misspelt(choice.settings.get(IFNAME, "")) and decides(choice.settings.get(IFNAME)):
            return "syntax"
        if not taken:
            return "nothing"
        if not self.several:
            return ""
        first = taken[0]
        standing = self.reach.standing(choice.node, first.address)
        if standing != "met":
            if only_this_host(choice.node, first):
                return "here"
            if link_local(first.address):
                return "link-local"
            if first.address in self.shared:
                return "duplicate"
            if not first.up:
                return "down"
        # NCCL connects to either family; Gloo rejects a pair of IPv4 and IPv6.
        if (standing != "met" or library == "gloo") and self.usual_family[library] != (":" in first.address):
            return "family"
        if self._in_other_network(choice, library):
            return "other-network"
        if self.unreachable(choice, library):
            return "unreachable"
        return "slow" if library == "gloo" and not choice.gloo_names and self._slower(choice) else ""

    def unreachable(self, choice: Choice, library: Library) -> list[Interface]:
        """Return the interfaces in use at which the others do not reach the node, only elsewhere."""
        return [
            interface
            for n, interface in enumerate(choice.taken(library))
            if self.several
            and not is_here(interface.address)
            and self._is_unreachable(choice, library, interface, first=n == 0)
        ]

    def _slower(self, choice: Choice) -> bool:
        """Whether the link to rank 0 is far faster than the one that Gloo uses."""
        own, way = link_of(choice.node, choice.taken("gloo")[0].name), self.way(choice)
        other = link_of(choice.node, way.name) if way else None
        speeds = [link.speed_Mbps if link else None for link in (own, other)]
        return bool(speeds[0] and speeds[1] and speeds[0] * _SLOWER <= speeds[1])

    def way(self, choice: Choice) -> Interface | None:
        """Return the interface that the libraries should use."""
        return own_way(self.job, self.reach, choice.node)

    def _is_unreachable(self, choice: Choice, library: Library, interface: Interface, *, first: bool) -> bool:
        standing = self.reach.standing(choice.node, interface.address)
        purpose = (choice.node.key, canonical(interface.address), library)
        if standing == "met" or interface.address in self.shared or not (first or purpose in self.reach.purposes):
            return False
        if standing == "missed" and not choice.variable(library):
            return True
        # Where other nodes have addresses in its subnet, a firewall is the cause.
        if subnet(interface) is None or sharing(self.job, choice.node, interface):
            return False
        if standing == "missed":
            return True
        if not first or not looks_virtual(choice.node, interface):
            return False
        way = self.way(choice)
        return way is not None and way.name != interface.name and sharing(self.job, choice.node, way) > 0

    def _in_other_network(self, choice: Choice, library: Library) -> bool:
        first, usual = choice.taken(library)[0], self.usual_subnet[library]
        return (
            (choice.node.key, library) in self.cut_off
            and usual is not None
            and subnet(first) not in {None, usual}
            and not looks_virtual(choice.node, first)
        )


@once
def survey(job: Job) -> Survey:
    """Return the choices of the libraries on all nodes, and how they fit together."""
    chosen, repeated = _with_repeated(choices(job))
    if repeated:  # virtual machines behind address translation may have the same address, each in its own network
        repeated = [(choice, i) for choice, i in repeated if choice.node.key not in translated(job)]
    reached = reach(job)
    subnets: dict[Library, str | None] = {}
    families: dict[Library, bool | None] = {}
    known: list[Interface] | None = None
    for library in LIBRARIES:
        first = {c.node.key: taken[0] for c in chosen if (taken := c.taken(library))}
        usable = [i for i in first.values() if not is_here(i.address) and not link_local(i.address)]
        if usable != known:  # in most jobs both libraries use the same interfaces
            known, net, family = usable, commonest(map(subnet, usable)), commonest(":" in i.address for i in usable)
        subnets[library], families[library] = net, family
    tried: dict[tuple[str, Library], set[bool]] = {}
    for source, _, trial in between_nodes(job):
        for library in () if "master" in trial.uses else LIBRARIES:
            if library in trial.uses:
                tried.setdefault((source, library), set()).add(trial.connected)
    cut_off = frozenset(key for key, outcomes in tried.items() if outcomes == {False})
    return Survey(
        job, over_nodes(job), chosen, reached, duplicates(chosen, repeated, reached), subnets, families, cut_off, {}
    )


def _with_repeated(choices: Iterable[Choice]) -> tuple[list[Choice], list[tuple[Choice, Interface]]]:
    """Return choices, and their interfaces with an address that another node has, too, without those inside a machine.

    The addresses of a node are looked at right after its choice, while they are in the processor's caches.
    """
    chosen: list[Choice] = []
    first_at: dict[str, Choice] = {}
    again: list[tuple[Choice, Interface]] = []
    for choice in choices:
        chosen.append(choice)
        again += [
            (choice, i)
            for i in choice.interfaces
            if i.address[:5] != "fe80:" and first_at.setdefault(i.address, choice).node is not choice.node
        ]
    addresses = {i.address for _, i in again}
    addresses = {a for a in addresses if not is_here(a) and not link_local(a)}
    first = [(first_at[a], i) for a in addresses for i in first_at[a].interfaces if i.address == a]
    return chosen, first + [(choice, i) for choice, i in again if i.address in addresses]


def duplicates(
    chosen: list[Choice], repeated: Iterable[tuple[Choice, Interface]], reached: Reach
) -> dict[str, list[NodeFacts]]:
    """Return the nodes that have the same address on different links, by address.

    An address counts if, on one of the nodes, a library uses it, it is the path to rank 0, or its link is a physical
    device. Addresses of bridges and tunnels, which are the same on every host, and those inside a machine do not count.
    """
    holders: dict[str, dict[str, tuple[NodeFacts, Link]]] = {}
    for choice, i in repeated:
        if not i.up or i.name.startswith("docker") or looks_virtual(choice.node, i):
            continue
        link = link_of(choice.node, i.name)
        if link is not None:
            holders.setdefault(i.address, {})[choice.node.key] = (choice.node, link)
    several = {a: those for a, those in holders.items() if len(those) > 1}
    used = set(reached.doors)
    for choice in chosen if several else ():
        used |= {(choice.node.key, i.address) for library in LIBRARIES for i in choice.taken(library)}
    return {
        address: [node for node, _ in those.values()]
        for address, those in several.items()
        if len({link.mac for _, link in those.values()}) == len(those)
        and any(link.kind == "physical" or (key, address) in used for key, (_, link) in those.items())
    }


def commonest(values: Iterable[K]) -> K | None:
    """Return the most frequent value, None on a tie."""
    ranked = Counter(values).most_common(2)
    return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None
