"""MASTER_ADDR and MASTER_PORT: their syntax, their host, and whether it is rank 0's."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules.job.kinds import ranks_by, ranks_with
from distcheck.rules.job.settings import number
from distcheck.rules.wording import once, table_of
from distcheck.selection.interfaces import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

# Cached: the ranks of a node share its addresses. 8,192 nodes have more than 100,000, and a cache that is too small for
# the pass over all of them never has the next one.
_few = lru_cache(1 << 18)
_HERE = frozenset({"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"})
_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address mapped into IPv6."""
_LONGEST_NAME = 253
"""Characters of a name in DNS (RFC 1035: 255 bytes with the lengths of its parts)."""
_MALFORMED = (
    (r"[$`]", "a shell expression that was not expanded"),
    (r"\[\d[\d,-]*\]", "a list of nodes that was not expanded"),
    (r"://", "a URL"),
    (r",", "a list of hosts"),
    (r"\A\s|\s\Z", "a host with a blank or a line break around it"),
    (r"\s", "more than one word"),
    (r"[\[\]]", "an address in brackets"),
    (r"\A[^:]*:[^:]*\Z", "a host with a port"),
    (r"/", "a path or a network"),
)
_HOST_PORT = re.compile(r"^\[?([^\[\]]*?)\]?:(\d*)$")
# Resolver errors that a retry may solve (EAI_AGAIN), and no answer in time; all others are permanent.
_PASSING = re.compile(r"temporary|errno -3\b|try again|timed out|no answer from", re.IGNORECASE)


@_few
def malformed(address: str) -> str:
    """Return what is wrong with an address's syntax, '' for a host name or an IP address."""
    too_long = f"a text of {len(address)} characters" if len(address) > _LONGEST_NAME else ""
    return next((what for pattern, what in _MALFORMED if re.search(pattern, address)), too_long)


def cleaned(address: str) -> str:
    """Return the host that a malformed address most likely means, '' if unclear."""
    text = address.partition("://")[2] or address
    text = text.strip().split("/")[0]
    nodes = re.match(r"([\w.-]*)\[(\d+)", text)
    if nodes and ":" not in text:
        return nodes[1] + nodes[2]
    text = re.split(r"[,\s]", text)[0] if text else ""
    host = _HOST_PORT.match(text) if text.startswith("[") or text.count(":") == 1 else None
    text = host[1] if host else text.strip("[]")
    return "" if re.search(r"[$`(){}\[\]]", text) or len(text) > _LONGEST_NAME else text


@_few
def canonical(address: str) -> str:
    """Return an IP address without zone, mapped IPv4 as IPv4; names are returned unchanged."""
    own = packed(address.partition("%")[0])
    return address if own is None else unpacked(own.removeprefix(_MAPPED))


def is_address(text: str) -> bool:
    """Whether a text is an IP address, not a name."""
    return ":" in text or text.replace(".", "").isdecimal()


@_few
def is_here(address: str) -> bool:
    """Whether an address means the local host on every host: loopback or unspecified."""
    own = packed(canonical(address))
    if own is None:
        return address.lower() in _HERE
    return own[0] == 127 or not any(own) if len(own) == 4 else int.from_bytes(own, "big") < 2


def resolved(job: Job, rank: RankFacts) -> frozenset[str]:
    """Return the addresses to which a rank's MASTER_ADDR resolves on it, empty if unknown."""
    return resolutions(job)[rank.process]


