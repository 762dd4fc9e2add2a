"""Nodes behind address translation or port forwarding, such as virtual machines, WSL2 and containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.rank import Role
from distcheck.rules.job.addresses import canonical, is_address, own_addresses
from distcheck.rules.job.kinds import ranks_with
from distcheck.rules.network.interface_choices import interfaces_of, within
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts

NO_ROUTE = "(errno 101)"
"""Linux's ENETUNREACH: the source itself has no route. EHOSTUNREACH (113) may also be a firewall's answer."""
HOST_NETWORK = "bridged networking for a virtual machine, mirrored for WSL2, the host's network for a container"


@once
def translated(job: Job) -> dict[str, str]:
    """Return the address at which others see a node, by its key, where none of its interfaces has that address.

    Pods do not count: a service's address leads to a pod that the others also reach at its own address.
    """
    leader = next((p for p in job.processes if p.role is Role.LEADER), None)
    if leader is None or ranks_with(job, lambda r: "KUBERNETES_SERVICE_HOST" in r.environment):
        return {}
    nodes = {node.key: node for node in job.nodes}
    own = own_addresses(nodes[leader.node])
    met = (a for p in job.processes if p.node != leader.node for a in p.attempts if own and a.outcome == "met")
    forwards = next((a.address for a in met if is_address(a.address) and canonical(a.address) not in own), "")
    found = {leader.node: forwards} if forwards else {}
    for process in job.processes:
        # Behind a proxy, rank 0's node sees the others at the proxy's address in its own network.
        proxied = forwards and neighbours(nodes[leader.node], process.seen_at)
        if process.seen_at and process.node != leader.node and not proxied:
            found[process.node] = process.seen_at
    return found


def neighbours(node: NodeFacts, address: str) -> bool:
    """Whether an address that is not a node's own lies in the subnet of one of its interfaces."""
    return address not in own_addresses(node) and any(i.up and within(i, address) for i in interfaces_of(node))
