"""The rule about networks that are not connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.network.attempts import Ways, reason
from distcheck.rules.network.explained_trials import Unrouted, unrouted
from distcheck.rules.network.interface_cases import FaultyChoice, each_case
from distcheck.rules.network.path_uses import path_uses
from distcheck.rules.network.translation import HOST_NETWORK
from distcheck.rules.network.trials import by_way
from distcheck.rules.wording import are, found, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_SHOWN = 8
"""Nodes shown in a finding's commands."""


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
                    f"ip -brief address  # on {name}: an address that others reach is missing"
                    for name in names[:_SHOWN]
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
