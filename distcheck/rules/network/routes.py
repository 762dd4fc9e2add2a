"""Rules about routes: networks that are not connected, and the interface by which the kernel sends."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.addresses import is_here
from distcheck.rules.network.attempts import Ways, reason
from distcheck.rules.network.explained_trials import Unrouted, unrouted
from distcheck.rules.network.interface_cases import FaultyChoice, each_case, setting
from distcheck.rules.network.interface_choices import (
    LIBRARIES,
    NAMES,
    Choice,
    Library,
    link_of,
    looks_virtual,
    milder,
    severity,
    within,
)
from distcheck.rules.network.path_uses import adapters_beside, path_uses
from distcheck.rules.network.selected_interfaces import survey
from distcheck.rules.network.translation import HOST_NETWORK
from distcheck.rules.network.trials import by_way
from distcheck.rules.wording import are, found, grouped, listed, named, once
from distcheck.selection.interfaces import subnet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface, Link
    from distcheck.rules.finding import Severity

_SHOWN = 8
"""Nodes shown in a finding's commands."""
_LONE = {32, 128}
"""Prefix lengths of an address that belongs to the node and no subnet, as with routing on the host (BGP)."""


@rule("peers", scope=("rank", "link", "system"))
def net_subnet_mismatch(job: Job) -> Iterator[Outcome]:
    """Nodes use interfaces in networks that are not connected to each other.

    The ranks meet at MASTER_ADDR. Then NCCL or Gloo connects to addresses of another network and times out between some
    pairs. NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names the wrong network, or one node's interface has an address of
    another network. Or rank 0 runs in a virtual machine, in WSL2 or in a container, behind address translation: its
    host forwards MASTER_PORT, and no other port.

    Found by comparing the subnets of the interfaces in use, where connections to these addresses failed and others
    worked; by the address at which another node sees a node, where none of the node's interfaces has it; and by the
    kernel's answer that there is no route (errno 101). Routed subnets are not a fault.

    Fix: name the interface of the common network on these nodes, or correct their addresses. Instead of forwarding
    ports use bridged or mirrored networking, the host's network, or a VPN between all nodes.
    """
    yield from each_case(job, _in_other_network)
    for use in path_uses(job) if unrouted(job) else ():
        tried = set(map(id, use.job.peers))
        yield from map(use.judged, _unrouted(use.job, [u for u in unrouted(job) if id(u.trial) in tried]))


def _in_other_network(case: FaultyChoice) -> Fault | None:
    if case.flaw != "other-network" and (case.flaw != "unreachable" or not case.by_hand):
        return None
    doubtful = case.flaw == "unreachable" and case.unproven
    return Fault(
        f"{case.uses}, which is not in the other nodes' network; expected {case.way}",
        Fix("Make all nodes use interfaces of one network.", case.use),
        severity="warning" if doubtful else "error",
    )


def _unrouted(job: Job, lost: list[Unrouted]) -> Iterator[Fault]:
    """Yield the nodes behind address translation, and the paths without a route."""
    nodes = {node.key: node for node in job.nodes}
    behind = {u.target: u for u in reversed(lost) if u.seen_at}
    if behind:
        hidden = [node for node in job.nodes if node.key in behind]
        names = [node.name for node in hidden]
        first = behind[hidden[0].key]
        yield found(
            job,
            job.ranks_on(*hidden),
            f"{listed(names)} {are(names)} behind address translation or port forwarding: the others see {names[0]} at "
            f"{first.seen_at}, which none of its interfaces has, and {nodes[first.source].name} cannot reach its own "
            f"address {first.trial.address} ({reason(first.trial)})",
            Fix(
                "NCCL and Gloo listen on ephemeral ports at a node's own address, so a forwarded MASTER_PORT is not "
                f"enough. Give {listed(names)} an address that the other nodes reach: {HOST_NETWORK}; or use a VPN on "
                "all nodes.",
                tuple(
                    f"# in %USERPROFILE%\\.wslconfig on the Windows host of {node.name}, then wsl --shutdown: "
                    "[wsl2] networkingMode=mirrored"
                    if "microsoft" in node.kernel.lower()
                    else f"ip -brief address  # on {node.name}: an address that the other nodes reach is missing"
                    for node in hidden[:_SHOWN]
                ),
            ),
            owner="admin",
            evidence={n.name: f"seen at {behind[n.key].seen_at}, has {behind[n.key].trial.address}" for n in hidden},
        )
    without = [u for u in lost if not u.seen_at]
    if without:
        asking = {nodes[source].name: several[0] for source, several in grouped(without, lambda u: u.source).items()}
        yield Ways(job, by_way(job)).finding(
            {(u.source, u.target): reason(u.trial) for u in without},
            "reach",
            "without a route",
            Fix(
                "Add the route, or use interfaces of one network. A virtual machine, WSL2 or a container must use "
                f"its host's network ({HOST_NETWORK}) or a VPN.",
                tuple(f"ip route get {u.trial.address}  # on {name}" for name, u in list(asking.items())[:_SHOWN]),
            ),
        )


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
def _rivals(job: Job) -> list[Rival]:
    """Return the adapters that take another one's traffic, at most one for each choice and library."""
    seen = survey(job)
    sent: dict[tuple[str, str], tuple[str, str]] = {}
    for trial in job.peers:
        for use in trial.uses if trial.sent_from else ():
            sent.setdefault((trial.source, use), (trial.address, trial.sent_from))
    found: list[Rival] = []
    for choice in seen.choices if seen.several else ():
        for library in LIBRARIES:
            used = next(iter(choice.taken(library)), None)
            if used is None or not used.up or is_here(used.address):
                continue
            rival = _detour(choice, library, used, sent) if sent else None
            if rival is None and (other := _beside(choice, used)):
                rival = Rival(choice, library, used, other, "")
            found += [rival] if rival else []
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
    head = ".".join([*used.address.split(".")[:octets], ""]) if octets < 4 else used.address
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
    return link_of(choice.node, interface.name.partition(":")[0])


