"""Rules about MASTER_PORT: one port, possible, free, and not another server's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import first_open_port, rank_zero
from distcheck.rules.job.remedies import master_commands, other_port
from distcheck.rules.job.settings import LARGEST_PORT, started_by_distcheck
from distcheck.rules.wording import found, grouped, named, odd_ones, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts import Job, RankFacts


@rule("meeting")
def env_master_port_differs(job: Job) -> Iterator[Outcome]:
    """The ranks were told different ports to meet at.

    Rank 0 listens on its own and counts ``Timed out after 601 seconds waiting for clients. 1/2 clients
    joined.`` It comes from a random port that each node draws for itself. Found by comparing MASTER_PORT of
    all ranks.

    Fix: one port, worked out of something all nodes share:
    ``export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))``.
    """
    told = grouped((r for r in job.ranks if r.placement.master_port is not None), lambda r: r.placement.master_port)
    if len(told) < 2:
        return
    odd = odd_ones(told)
    yield found(
        job,
        odd,
        f"{spread(job, 'MASTER_PORT', told)}; expected one port",
        Fix("Set the same MASTER_PORT for every process.", master_commands(job, odd[0], "MASTER_PORT")),
        evidence={str(port): named(job, ranks) for port, ranks in told.items()},
    )


def _port_fault(job: Job, ranks: list[RankFacts], problem: str) -> Iterator[Outcome]:
    for port, several in grouped(ranks, lambda r: r.placement.master_port).items():
        yield found(
            job,
            several,
            f"{named(job, several)}: MASTER_PORT is {port}, {problem}",
            Fix("Choose a free port below the range of outgoing connections.", other_port(job, several[0])),
            evidence={"variable": "MASTER_PORT", "value": port},
        )


@rule("environment")
def env_master_port_range(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT is no port number.

    torch says ``port must have value from 0 to 65535 but was 70000``. Found by reading MASTER_PORT.

    Fix: a port from 1024 to 32767, for example ``export MASTER_PORT=29500``.
    See: https://github.com/huggingface/accelerate/issues/647
    """
    beyond = [r for r in job.ranks if r.placement.master_port is not None]
    beyond = [r for r in beyond if not 0 <= (r.placement.master_port or 0) <= LARGEST_PORT]
    yield from _port_fault(job, beyond, f"expected 1 to {LARGEST_PORT}")


@rule("environment")
def env_master_port_zero(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT is 0, a port that only rank 0 would know.

    Port 0 lets the kernel choose. A world of one works; in any larger one rank 0 listens where nobody looks,
    and the others connect until ``The client socket has timed out``. Found by reading MASTER_PORT and
    WORLD_SIZE.

    Fix: a fixed port, for example ``export MASTER_PORT=29500``.
    """
    zero = [r for r in job.ranks if r.placement.master_port == 0 and (r.placement.world_size or 0) > 1]
    yield from _port_fault(job, zero, "which lets the kernel choose a port that the other ranks do not know")


@rule("meeting")
def env_master_port_privileged(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT is reserved for the system, and rank 0 may not listen on it.

    torch says ``The server socket has failed to bind ... code: -13, name: EACCES, message: permission
    denied``. Ports below net.ipv4.ip_unprivileged_port_start, 1024 unless changed, need a privilege. Found by
    binding the port on rank 0.

    Fix: a port from 1024 on, for example ``export MASTER_PORT=29500``.
    """
    zero = rank_zero(job)
    bind = job.process_of(zero).bind if zero else None
    if zero is None or bind is None or bind.outcome != "denied":
        return
    first = first_open_port(job.node_of(zero))
    if bind.port < first:
        yield found(
            job,
            [zero],
            f"{named(job, [zero])} may not listen on MASTER_PORT {bind.port}; expected a port from {first} on",
            Fix("Choose a port that needs no privilege.", other_port(job, zero)),
            evidence={"port": bind.port, "error": bind.error, "unprivileged_port_start": first},
        )


@rule("meeting")
def env_master_port_ephemeral(job: Job) -> Iterator[Outcome]:
    """MASTER_PORT lies where the kernel takes the ports of outgoing connections.

    Now and then one of them owns the port just then, and rank 0 fails with ``EADDRINUSE`` on a busy node.
    Found by comparing it with net.ipv4.ip_local_port_range of rank 0's node; torchrun chooses for itself and
    is left out.

    Fix: a port below that range, for example ``export MASTER_PORT=29500``.
    """
    zero = rank_zero(job)
    if zero is None or started_by_distcheck(job, zero) or zero.placement.launcher == "torchrun":
        return
    port, ephemeral = zero.placement.master_port, job.node_of(zero).ephemeral_ports
    if port is None or isinstance(ephemeral, Missing) or not ephemeral[0] <= port <= ephemeral[1]:
        return
    yield found(
        job,
        [zero],
        f"MASTER_PORT {port} lies in the range of outgoing connections of {job.node_of(zero).name}, "
        f"{ephemeral[0]} to {ephemeral[1]}; one of them may hold it when the job starts",
        Fix(f"Choose a port below {ephemeral[0]}.", other_port(job, zero)),
        severity="info",
        evidence={"port": port, "ip_local_port_range": list(ephemeral)},
    )


@rule("meeting")
def env_port_speaks_http(job: Job) -> Iterator[Outcome]:
    """Another program answers on MASTER_PORT.

    A web server, a proxy in between or an SSH server takes the connection and speaks first; torch reads its
    words as a number: ``Ping failed, invalid value returned from server. Expected: ..., Got: 1347703880``.
    Those four bytes spell HTTP, 759714643 spells SSH-. Found by connecting and reading what comes. Silent
    when rank 0 could not listen because the port was taken: then net-port-in-use names the program.

    Fix: another port, or a way around the proxy.
    """
    zero = rank_zero(job)
    bind = job.process_of(zero).bind if zero else None
    if bind and bind.outcome == "in-use":
        return
    heard = [
        (f"{a.address} port {a.port}", a.detail, r)
        for r in job.ranks
        for a in job.process_of(r).attempts
        if a.door == "master" and a.outcome == "foreign" and a.detail
    ]
    for (where, words), several in grouped(heard, lambda item: item[:2]).items():
        ranks = [item[2] for item in several]
        # torch reads the first four bytes as a little-endian integer
        got = int.from_bytes(words.encode("utf-8", "replace")[:4], "little")
        who = (
            "an SSH server"
            if words.startswith("SSH-")
            else "a web server or proxy"
            if "HTTP" in words
            else "another program"
        )
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {who} answers on {where} ({words[:60]!r}), not rank 0; torch would say Got: {got}",
            Fix("Choose another port; if a proxy answers, go around it.", other_port(job, ranks[0])),
            scope="job",
            evidence={"address": where, "first_words": words, "torch_reads": got},
        )