@once
def resolutions(job: Job) -> dict[str, frozenset[str]]:
    """Return the addresses to which MASTER_ADDR resolves, by process; one set for all that got the same answer."""
    sets: dict[tuple[str, ...], frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for process in job.processes:
        answer = process.master_resolution
        addresses = () if answer is None or isinstance(answer, Missing) else answer.addresses
        if addresses not in sets:
            sets[addresses] = frozenset(map(canonical, addresses))
        found[process.uid] = sets[addresses]
    return found


def unresolved(job: Job, rank: RankFacts) -> str:
    """Return the resolver's error for a rank's well-formed MASTER_ADDR, '' if it resolved."""
    answer, address = job.process_of(rank).master_resolution, rank.placement.master_addr
    if not isinstance(answer, Missing) or not address or malformed(address):
        return ""
    return answer.reason or "no reason given"


def may_pass(reason: str) -> bool:
    """Whether a resolver's error is temporary, so that a retry may find the name."""
    return bool(_PASSING.search(reason))


def own_addresses(node: NodeFacts) -> frozenset[str]:
    """Return the addresses of a node's interfaces, empty if unknown."""
    if isinstance(node.interfaces, Missing):
        return frozenset()
    return frozenset(canonical(i.address) for i in node.interfaces)


def outward(addresses: frozenset[str]) -> frozenset[str]:
    """Return a host's addresses without loopback and link-local ones, unless it has no others."""
    return frozenset(a for a in addresses if not is_here(a) and not a.startswith("fe80:")) or addresses


def first_open_port(node: NodeFacts) -> int:
    """Return the first unprivileged port; the kernel's default if it could not be read."""
    start = node.unprivileged_port_start
    return 1024 if isinstance(start, Missing) else start


@once
def rank_zero(job: Job) -> RankFacts | None:
    """Return rank 0, None if it is missing or several processes claim it."""
    zeros = [r for r in job.ranks if r.placement.rank == 0]
    return zeros[0] if len(zeros) == 1 else None


def _reached(job: Job, rank: RankFacts) -> frozenset[str]:
    """Return the addresses of a rank's MASTER_ADDR; empty for a name that was not resolved."""
    return resolved(job, rank) or _literal(rank.placement.master_addr or "")


@_few
def _literal(text: str) -> frozenset[str]:
    address = canonical(text)
    return frozenset({address}) if is_here(address) or is_address(address) else frozenset()


@once
def meanings(job: Job) -> dict[str, frozenset[str]]:
    """Return every well-formed MASTER_ADDR of the job with the hosts to which it resolves.

    All spellings of rank 0's host (its name, its address on another network, localhost on the host itself) give the
    same host.
    """
    zero = rank_zero(job)
    home = job.node_of(zero) if zero else None
    known = own_addresses(home) if home else frozenset[str]()
    spelt: dict[str, set[str]] = {}
    for (address, reached), ranks in ranks_by(job, lambda r: (r.placement.master_addr or "", _reached(job, r))).items():
        if not reached or malformed(address):
            continue
        hosts: Iterable[str]
        if all(is_here(a) for a in reached):
            if not known:  # without rank 0's addresses, localhost cannot be compared with other addresses
                continue
            nodes = map(job.node_of, ranks)
            hosts = {"rank 0's host" if home and node.key == home.key else f"{node.name}'s own" for node in nodes}
        elif reached & known:
            hosts = {"rank 0's host"}
        else:
            led = (leads_home(job, r, known) for r in ranks)
            hosts = frozenset[str]().union(*({"rank 0's host"} if home_led else reached for home_led in led))
        spelt.setdefault(address, set()).update(hosts)
    return {address: frozenset(hosts) for address, hosts in spelt.items()}


def leads_home(job: Job, rank: RankFacts, known: frozenset[str]) -> bool:
    """Whether a rank's MASTER_ADDR is rank 0's host (`known`), or the rank met rank 0 there.

    Behind a Kubernetes service or a NAT a host does not know all addresses at which it is reachable.
    """
    reached = _reached(job, rank)
    attempts = job.process_of(rank).attempts
    return bool(reached & known) or any(
        a.door == "master" and a.outcome == "met" and canonical(a.address) in reached for a in attempts
    )


@once
def master_outcomes(job: Job) -> frozenset[str]:
    """Return how the attempts of all processes at MASTER_ADDR:MASTER_PORT ended."""
    return frozenset(a.outcome for p in job.processes for a in p.attempts if a.door == "master")


@once
def differing(job: Job) -> bool:
    """Whether MASTER_ADDR names different hosts on the ranks."""
    hosts = list(meanings(job).values())
    return len(hosts) > 1 and not frozenset[str].intersection(*hosts)


@once
def here_over_nodes(job: Job) -> list[RankFacts]:
    """Return the ranks whose MASTER_ADDR is their own host in a job of several hosts.

    Ranks on several nodes prove it. If the others did not join, the launcher's variables prove it: a step on
    several nodes, or more ranks than it placed on this one. torchrun is ignored there: its workers start after
    the agents met, and several agents on one machine do meet at localhost.
    """
    if differing(job):
        return []
    ranks = ranks_with(job, lambda r: is_here(r.placement.master_addr or ""))
    if len({job.node_of(r).key for r in ranks}) > 1:
        return ranks
    alone = len(job.nodes) == 1 and not (job.met and not job.missing_ranks)
    return [r for r in ranks if _spans_nodes(r)] if alone else []


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
