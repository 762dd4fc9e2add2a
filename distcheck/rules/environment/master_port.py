"""Rules about MASTER_PORT: one valid port that is free and not used by another server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.addresses import differing, first_open_port, master_outcomes, rank_zero
from distcheck.rules.job.kinds import each_rank, ranks_by
from distcheck.rules.job.remedies import master_commands, other_port
from distcheck.rules.job.settings import LARGEST_PORT, started_by_distcheck
from distcheck.rules.job.wrong_master import resolving_elsewhere, wrong_master
from distcheck.rules.wording import found, grouped, named, odd_ones, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


@rule("meeting", scope="rank")
def env_master_port_differs(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT differs between the ranks.

    Rank 0 listens on its own port and reports ``Timed out after 601 seconds waiting for clients. 1/2 clients
    joined.`` The usual cause is a random port that each node draws for itself. Found by comparing MASTER_PORT of
    all ranks.

    Fix: Set the same MASTER_PORT for every process, or compute it from a value that all nodes share.

        {set|export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))}
    """
    ports = ranks_by(job, lambda r: r.placement.master_port)
    if len(ports) > 1:
        odd = odd_ones(ports)
        yield found(
            job,
            odd,
            f"{spread(job, 'MASTER_PORT', ports)}; expected one port",
            evidence={str(port): named(job, ranks) for port, ranks in ports.items()},
            values={"set": master_commands(job, odd[0], "MASTER_PORT")},
        )


def _port_fault(job: Job, rank: RankFacts, problem: str) -> Fault:
    port = rank.placement.master_port
    evidence, values = {"variable": "MASTER_PORT", "value": port}, {"set": other_port(job, rank)}
    return Fault(f"MASTER_PORT is {port}, {problem}", evidence=evidence, values=values)


@rule("environment", scope="rank", of=each_rank)
def env_master_port_range(job: Job, rank: RankFacts) -> Fault | None:
    """MASTER_PORT is not a valid port number.

    torch reports ``port must have value from 0 to 65535 but was 70000``. Found by reading MASTER_PORT.

    Fix: Set a free port from 1024 to 32767, below the ephemeral range.

        {set|export MASTER_PORT=29500}

    See: https://github.com/huggingface/accelerate/issues/647
    """
    port = rank.placement.master_port
    valid = port is None or 0 <= port <= LARGEST_PORT
    return None if valid else _port_fault(job, rank, f"expected 1 to {LARGEST_PORT}")


@rule("environment", scope="rank", of=each_rank)
def env_master_port_zero(job: Job, rank: RankFacts) -> Fault | None:
    """MASTER_PORT is 0, so rank 0 listens on a port that the other ranks do not know.

    With port 0 the kernel assigns an ephemeral port. A world of one works. In a larger world the other ranks do not
    know rank 0's port and connect until ``The client socket has timed out``. Found by reading MASTER_PORT and
    WORLD_SIZE.

    Fix: Set a fixed port below the ephemeral range.

        {set|export MASTER_PORT=29500}
    """
    if rank.placement.master_port != 0 or (rank.placement.world_size or 0) < 2:
        return None
    return _port_fault(job, rank, "so rank 0 listens on an ephemeral port that the other ranks do not know")


