"""Ranks whose MASTER_ADDR does not lead to rank 0, and the host where rank 0 is."""

from __future__ import annotations

from shlex import quote
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
    resolutions,
    resolved,
    unresolved,
)
from distcheck.rules.wording import grouped, once

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import ProcessFacts, RankFacts


@once
def wrong_master(job: Job) -> RankFacts | None:
    """Return rank 0 if its node does not have MASTER_ADDR and no rank reached it there.

    A rank that connected on MASTER_PORT proves the address right: behind a Kubernetes service or a NAT a node
    does not own the address at which it is reachable.
    """
    zero = rank_zero(job)
    if zero is None or differing(job):
        return None
    reached, own = resolved(job, zero), own_addresses(job.node_of(zero))
    if not reached or not own or malformed(zero.placement.master_addr or "") or any(map(is_here, reached)):
        return None
    return None if reached & own or any(map(_arrived, job.processes)) else zero


@once
def resolving_elsewhere(job: Job) -> list[RankFacts]:
    """Return the ranks that, unlike rank 0, resolve its MASTER_ADDR to another host.

    A rank that met rank 0 through it is right, whatever the address. If rank 0 is missing, returns the ranks to which
    other ranks of the job reported another address of rank 0, and which found a host without rank 0 at theirs.
    """
    zero = rank_zero(job)
    if zero is None:
        return [r for r in job.ranks if named_elsewhere(job, r)]
    home, answers = job.node_of(zero), resolutions(job)
    own, right = own_addresses(home), resolved(job, zero)
    if not own or not (right & own or (right and all(map(is_here, right)))):
        return []
    if all(answer is right for answer in answers.values()):
        return []

    def elsewhere(rank: RankFacts) -> bool:
        there = answers[rank.process]
        return bool(
            there is not right
            and there
            and not there & own
            and job.node_of(rank).key != home.key
            and rank.placement.master_addr == zero.placement.master_addr
            and not _arrived(job.process_of(rank))
        )

    return [rank for rank in job.ranks if elsewhere(rank)]


def _arrived(process: ProcessFacts) -> bool:
    return any(a.door == "master" and a.outcome in {"met", "waiting", "agent"} for a in process.attempts)


def home_of_rank_0(job: Job) -> str:
    """Return the node of a missing rank 0 as its launcher placed it, '' if unknown."""
    if 0 not in job.missing_ranks:
        return ""
    from distcheck.rules.job.homes import homes  # imported only when needed

    return homes(job).get(0, "")


def contradicted(job: Job) -> dict[str, list[RankFacts]]:
    """Group the ranks whose MASTER_ADDR is another node of the job than rank 0's, by node.

    Rank 0 itself is missing; the launcher's variables give its node.
    """
    home = home_of_rank_0(job)
    if not home:
        return {}
    others = {a: node.name for node in job.nodes if node.name != home for a in own_addresses(node) if not is_here(a)}
    led = [(others[a], r) for r in job.ranks for a in sorted(resolved(job, r))[:1] if a in others]
    return {name: [r for _, r in several] for name, several in grouped(led, lambda item: item[0]).items()}


def named_elsewhere(job: Job, rank: RankFacts) -> frozenset[str]:
    """Return where other ranks met rank 0, if MASTER_ADDR refused this rank's connections."""
    attempts = job.process_of(rank).attempts
    reported = frozenset(canonical(a.detail) for a in attempts if a.outcome == "elsewhere")
    here = [a.outcome for a in attempts if a.door == "master"]
    refused = bool(here) and all(outcome == "refused" for outcome in here)
    return reported if refused and not reported & resolved(job, rank) else frozenset()


def right_addresses(job: Job, rank: RankFacts) -> tuple[str, ...]:
    """Return the addresses to which a rank's MASTER_ADDR should resolve."""
    zero = rank_zero(job)
    if zero is None:
        return tuple(sorted(named_elsewhere(job, rank)))
    own = own_addresses(job.node_of(zero))
    meant = resolved(job, zero)
    if all(map(is_here, meant)):  # on its own node rank 0's name resolves to loopback
        meant = frozenset(a for r in job.ranks for a in resolved(job, r)) & own
    return tuple(sorted(outward(meant & own) or outward(own)))


def look_up(job: Job, name: str, *nodes: str) -> tuple[str, ...]:
    """Return the commands that resolve a name on these nodes; '' stands for an unknown node."""
    pods = any("KUBERNETES_SERVICE_HOST" in r.environment for r in job.ranks)
    known = () if pods or (len(job.nodes) == 1 and job.met) else tuple(dict.fromkeys(filter(None, nodes)))
    far = quote(quote(name))  # over ssh a second shell reads it
    return tuple(f"ssh {quote(node)} getent ahosts {far}" for node in known) or (f"getent ahosts {quote(name)}",)


def explains_missing(job: Job) -> str:
    """Return the fault of MASTER_ADDR that explains missing ranks, '' if there is none."""
    zero = rank_zero(job)
    elsewhere = "MASTER_ADDR is not an address of rank 0's node"
    if zero is None:
        return elsewhere if contradicted(job) else ""
    if malformed(zero.placement.master_addr or ""):
        return "MASTER_ADDR is not a host name or an IP address"
    if unresolved(job, zero):
        return "MASTER_ADDR does not resolve"
    if here_over_nodes(job):
        return "MASTER_ADDR points every node to itself"
    return elsewhere if wrong_master(job) and "KUBERNETES_SERVICE_HOST" not in zero.environment else ""
