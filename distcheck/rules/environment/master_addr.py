"""Rules about MASTER_ADDR: one address, resolvable on every node, of rank 0's host."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.addresses import (
    cleaned,
    differing,
    here_over_nodes,
    malformed,
    may_pass,
    meanings,
    outward,
    own_addresses,
    rank_zero,
    resolved,
    unresolved,
)
from distcheck.rules.job.kinds import each_rank, ranks_by
from distcheck.rules.job.numbering import assigned
from distcheck.rules.job.remedies import export, master_commands
from distcheck.rules.job.settings import chosen_by_agent
from distcheck.rules.job.wrong_master import contradicted, home_of_rank_0, wrong_master
from distcheck.rules.wording import brief, found, grouped, is_what, listed, named, odd_ones, spread
from distcheck.selection.nodelist import expand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


@rule("environment", scope="rank", of=each_rank)
def env_master_addr_format(job: Job, rank: RankFacts) -> Fault | None:
    """MASTER_ADDR is not a host name or an IP address.

    torch passes it to the resolver unchanged and retries until the timeout, whose message shows the value:
    ``while trying to connect to (127.0.0.1:29500, 29516)``. It must not contain a port or a scheme; an IPv6
    address has no brackets; a trailing blank counts; a list such as ``node[01-02]`` must be expanded.
    Found by parsing the value.

    Fix: Set MASTER_ADDR to the host only; the port belongs in MASTER_PORT.

        {set|export MASTER_ADDR=HOST  # the name of rank 0's node}

    See: https://github.com/pytorch/ignite/issues/2048
    """
    address = rank.placement.master_addr or ""
    if not (wrong := malformed(address)):
        return None
    host, nodes = cleaned(address), "[" in address and ":" not in address
    known = host and not (nodes and "SLURM_JOB_ID" in rank.environment)
    return Fault(
        f"MASTER_ADDR is {brief(repr(address))}, {wrong}; expected one host name or IP address",
        evidence={"variable": "MASTER_ADDR", "value": address},
        values={"set": (f"export MASTER_ADDR={quote(host)}" if known else export(job, rank, "MASTER_ADDR"),)},
    )


@rule("environment", scope=("rank", "node"))
def env_master_addr_unresolvable(job: Job) -> Iterator[Outcome]:
    """The name in MASTER_ADDR does not resolve.

    torch retries until its deadline, on rank 0 too, and reports ``The IPv6 network addresses of (nosuchhost,
    29500) cannot be retrieved (gai error: -2 - Name or service not known)``; IPv6 is only what it tries
    first. The usual causes are a typo, a cluster without DNS names for its nodes, and a Kubernetes service that does
    not exist yet. Found by resolving the name in every process. If the resolver reports a temporary failure or
    does not answer in time, and in pods, which start minutes apart, a retry may help; the exit code is then 20.

    Fix: correct the name, use the IP address, or add the name to DNS or to /etc/hosts of the nodes named.
    See: https://github.com/pytorch/pytorch/issues/150532
    """

    # torchrun-fqdn-unreachable reports a name that torchrun's agent chose.
    def lost(rank: RankFacts) -> tuple[str, str] | None:
        why = unresolved(job, rank)
        return (rank.placement.master_addr or "", why) if why and not chosen_by_agent(job, rank) else None

    for (address, why), ranks in ranks_by(job, lost).items():
        others = [r for r in job.ranks if r.placement.master_addr == address and resolved(job, r)]
        # A service resolves the name of a pod only once the pod runs, and pods start minutes apart.
        temporary = may_pass(why) or all("KUBERNETES_SERVICE_HOST" in r.environment for r in ranks)
        message = f"{named(job, ranks)}: the name {address} in MASTER_ADDR does not resolve ({why})"
        message += f"; {named(job, others)} can resolve it" if others else ""
        fix = Fix(
            "Correct the name, use the IP address of rank 0's node, or add it to DNS or /etc/hosts.",
            (export(job, ranks[0], "MASTER_ADDR"), f"getent hosts {quote(address)}"),
        )
        if near := "" if others else _near(job, ranks):
            message += f"; did you mean {near}?"
            fix = Fix("Correct the name.", (assigned(ranks[0], "MASTER_ADDR", quote(near)),))
        yield found(
            job,
            ranks,
            message,
            fix,
            scope="node" if temporary else "rank",
            owner="admin" if others or temporary else "user",
            confirmed=not temporary,
            evidence={"variable": "MASTER_ADDR", "value": address, "resolver": why},
        )


def _near(job: Job, ranks: list[RankFacts]) -> str:
    """Return the name that a misspelt MASTER_ADDR most likely means: one that resolves, or a node of the job."""
    address = ranks[0].placement.master_addr or ""
    from distcheck.selection.near_names import near_names  # only needed for a finding

    here = [name for r in ranks for name in job.process_of(r).near_names]
    nodes = [name for node in job.nodes for name in (node.name, node.hostname)]
    nodes += expand(ranks[0].environment.get("SLURM_JOB_NODELIST", ""))
    return next(iter((*here, *near_names(address, nodes))), "")


@rule("meeting", unless=("command-endpoint-local",))
def env_master_addr_localhost_multinode(job: Job) -> Iterator[Outcome]:
    """MASTER_ADDR is a loopback address, but the job spans several nodes.

    With localhost or 127.0.0.1 every node connects to itself: ``The client socket has timed out after
    600000ms while trying to connect to (127.0.0.1, 29500)``, or several separate worlds start. Found by a
    loopback address with ranks on more than one node; if the other ranks did not join, by the number of nodes in the
    launcher's variables.

    Fix: Set MASTER_ADDR to the host of rank 0 on every node.

        {set|export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)}
    """
    ranks = [r for r in here_over_nodes(job) if not chosen_by_agent(job, r)]
    if ranks:
        address = ranks[0].placement.master_addr
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR is {address}, which on every node is the node itself; "
            "expected the host of rank 0 as the other nodes reach it",
            evidence={"variable": "MASTER_ADDR", "value": address, "nodes": len(job.nodes)},
            values={"set": master_commands(job, ranks[0], "MASTER_ADDR")},
        )


@rule("meeting", "slurm-master-from-wrong-node", scope="rank")
def env_master_addr_differs(job: Job) -> Iterator[Outcome]:
    """MASTER_ADDR differs between the ranks.

    Rank 0 listens on its own host; ranks that connect elsewhere fail with ``The client socket has timed out``. The
    usual cause is that each node sets it to its own ``hostname``. Found by comparing what MASTER_ADDR resolves to on
    each rank. Different spellings of one host count as equal, and so do different addresses at which it answers.

    Fix: determine the address once, on the first node, and pass it to all nodes.
    """
    if not differing(job):
        return
    hosts = meanings(job)
    concerned = [r for r in job.ranks if r.placement.master_addr in hosts]
    values = grouped(concerned, lambda r: r.placement.master_addr or "")
    home = {address for address, meant in hosts.items() if "rank 0's host" in meant}
    # A value that names the host of rank 0 is right; only without one does the majority decide.
    elsewhere = [r for r in concerned if r.placement.master_addr not in home] if home else odd_ones(values)
    odd = elsewhere or concerned  # two processes that claim rank 0 may each be right
    yield found(
        job,
        odd,
        f"{spread(job, 'MASTER_ADDR', values)}; expected one host, that of rank 0",
        Fix("Set MASTER_ADDR to the host of rank 0 on every node.", master_commands(job, odd[0], "MASTER_ADDR")),
        evidence={address: sorted(meant) for address, meant in hosts.items()},
    )


@rule("meeting", "slurm-node-order", scope="rank")
def env_master_addr_not_rank0_host(job: Job) -> Iterator[Outcome]:
    """MASTER_ADDR is not an address of rank 0's host.

    Rank 0 does not fail: it listens on all its own addresses and waits, while the other ranks connect to another
    host and get ``connection refused`` or a timeout. Often the address is the node from which the job was submitted
    (SLURM_LAUNCH_NODE_IPADDR), or the first node of the allocation where the step uses other nodes or another order
    (``srun --distribution=arbitrary``). Found by searching rank 0's interfaces for the resolved address. An address
    that no interface needs to have, such as one of a Kubernetes service or a NAT, is accepted if a rank reached rank 0
    through it.

    Fix: Set MASTER_ADDR to the node on which rank 0 runs. If that is a virtual machine, WSL2 or a container on the host
    that has the address, use bridged, mirrored or host networking.

        {set|export MASTER_ADDR=NODE}

    See: https://github.com/pytorch/pytorch/issues/137402
    """
    zero = rank_zero(job)
    for name, ranks in contradicted(job).items():
        address, home = ranks[0].placement.master_addr or "", home_of_rank_0(job)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR {is_what(address, [name])}; rank 0 belongs to {home}",
            values={"set": [f"export MASTER_ADDR={quote(home)}"]},
        )
    if zero and isinstance(job.node_of(zero).interfaces, Missing) and len(job.nodes) > 1:
        yield NotChecked(ranks=(0,), reason="the interfaces of rank 0's node could not be listed", required=False)
        return
    lost = wrong_master(job)
    if lost is None or lost.placement.master_derived or chosen_by_agent(job, lost):
        return  # distcheck derived the address; the user did not set it
    address, reached = lost.placement.master_addr or "", sorted(resolved(job, lost))
    own = sorted(outward(own_addresses(job.node_of(lost))))
    # In a pod the address may be a service's, which no interface has, and the other ranks may be late.
    pod = "KUBERNETES_SERVICE_HOST" in lost.environment
    yield found(
        job,
        [lost],
        f"MASTER_ADDR {is_what(address, reached)}; {named(job, [lost])} has {listed(own)}",
        severity="warning" if pod else "error",
        evidence={"resolves_to": reached, "rank_0_has": own},
        values={"set": master_commands(job, lost, "MASTER_ADDR")},
    )
