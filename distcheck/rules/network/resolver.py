"""Rules about what the resolver says of MASTER_ADDR and of the nodes' addresses, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator

from distcheck.facts import Job, Resolution
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import own_addresses, rank_zero, resolved
from distcheck.rules.job.astray import look_up, misled, right_addresses
from distcheck.rules.job.settings import chosen_by_agent
from distcheck.rules.wording import found, grouped, listed, named, nodes_of

_SLOW_LOOK_UP_SECONDS = 0.1


@rule("meeting")
def net_dns_differs(job: Job) -> Iterator[Outcome]:
    """MASTER_ADDR means another host on some nodes than it does on rank 0's.

    They look for rank 0 elsewhere, to ``connection refused`` or "The client socket has timed out", although all
    variables are alike. A stale line in one node's /etc/hosts, a cached record, name servers that disagree. Found by
    resolving the name on every process and comparing it with the addresses of rank 0's node; by a rank that did not
    reach rank 0, by the address at which others of the job say that they have met it.

    Fix: correct the name on those nodes, or give MASTER_ADDR as an IP address.
    """
    lost = [r for r in misled(job) if not chosen_by_agent(job, r)]
    zero = rank_zero(job)
    for (reached, right), ranks in grouped(lost, lambda r: (resolved(job, r), right_addresses(job, r))).items():
        name = ranks[0].placement.master_addr or ""
        there, where = nodes_of(job, ranks), job.node_of(zero).name if zero else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} is {listed(sorted(reached))} there; rank 0 is at {listed(right)}"
            + (f" ({where})" if where else ", where other ranks have met it"),
            Fix(
                f"Correct the name on {listed(there)}, or give MASTER_ADDR as an IP address.",
                (*look_up(job, name, there[0], where), f"export MASTER_ADDR={right[0]}"),
            ),
            owner="admin",
            evidence={"MASTER_ADDR": name, "resolves_to": sorted(reached), "rank_0_is_at": list(right)},
        )


@rule("peers")
def net_reverse_dns_slow(job: Job) -> Iterator[Outcome]:
    """It takes long to find out what a node's address is called.

    torch's TCPStore asks for the name of every connection, on rank 0 one after the other: with a resolver that does
    not answer, a start takes minutes, and logs show "The hostname of the client socket cannot be retrieved. err=-3".
    Found by asking for the names of addresses of this job, and by the time that took.

    Fix: add the nodes to /etc/hosts, or mend /etc/resolv.conf.
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
    # Rank 0 looks everybody up, and waits for each.
    zero = rank_zero(job)
    total = slow[zero.process].seconds * (job.world_size or 1) if zero and zero.process in slow else 0.0
    more = f"; rank 0 asks for each of its {job.world_size} connections, {total:.0f} s in all" if total > 1 else ""
    ending = "" if worst.name else " without an answer"
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: looking up what {worst.address} is called took {worst.seconds:.1f} s{ending}{more}",
        Fix(
            "Name the nodes in /etc/hosts, or mend the resolver.",
            (f"time getent hosts {worst.address}", "cat /etc/resolv.conf"),
        ),
        severity="warning",
        scope="system",
        owner="admin",
        evidence={r.address: f"{r.seconds:.3f} s, {r.name or 'no name'}" for r in slow.values()},
    )


@rule("peers")
def net_dns_unstable(job: Job) -> Iterator[Outcome]:
    """The resolver's answers about MASTER_ADDR change from one question to the next.

    Some ranks then connect to another host than rank 0's, at one start and not at the next. Several records behind one
    name, or name servers that disagree. Found by asking three times. Addresses that all are rank 0's own are no
    fault.

    Fix: a name of rank 0's host alone, or its IP address.
    """
    zero = rank_zero(job)
    own = own_addresses(job.node_of(zero)) if zero else frozenset[str]()
    told = [(r, job.process_of(r).master_resolution) for r in job.ranks]
    answers = [(r, a) for r, a in told if isinstance(a, Resolution) and not set(a.changing) <= own]
    changing = grouped(answers, lambda pair: (pair[1].name, pair[1].changing))
    for (name, addresses), several in changing.items():
        ranks = [r for r, _ in several]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} is now {listed(list(addresses))}, now not",
            Fix("Give MASTER_ADDR a name or address that is rank 0's host alone.", (f"getent ahosts {name}",)),
            severity="warning",
            evidence={"MASTER_ADDR": name, "changing": list(addresses)},
        )
