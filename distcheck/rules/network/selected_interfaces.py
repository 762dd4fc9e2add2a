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
    severity,
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
    to_rank_0: frozenset[tuple[str, str]]
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
    met = (i for i in interfaces_of(node) if (node.key, canonical(i.address)) in reach.to_rank_0 and outside(i))
    if known := next(met, None):
        return known
    usable = [i for i in interfaces_of(node) if outside(i)]
    masters = frozenset[str]().union(*(resolved(job, r) for r in job.ranks_on(node)[:1]))
    known = next((i for i in usable if canonical(i.address) in masters or any(within(i, m) for m in masters)), None)
    if known:
        return known
    likely = [i for i in usable if not looks_virtual(node, i)]
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
        by_name = library == "gloo" and not choice.gloo_names and severity(self.job, "gloo", chosen=False) == "error"
        return "slow" if by_name and self._slower(choice) else ""

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
    chosen, reached = list(choices(job)), reach(job)
    subnets: dict[Library, str | None] = {}
    families: dict[Library, bool | None] = {}
    for library in LIBRARIES:
        first = {c.node.key: taken[0] for c in chosen if (taken := c.taken(library))}
        usable = [i for i in first.values() if not is_here(i.address) and not link_local(i.address)]
        subnets[library], families[library] = (
            commonest(map(subnet, usable)),
            commonest(":" in i.address for i in usable),
        )
    tried: dict[tuple[str, Library], set[bool]] = {}
    for source, _, trial in between_nodes(job):
        for library in () if "master" in trial.uses else LIBRARIES:
            if library in trial.uses:
                tried.setdefault((source, library), set()).add(trial.connected)
    cut_off = frozenset(key for key, outcomes in tried.items() if outcomes == {False})
    return Survey(job, over_nodes(job), chosen, reached, _shared(job, chosen, reached), subnets, families, cut_off, {})


def _shared(job: Job, chosen: Iterable[Choice], reached: Reach) -> dict[str, list[NodeFacts]]:
    """Return the nodes that have the same address on different links, by address.

    An address counts if, on one of the nodes, a library uses it, it is the path to rank 0, or its link is a physical
    device. Addresses of bridges and tunnels, which are the same on every host, and those inside a machine do not count,
    nor do those of virtual machines behind address translation, each in its own network.
    """
    at: dict[str, dict[str, tuple[Choice, Interface]]] = {}
    for choice in chosen:
        for i in choice.interfaces:
            at.setdefault(i.address, {})[choice.node.key] = choice, i
    found = {}
    for address, those in at.items():
        if len(those) < 2 or is_here(address) or link_local(address):
            continue
        holders = [(choice, link) for choice, i in those.values() if (link := _own_link(job, choice, i))]
        used = any(
            link.kind == "physical"
            or (choice.node.key, address) in reached.to_rank_0
            or any(i.address == address for library in LIBRARIES for i in choice.taken(library))
            for choice, link in holders
        )
        if used and len(holders) == len({link.mac for _, link in holders}) > 1:
            found[address] = [choice.node for choice, _ in holders]
    return found


def _own_link(job: Job, choice: Choice, interface: Interface) -> Link | None:
    """Return the link of an address that a node has in the network of the others; None if it is inside a machine."""
    inside = not interface.up or interface.name.startswith("docker") or looks_virtual(choice.node, interface)
    return None if inside or choice.node.key in translated(job) else link_of(choice.node, interface.name)


def commonest(values: Iterable[K]) -> K | None:
    """Return the most frequent value, None on a tie."""
    ranked = Counter(values).most_common(2)
    return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None