@rule("peers", severity="warning", scope="rank", owner="admin")
def net_two_nics_one_subnet(job: Job) -> Iterator[Outcome]:
    """Traffic of NCCL or Gloo goes through another adapter than the one that they use.

    NCCL and Gloo listen at the address of their interface, but the kernel's routes decide by which adapter packets
    leave. With two adapters in one subnet they leave by that of the first or cheapest route, such as a wireless or a
    management adapter, and GLOO_SOCKET_IFNAME does not change that. Either adapter also answers when others ask for the
    hardware address of the one (ARP), so packets may arrive at the wrong one.

    Found by the source address that the kernel chose for the connections to other nodes, and by the subnets of the
    adapters. It is an info where the adapters report the same rate, unless the kernel sends by another one than a
    variable names, and where NCCL uses InfiniBand or RoCE adapters. Addresses of one adapter, a bond and its members,
    and adapters with arp_ignore are not compared.

    Fix: give each adapter a subnet of its own (its mask), or the one to use the lower metric; or name the interface by
    which the kernel sends.
    See: https://www.kernel.org/doc/Documentation/networking/ip-sysctl.rst
    """
    weighed = [(weight, r) for r in _rivals(job) if (weight := _weight(job, r))]
    for (weight, _), several in grouped(weighed, lambda item: (item[0], _kind(item[1]))).items():
        alike = [rival for _, rival in several]
        chosen = setting(alike[0].choice, alike[0].library)
        ranks = list({id(rank): rank for r in alike for rank in r.choice.ranks}.values())
        there = {r.choice.node.name: f"{_place(r.used)}, {_place(r.other)}" for r in alike[:_SHOWN]}
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {_contest(alike, chosen)}",
            _one_adapter(alike),
            severity=weight,
            evidence=({"setting": chosen} if chosen else {}) | there,
        )


def _weight(job: Job, rival: Rival) -> Severity | None:
    """Return how grave it is, None if --backend excludes the library."""
    chosen = rival.choice.chosen(rival.library)
    worst = severity(job, rival.library, chosen=chosen)
    only_meets = rival.library == "nccl" and bool(adapters_beside(job, rival.choice.node, rival.used.name))
    as_fast = rival.rates[0] == rival.rates[1] and not (rival.peer and chosen)
    return milder(worst, "info" if only_meets or as_fast else "warning") if worst else None


def _kind(rival: Rival) -> tuple[object, ...]:
    """Return what the findings of one message have in common; NCCL and Gloo share one where nothing is set."""
    chosen = setting(rival.choice, rival.library)
    return rival.used.name, rival.other.name, rival.rates, bool(rival.peer), chosen, chosen and rival.library


def _contest(alike: list[Rival], chosen: str) -> str:
    """Return which adapter is used, and which one takes its traffic."""
    first = alike[0]
    libraries = sorted({NAMES[r.library] for r in alike}, reverse=True)
    use = f"{listed(libraries)} {'use' if len(libraries) > 1 else 'uses'}"
    used, other = (
        f"{_place(i)[:-1]}, {f'{rate} Mbit/s' if rate else 'no rate reported'})"
        for i, rate in zip((first.used, first.other), first.rates, strict=True)
    )
    net = subnet(first.used)
    if not first.peer:
        return f"{used}, which {use}, and {other} are both in {net}: packets to one may arrive at the other"
    why = f"both are in {net}" if net and subnet(first.other) == net else f"{first.used.name} is not the route to it"
    set_by = f" by {chosen}" if chosen else ""
    return f"{use} {used}{set_by}, but {first.choice.node.name} sends to {first.peer} through {other}; {why}"


def _place(interface: Interface) -> str:
    return f"{interface.name} ({interface.address})"


def _one_adapter(alike: list[Rival]) -> Fix:
    """Return the fix that has one adapter take all traffic: the one that is named, or the faster one."""
    first, nodes = alike[0], [r.choice.node.name for r in alike[:_SHOWN]]
    used, other = first.used.name, first.other.name
    if not first.peer:
        text = f"Give {used} and {other} subnets of their own, or have each answer ARP for its own address only."
        arp = "sudo sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
        return Fix(text, tuple(f"{arp}  # on {node}" for node in nodes))
    faster = first.rates[1] > first.rates[0] and (first.rates[0] > 0 or not first.choice.chosen(first.library))
    if faster or subnet(first.used) != subnet(first.other):
        names = {"nccl": f"NCCL_SOCKET_IFNAME={quote('=' + other)}", "gloo": f"GLOO_SOCKET_IFNAME={quote(other)}"}
        exports = dict.fromkeys(f"export {names[r.library]}" for r in alike)
        return Fix(f"Name {other}, by which the kernel sends, or give {used} the route.", tuple(exports))
    text = f"Give {other} a subnet of its own (its mask) or a higher metric, so that {used} is used; or name {other}."
    change = f"dev {quote(other)} metric 4096"
    those = [(f"{r.other.address}/{r.other.prefix_bits}", r.choice.node.name) for r in alike[:_SHOWN]]
    return Fix(text, tuple(f"sudo ip address change {address} {change}  # on {node}" for address, node in those))
