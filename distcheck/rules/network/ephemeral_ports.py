"""How many ephemeral ports a job needs on a node, and the fixes that open them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules.finding import Fix
from distcheck.rules.job.settings import number
from distcheck.rules.network.interface_choices import interfaces_of, looks_virtual, outside
from distcheck.rules.wording import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.network.trials import Way

_CHANNELS = 32
"""NCCL's maximum for collectives (MAXCHANNELS); NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS lower it."""
_NEIGHBOURS = 5
"""Ranks that a rank sends to in a channel: the next in the ring; in the tree one parent and up to three children."""
_SOCKETS = 16
"""Data sockets per connection by default: 2 threads with 8 each on AWS, 4 on Google Cloud, elsewhere 1."""
_MOST_SOCKETS = 64
_STEP = 1000
_SHOWN = 8
"""Nodes shown in a finding's evidence."""


def ports_needed(job: Job) -> int:
    """Return the most ports of `ip_local_port_range` that a node needs, in whole thousands.

    Every rank connects to every other one (Gloo's full mesh, NCCL's bootstrap) and listens for these connections. With
    NCCL over sockets it listens for, and connects to, five neighbours in every channel, each time with the data sockets
    and one for control. Each socket counts as one port, so that none is shared.
    Source: https://github.com/NVIDIA/nccl/blob/master/src/transport/net_socket.cc (ncclNetSocketGetNsockNthread),
    src/include/device.h (MAXCHANNELS, NCCL_MAX_TREE_ARITY); pytorch/gloo, gloo/rendezvous/context.cc (connectFullMesh)
    """
    here = max((len(job.ranks_on(node)) for node in job.nodes), default=1)
    per_rank = (job.world_size or len(job.ranks)) + 1
    if job.backend == "nccl":
        per_rank += _channels(job.ranks) * _NEIGHBOURS * (_sockets(job.ranks) + 2)
    return -(-max(here, 1) * per_rank // _STEP) * _STEP


def _channels(ranks: Iterable[RankFacts]) -> int:
    limits = (number(rank, name) for rank in ranks for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"))
    return min(_CHANNELS, max((limit for limit in limits if limit and limit > 0), default=_CHANNELS))


def _sockets(ranks: Iterable[RankFacts]) -> int:
    chosen = []
    for rank in ranks:
        threads, each = number(rank, "NCCL_SOCKET_NTHREADS"), number(rank, "NCCL_NSOCKS_PERTHREAD")
        if threads or each:
            chosen.append(max(1, threads or 1) * max(1, each or 1))
    return min(_MOST_SOCKETS, max(chosen, default=_SOCKETS))


def opened(job: Job, on: str = "") -> Fix:
    """Return the fix that opens the nodes' configured ephemeral ports; `on` names those that close them, if known."""
    ranges = [node.ephemeral_ports for node in job.nodes if isinstance(node.ephemeral_ports, tuple)]
    needed = ports_needed(job)
    enough = f"This job needs up to {needed} of them per node"
    if not ranges:
        text = f"Allow TCP between the nodes on the ephemeral ports. {enough}: keep the range at least that wide."
        return Fix(text, ("sysctl net.ipv4.ip_local_port_range",))
    first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
    text = f"Allow TCP between the nodes on their ephemeral ports, {first} to {last}. {enough}"
    if needed <= last - first:
        text += ": if you narrow the range, keep it at least that wide, and the same on all nodes."
    else:
        text += ", more than the range has: also widen net.ipv4.ip_local_port_range, or use fewer sockets."
    where = f"  # on {on}" if on else ""
    open_up = f"sudo firewall-cmd --add-port={first}-{last}/tcp{where}"
    return Fix(text, (open_up, f"sysctl net.ipv4.ip_local_port_range{where}"))


def one_way(job: Job, failed: Collection[Way]) -> tuple[Fix, dict[str, str], list[NodeFacts]]:
    """Return for paths whose other direction works the fix, evidence, and the nodes that are certainly at fault.

    A node with one adapter filters what comes in. One with several may also drop what comes in by another adapter than
    it would answer by.
    """
    ends = [{way[end] for way in failed} for end in (0, 1)]
    sources, targets = ([node for node in job.nodes if node.key in keys] for keys in ends)
    if not targets:  # the processes of one node
        sources = targets = list(job.nodes)
    adapters = {node.key: _adapters(node) for node in (*sources, *targets)}
    several = [node.name for node in targets if len(adapters[node.key]) > 1]
    at, why = targets, f"A filter on {_names(targets)} stops what comes in."
    if len(sources) < len(targets):
        at = sources
        why = f"The output rules of {_names(at)}, or rules on {_names(targets)} for its address, stop its connections."
    fix = opened(job, _names(at))
    text, commands = f"{why} {fix.text}", (f"sudo nft list ruleset  # on {_names(at)}", *fix.commands)
    if several:
        text += f" {listed(several)}, with several adapters, may also drop packets by reverse path filtering."
        commands += (f"sudo sysctl -w net.ipv4.conf.all.rp_filter=2  # on {listed(several)}",)
    evidence = {f"adapters of {node.name}": ", ".join(adapters[node.key]) for node in targets[:_SHOWN]}
    certain = at is targets and all(len(own) == 1 for own in adapters.values())
    return Fix(text, commands), evidence, targets if certain else []


def _names(nodes: Iterable[NodeFacts]) -> str:
    return listed([node.name for node in nodes])


def _adapters(node: NodeFacts) -> list[str]:
    """Return the adapters of a node that other nodes may reach; an alias (eth0:1) is no other adapter."""
    real = (i for i in interfaces_of(node) if outside(i) and not looks_virtual(node, i))
    return list(dict.fromkeys(i.name.partition(":")[0] for i in real))
