"""The fixes that open the nodes' ephemeral ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules.finding import Fix
from distcheck.rules.network.interface_choices import interfaces_of, looks_virtual, outside
from distcheck.rules.wording import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.rules.network.trials import Way


def opened(job: Job, on: str) -> Fix:
    """Return the fix that opens the nodes' configured ephemeral ports; `on` names those that close them."""
    ranges = [node.ephemeral_ports for node in job.nodes if isinstance(node.ephemeral_ports, tuple)]
    look = f"sysctl net.ipv4.ip_local_port_range  # on {on}"
    if not ranges:
        return Fix("Allow TCP between the nodes on the ephemeral ports.", (look,))
    first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
    text = f"Allow TCP between the nodes on their ephemeral ports, {first} to {last}."
    return Fix(text, (f"sudo firewall-cmd --add-port={first}-{last}/tcp  # on {on}", look))


def one_way(job: Job, failed: Collection[Way]) -> tuple[Fix, list[NodeFacts]]:
    """Return for paths whose other direction works the fix, and the nodes that are certainly at fault.

    A node with one adapter filters what comes in. One with several may also drop what comes in by another adapter than
    it would answer by.
    """
    ends = [{way[end] for way in failed} for end in (0, 1)]
    # Without such nodes these are the processes of one node.
    sources, targets = ([node for node in job.nodes if node.key in keys] or list(job.nodes) for keys in ends)
    at, why = targets, f"A filter on {_names(targets)} stops what comes in."
    if len(sources) < len(targets):
        at = sources
        why = f"The output rules of {_names(at)}, or rules on {_names(targets)} for its address, stop its connections."
    fix = opened(job, _names(at))
    text, commands = f"{why} {fix.text}", (f"sudo nft list ruleset  # on {_names(at)}", *fix.commands)
    if several := [node for node in targets if len(_adapters(node)) > 1]:
        text += f" {_names(several)}, with several adapters, may also drop packets by reverse path filtering."
        commands += (f"sudo sysctl -w net.ipv4.conf.all.rp_filter=2  # on {_names(several)}",)
    certain = at is targets and all(len(_adapters(node)) == 1 for node in (*sources, *targets))
    return Fix(text, commands), targets if certain else []


def _names(nodes: Iterable[NodeFacts]) -> str:
    return listed([node.name for node in nodes])


def _adapters(node: NodeFacts) -> set[str]:
    """Return the adapters of a node that other nodes may reach; an alias (eth0:1) is no other adapter."""
    return {i.name.partition(":")[0] for i in interfaces_of(node) if outside(i) and not looks_virtual(node, i)}