@rule("meeting", scope="rank")
def env_master_port_privileged(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT is a privileged port, and rank 0 is not permitted to listen on it.

    torch reports ``The server socket has failed to bind ... code: -13, name: EACCES, message: permission
    denied``. Ports below net.ipv4.ip_unprivileged_port_start, 1024 by default, need a privilege. Found by
    binding the port on rank 0.

    Fix: Set a port that needs no privilege: 1024 or higher.

        {set|export MASTER_PORT=29500}
    """
    zero = rank_zero(job)
    bind = job.process_of(zero).bind if zero else None
    if zero is None or bind is None or bind.outcome != "denied":
        return
    first = first_open_port(job.node_of(zero))
    if bind.port < first:
        message = f"permission denied to listen on MASTER_PORT {bind.port}; expected a port of {first} or higher"
        yield found(
            job,
            [zero],
            f"{named(job, [zero])}: {message}",
            evidence={"port": bind.port, "error": bind.error, "unprivileged_port_start": first},
            values={"set": other_port(job, zero)},
        )


@rule("meeting", severity="info", scope="rank")
def env_master_port_ephemeral(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT is in the ephemeral port range of rank 0's node.

    An outgoing connection may hold the port when the job starts, and rank 0 then fails with ``EADDRINUSE`` on a busy
    node. Found by comparing it with net.ipv4.ip_local_port_range of rank 0's node. Silent if the port is among
    net.ipv4.ip_local_reserved_ports, which the kernel assigns to no connection, and under torchrun, which chooses the
    port itself.

    Fix: Set a port below that range, or have the port added to net.ipv4.ip_local_reserved_ports.

        {set|export MASTER_PORT=29500}
    """
    zero = rank_zero(job)
    if zero is None or started_by_distcheck(job, zero) or zero.placement.launcher == "torchrun":
        return
    node, port = job.node_of(zero), zero.placement.master_port
    ephemeral, reserved = node.ephemeral_ports, node.reserved_ports
    if port is None or isinstance(ephemeral, Missing) or not ephemeral[0] <= port <= ephemeral[1]:
        return
    if isinstance(reserved, tuple) and any(low <= port <= high for low, high in reserved):
        return
    yield found(
        job,
        [zero],
        f"MASTER_PORT {port} is in the ephemeral range of {node.name} ({ephemeral[0]} to {ephemeral[1]}); an outgoing "
        "connection may hold it when the job starts",
        evidence={"port": port, "ip_local_port_range": list(ephemeral)},
        values={"set": other_port(job, zero)},
    )


@rule("meeting")
def env_port_speaks_http(job: Job) -> Iterator[Outcome]:
    """Another program answers on MASTER_PORT.

    A web server, a proxy or an SSH server accepts the connection and sends its own protocol. torch reads the first
    four bytes as a number: ``Ping failed, invalid value returned from server. Expected: ..., Got: 1347703880``.
    Those four bytes spell HTTP; 759714643 spells SSH-. Found by connecting and reading the answer. Silent
    if rank 0 could not listen because the port is in use: net-port-in-use then names the program. Silent, too, where
    MASTER_ADDR or MASTER_PORT leads to another host or port than rank 0's, which other rules report.

    Fix: use another port, or bypass the proxy.
    """
    zero = rank_zero(job)
    bind = job.process_of(zero).bind if zero else None
    if (bind and bind.outcome == "in-use") or "foreign" not in master_outcomes(job):
        return
    lost = wrong_master(job)
    if lost is not None and "KUBERNETES_SERVICE_HOST" not in lost.environment:
        return  # env-master-addr-not-rank0-host: another host has the program, and another port would not help
    elsewhere = {id(r) for r in resolving_elsewhere(job)}  # net-dns-differs reports them
    if zero is not None:  # env-master-port-differs and env-master-addr-differs report these
        own, apart = zero.placement, bool(differing(job))
        elsewhere |= {
            id(r)
            for r in job.ranks
            if r.placement.master_port != own.master_port or (apart and r.placement.master_addr != own.master_addr)
        }
    heard = [
        (f"{a.address} port {a.port}", a.detail, r)
        for r in job.ranks
        if id(r) not in elsewhere
        for a in job.process_of(r).attempts
        if a.door == "master" and a.outcome == "foreign" and a.detail
    ]
    for (where, answer), several in grouped(heard, lambda item: item[:2]).items():
        ranks = [r for _, _, r in several]
        # torch reads the first four bytes as a little-endian integer
        got = int.from_bytes(answer.encode("utf-8", "replace")[:4], "little")
        who = "a web server or proxy" if "HTTP" in answer else "another program"
        who = "an SSH server" if answer.startswith("SSH-") else who
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {who} answers on {where} ({answer[:60]!r}), not rank 0; "
            f"torch would report Got: {got}",
            Fix("Set another port; if a proxy answers, bypass it.", other_port(job, ranks[0])),
            evidence={"address": where, "first_words": answer, "torch_reads": got},
        )
