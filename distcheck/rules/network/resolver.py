"""Rules about name resolution: MASTER_ADDR, the nodes' addresses, and look-up times."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.job.addresses import rank_zero, resolved
from distcheck.rules.job.settings import chosen_by_agent
from distcheck.rules.job.wrong_master import look_up, resolving_elsewhere, right_addresses
from distcheck.rules.wording import found, grouped, listed, named

_SLOW_LOOK_UP_SECONDS = 0.1


@rule("meeting", scope="rank", owner="admin")
def net_dns_differs(job: Job) -> Iterator[Outcome]:
    """On some nodes MASTER_ADDR resolves to another host than rank 0's.

    Their ranks connect to the wrong host and end with ``connection refused`` or "The client socket has timed out",
    although all variables are the same. Typical causes are a stale line in one node's /etc/hosts, a cached record, or
    name servers that disagree.

    Found by resolving the name in every process and comparing the result with the addresses of rank 0's node. A rank
    that did not reach rank 0 compares it with the address at which other ranks of the job reached rank 0.

    Fix: Correct the name on those nodes, or set MASTER_ADDR to an IP address.

        {look_up|getent ahosts $MASTER_ADDR}
        export MASTER_ADDR={address}
    """
    lost = [r for r in resolving_elsewhere(job) if not chosen_by_agent(job, r)]
    zero = rank_zero(job)
    for (reached, right), ranks in grouped(lost, lambda r: (resolved(job, r), right_addresses(job, r))).items():
        name = ranks[0].placement.master_addr or ""
        where = job.node_of(zero).name if zero else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} resolves to {listed(sorted(reached))}; rank 0 is at {listed(right)}"
            + (f" ({where})" if where else ", where other ranks reached it"),
            evidence={"MASTER_ADDR": name, "resolves_to": sorted(reached), "rank_0_is_at": list(right)},
            values={
                "look_up": look_up(job, name, job.node_of(ranks[0]).name, where),
                "address": [quote(right[0])],
            },
        )


@rule("peers", severity="warning", scope="system", owner="admin")
def net_reverse_dns_slow(job: Job) -> Iterator[Outcome]:
    """Reverse DNS look-ups of the nodes' addresses are slow.

    torch's TCPStore looks up the host name of every connection, on rank 0 one after the other. With a resolver that
    does not answer, the start takes minutes, and logs show "The hostname of the client socket cannot be retrieved.
    err=-3".

    Found by looking up addresses of this job and timing it.

    Fix: Add the nodes to /etc/hosts, or fix the resolver.

        time getent hosts {address}
        cat /etc/resolv.conf

    See: https://github.com/pytorch/pytorch/issues/159007
    """
    slow = {
        p.uid: max(p.reverse, key=lambda r: r.seconds)
        for p in job.processes
        if p.reverse and max(r.seconds for r in p.reverse) > _SLOW_LOOK_UP_SECONDS
    }
    ranks = [r for r in job.ranks if r.process in slow]
    if not ranks:
        return
    worst = max(slow.values(), key=lambda r: r.seconds)
    # Rank 0 looks up every connection and waits for each answer.
    zero = rank_zero(job)
    total = slow[zero.process].seconds * (job.world_size or 1) if zero and zero.process in slow else 0.0
    more = f"; rank 0 looks up each of its {job.world_size} connections, {total:.0f} s in all" if total > 1 else ""
    ending = "" if worst.name else " without an answer"
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: the reverse look-up of {worst.address} took {worst.seconds:.1f} s{ending}{more}",
        evidence={r.address: f"{r.seconds:.3f} s, {r.name or 'no name'}" for r in slow.values()},
        values={"address": [worst.address]},
    )
