"""Where MASTER_ADDR leads ranks that do not find rank 0, and where rank 0 is instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules.job.addresses import (
    canonical,
    differing,
    here_over_nodes,
    is_here,
    malformed,
    outward,
    own_addresses,
    rank_zero,
    resolved,
    unresolved,
)
from distcheck.rules.wording import grouped

if TYPE_CHECKING:
    from distcheck.facts import Job, RankFacts


def astray(job: Job) -> RankFacts | None:
    """Return rank 0 when its MASTER_ADDR is an address that its node does not have, and nobody met it there.

    Whoever got through on MASTER_PORT proves the address right: behind a Kubernetes service or a NAT a node
    does not own the address at which it is reached.
    """
    zero = rank_zero(job)
    if zero is None or differing(job):
        return None
    address = zero.placement.master_addr or ""
    reached, own = resolved(job, zero), own_addresses(job.node_of(zero))
    if not reached or not own or malformed(address) or any(is_here(a) for a in reached) or reached & own:
        return None
    through = any(
        a.door == "master" and a.outcome in {"met", "waiting", "agent"} for p in job.processes for a in p.attempts
    )
    return None if through else zero


def misled(job: Job) -> list[RankFacts]:
    """Return the ranks whose resolver leads rank 0's MASTER_ADDR to another host, where rank 0's own does not.

    Whoever met rank 0 through it is led right, whatever the address. Where rank 0 is not here, they are those to whom
    other ranks of the job have named another address of it, and who found a host without it at theirs.
    """
    zero = rank_zero(job)
    if zero is None:
        return [r for r in job.ranks if named_elsewhere(job, r)]
    if not own_addresses(job.node_of(zero)):
        return []
    home, own = job.node_of(zero), own_addresses(job.node_of(zero))
    right = resolved(job, zero)
    if not right or not (right & own or all(is_here(a) for a in right)):
        return []
    lost = []
    for rank in job.ranks:
        there = resolved(job, rank)
        elsewhere = there and not there & own and job.node_of(rank).key != home.key
        if elsewhere and rank.placement.master_addr == zero.placement.master_addr and not _got_through(job, rank):
            lost.append(rank)
    return lost


def _got_through(job: Job, rank: RankFacts) -> bool:
    attempts = job.process_of(rank).attempts
    return any(a.door == "master" and a.outcome in {"met", "waiting", "agent"} for a in attempts)


def home_of_rank_0(job: Job) -> str:
    """Return the node to which a rank 0 that is not here belongs, by what started the job; '' where that is unknown."""
    if 0 not in job.missing_ranks:
        return ""
    from distcheck.rules.job.homes import homes  # which knows every launcher

    return homes(job).get(0, "")


def contradicted(job: Job) -> dict[str, list[RankFacts]]:
    """Group the ranks whose MASTER_ADDR is a node of the job that is not rank 0's, by that node's name.

    Rank 0 itself is not here; whatever started the job says to which node it belongs.
    """
    home = home_of_rank_0(job)
    if not home:
        return {}
    others = {a: node.name for node in job.nodes if node.name != home for a in own_addresses(node) if not is_here(a)}
    led = [(others[a], r) for r in job.ranks for a in sorted(resolved(job, r))[:1] if a in others]
    return {name: [r for _, r in several] for name, several in grouped(led, lambda item: item[0]).items()}


def named_elsewhere(job: Job, rank: RankFacts) -> frozenset[str]:
    """Return where others of its job have met rank 0, where a rank found nobody at what MASTER_ADDR means to it."""
    attempts = job.process_of(rank).attempts
    told = frozenset(canonical(a.detail) for a in attempts if a.outcome == "elsewhere")
    here = [a.outcome for a in attempts if a.door == "master"]
    nobody = bool(here) and all(outcome == "refused" for outcome in here)
    return told if nobody and not told & resolved(job, rank) else frozenset()


def right_addresses(job: Job, misled: RankFacts) -> tuple[str, ...]:
    """Return what a MASTER_ADDR that misleads a rank should mean to it."""
    zero = rank_zero(job)
    if zero is None:
        return tuple(sorted(named_elsewhere(job, misled)))
    own = own_addresses(job.node_of(zero))
    meant = resolved(job, zero)
    if all(map(is_here, meant)):  # what rank 0's node calls itself
        meant = frozenset(a for r in job.ranks for a in resolved(job, r)) & own
    return tuple(sorted(outward(meant & own) or outward(own)))


def look_up(job: Job, name: str, *nodes: str) -> tuple[str, ...]:
    """Return the commands that show what a name means on these nodes, '' for one that is not known."""
    pods = any("KUBERNETES_SERVICE_HOST" in r.environment for r in job.ranks)
    known = () if pods or (len(job.nodes) == 1 and job.met) else tuple(dict.fromkeys(filter(None, nodes)))
    return tuple(f"ssh {node} getent ahosts {name}" for node in known) or (f"getent ahosts {name}",)


def keeps_others_away(job: Job) -> str:
    """Say what about rank 0's own address explains that others did not come, '' when nothing does."""
    zero = rank_zero(job)
    if zero is None:
        return "MASTER_ADDR is not an address of rank 0's node" if contradicted(job) else ""
    if malformed(zero.placement.master_addr or ""):
        return "MASTER_ADDR is not written as a host"
    if unresolved(job, zero):
        return "MASTER_ADDR does not resolve"
    if here_over_nodes(job):
        return "MASTER_ADDR means every node itself"
    if astray(job) and "KUBERNETES_SERVICE_HOST" not in zero.environment:
        return "MASTER_ADDR is not an address of rank 0's node"
    return ""
