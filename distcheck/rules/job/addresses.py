"""What MASTER_ADDR and MASTER_PORT mean: how they are written, which host they name, and whether rank 0 is there."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from distcheck.facts import Missing
from distcheck.rules.job.settings import number
from distcheck.rules.wording import grouped, once, table_of
from distcheck.selection.interfaces import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts import Job, NodeFacts, RankFacts

# The ranks of a node share its addresses, and there may be 65,536 of them on 8,192 nodes.
_few = lru_cache(1 << 16)
_HERE = frozenset({"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"})
_MAPPED = bytes(10) + b"\xff\xff"
"""How an IPv4 address within IPv6 begins."""
_NODE_LIST = re.compile(r"[\w.-]*\[\d[\d,-]*\]")
_HOST_PORT = re.compile(r"^\[?([^\[\]]*?)\]?:(\d*)$")
# Resolvers say these of a name that another try may find (EAI_AGAIN); anything else is their last word.
_PASSING = re.compile(r"temporary|errno -3\b|try again|timed out", re.IGNORECASE)


@_few
def malformed(address: str) -> str:
    """Say what is wrong with the writing of an address, '' when it could be a host name or an IP address."""
    if "$" in address or "`" in address:
        return "a shell expression that was not expanded"
    if _NODE_LIST.search(address):
        return "a list of nodes that was not expanded"
    if "://" in address:
        return "an URL"
    if "," in address:
        return "a list of hosts"
    if address != address.strip():
        return "a host with a blank or a line break around it"
    if re.search(r"\s", address):
        return "more than one word"
    if "[" in address or "]" in address:
        return "an address in brackets"
    if address.count(":") == 1:
        return "a host with a port"
    return "a path or a network" if "/" in address else ""


def cleaned(address: str) -> str:
    """Return the host that a badly written address most likely means, '' when that cannot be told."""
    text = address.partition("://")[2] or address
    text = text.strip().split("/")[0]
    nodes = re.match(r"([\w.-]*)\[(\d+)", text)
    if nodes and ":" not in text:
        return nodes[1] + nodes[2]
    text = re.split(r"[,\s]", text)[0] if text else ""
    host = _HOST_PORT.match(text) if text.startswith("[") or text.count(":") == 1 else None
    text = host[1] if host else text.strip("[]")
    return "" if re.search(r"[$`(){}\[\]]", text) else text


@_few
def canonical(address: str) -> str:
    """Write an IP address in one way: without a zone, IPv4 inside IPv6 as IPv4; names stay as they are."""
    own = packed(address.partition("%")[0])
    if own is None:
        return address
    own = own.removeprefix(_MAPPED)
    return unpacked(own)


def is_address(text: str) -> bool:
    """Whether a text is an IP address and no name."""
    return bool(re.fullmatch(r"[\d.]+|.*:.*", text))


@_few
def is_here(address: str) -> bool:
    """Whether an address means "this very host" wherever it is used."""
    own = packed(canonical(address))
    if own is None:
        return address.lower() in _HERE
    return own[0] == 127 or not any(own) if len(own) == 4 else int.from_bytes(own, "big") < 2


def resolved(job: Job, rank: RankFacts) -> frozenset[str]:
    """Return the addresses that a rank's MASTER_ADDR means to it, empty when that is not known."""
    answer = job.process_of(rank).master_resolution
    if answer is None or isinstance(answer, Missing):
        return frozenset()
    return frozenset(canonical(a) for a in answer.addresses)


def unresolved(job: Job, rank: RankFacts) -> str:
    """Return the resolver's words when it did not find a rank's well-formed MASTER_ADDR, else ''."""
    answer = job.process_of(rank).master_resolution
    address = rank.placement.master_addr
    if not isinstance(answer, Missing) or not address or malformed(address):
        return ""
    return answer.reason or "no reason given"


def may_pass(reason: str) -> bool:
    """Whether the resolver's words leave it open that another try finds the name."""
    return bool(_PASSING.search(reason))


def own_addresses(node: NodeFacts) -> frozenset[str]:
    """Return the addresses at which a node can be reached, empty when they are not known."""
    if isinstance(node.interfaces, Missing):
        return frozenset()
    return frozenset(canonical(i.address) for i in node.interfaces)


def outward(addresses: frozenset[str]) -> frozenset[str]:
    """Leave out of a host's addresses those that nobody else can use, unless there are no others."""
    return frozenset(a for a in addresses if not is_here(a) and not a.startswith("fe80:")) or addresses


def first_open_port(node: NodeFacts) -> int:
    """Return the first port that needs no privilege; the kernel's default where it could not be read."""
    start = node.unprivileged_port_start
    return 1024 if isinstance(start, Missing) else start


def rank_zero(job: Job) -> RankFacts | None:
    """Return rank 0, None when it is not here or several claim to be it."""
    zeros = [r for r in job.ranks if r.placement.rank == 0]
    return zeros[0] if len(zeros) == 1 else None


def _reached(job: Job, rank: RankFacts) -> frozenset[str]:
    """Return what a rank's MASTER_ADDR means to it; empty for a name that nobody resolved."""
    address = canonical(rank.placement.master_addr or "")
    literal = is_here(address) or is_address(address)
    return resolved(job, rank) or (frozenset({address}) if literal else frozenset())


@once
def meanings(job: Job) -> dict[str, frozenset[str]]:
    """Return every well-formed MASTER_ADDR of the job with the hosts that it means to those who have it.

    Spellings that all mean rank 0's host (its name, its address on another network, localhost on the host
    itself) mean the same.
    """
    zero = rank_zero(job)
    home = job.node_of(zero) if zero else None
    known = own_addresses(home) if home else frozenset[str]()
    spelt: dict[str, set[str]] = {}
    for r in job.ranks:
        address = r.placement.master_addr or ""
        reached = _reached(job, r)
        if not reached or malformed(address):
            continue
        node = job.node_of(r)
        hosts: Iterable[str] = reached
        if all(is_here(a) for a in reached):
            if not known:  # what localhost is to rank 0's host cannot be compared with anybody's address
                continue
            hosts = {"rank 0's host" if home and node.key == home.key else f"{node.name}'s own"}
        elif leads_home(job, r, known):
            hosts = {"rank 0's host"}
        spelt.setdefault(address, set()).update(hosts)
    return {address: frozenset(hosts) for address, hosts in spelt.items()}


def leads_home(job: Job, rank: RankFacts, known: frozenset[str]) -> bool:
    """Whether a rank's MASTER_ADDR means rank 0's host, whose addresses are `known`, or rank 0 was met there.

    Behind a Kubernetes service or a NAT a host does not know all addresses at which it is reached.
    """
    reached = _reached(job, rank)
    attempts = job.process_of(rank).attempts
    return bool(reached & known) or any(
        a.door == "master" and a.outcome == "met" and canonical(a.address) in reached for a in attempts
    )


def differing(job: Job) -> bool:
    """Whether the ranks were told different hosts to meet at."""
    hosts = list(meanings(job).values())
    return len(hosts) > 1 and not frozenset[str].intersection(*hosts)


def networks(job: Job) -> dict[frozenset[str], list[RankFacts]]:
    """Group the ranks whose MASTER_ADDR leads to rank 0's host by the addresses that it means; loopback is left out."""
    zero = rank_zero(job)
    known = own_addresses(job.node_of(zero)) if zero else frozenset[str]()
    led = (r for r in job.ranks if zero and leads_home(job, r, known) and not all(map(is_here, _reached(job, r))))
    return grouped(led, lambda r: _reached(job, r))


def here_over_nodes(job: Job) -> list[RankFacts]:
    """Return the ranks whose MASTER_ADDR is their own host although the job spans several.

    The ranks of several nodes are proof. Where the others never came, the launcher's own word is: a step on
    several nodes, or more ranks than it put on this one. torchrun is left out there: its workers start after
    the agents met, and several agents on one machine do meet at localhost.
    """
    if differing(job):
        return []
    ranks = [r for r in job.ranks if is_here(r.placement.master_addr or "")]
    if len({job.node_of(r).key for r in ranks}) > 1:
        return ranks
    if len(job.nodes) > 1 or (job.met and not job.missing_ranks):
        return []
    return [r for r in ranks if _spans_nodes(r)]


def _spans_nodes(rank: RankFacts) -> bool:
    table = table_of(rank)
    if rank.placement.launcher in {"torchrun", "distcheck"}:
        return False
    if table and table.launcher == "slurm":
        nodes = number(rank, "SLURM_STEP_NUM_NODES") or number(rank, "SLURM_NNODES")
        return (nodes or 1) > 1
    return (rank.placement.world_size or 0) > (rank.placement.local_world_size or float("inf"))


def exempt(address: str, no_proxy: str) -> bool:
    """Whether a no_proxy list covers an address: by name, by domain or by network."""
    for entry in filter(None, (e.strip() for e in no_proxy.split(","))):
        suffix = entry.lstrip("*.")
        if entry == "*" or address == suffix or address.endswith("." + suffix):
            return True
        try:
            if ip_address(address) in ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False
