"""Rules about MASTER_PORT and the path to it."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from distcheck.facts.job import Job
from distcheck.facts.network import Attempt, Bind, PortOwner
from distcheck.facts.rank import ProcessFacts, RankFacts, Role
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import first_open_port, is_address, master_outcomes, own_addresses, rank_zero
from distcheck.rules.job.remedies import other_port
from distcheck.rules.job.wrong_master import home_of_rank_0, look_up
from distcheck.rules.network.attempts import address_of, failing, master_attempts, ranks_of, tried
from distcheck.rules.network.port_owners import answers_of_owner, holder, owner_commands
from distcheck.rules.network.translation import HOST_NETWORK, NO_ROUTE
from distcheck.rules.wording import found, grouped, listed, named


@rule("meeting", scope="rank")
def net_port_in_use(job: Job) -> Iterator[Outcome]:
    """Another program holds MASTER_PORT of rank 0's host.

    Rank 0 cannot open its store there: torch fails with "The server socket has failed to listen on any local network
    address … EADDRINUSE, message: address already in use". The other ranks connect to that program instead of rank 0.
    If it never answers, they hang forever. Usually it is a leftover of an earlier run, or a second job with the same
    default port 29500.

    An outgoing connection holds an ephemeral port in the same way, and the kernel keeps the port for up to 60 s after
    the connection has ended (TIME_WAIT).

    Found by binding MASTER_PORT as torch's TCPStore binds it, and by looking up the process of the listening socket or
    of the connection. The port of torchrun's own agent is not a fault. A port that distcheck derived because
    MASTER_PORT is not set is a warning, unless ``--export`` passes it to COMMAND: the job's own script may use another
    port.

    Fix: End the process if it is left over from a run of yours; otherwise use another port, below the ephemeral range.

        {owner|sudo ss -ltnp  # on the host of rank 0}
        {other_port|export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))}
    """
    for process, bind in _binds(job, "in-use"):
        ranks = _binders(job, process)
        who, evidence = holder(bind)
        derived = bool(ranks) and ranks[0].placement.master_derived and not ranks[0].environment.get("MASTER_PORT")
        port = f"MASTER_PORT {bind.port}" + (", which distcheck derived," if derived else "")
        yield found(
            job,
            ranks,
            f"{port} is taken by {who}{answers_of_owner(job)}",
            severity="warning" if derived and not job.asked.export else "error",
            evidence={"port": bind.port, "error": bind.error, **evidence},
            values={"owner": owner_commands(job, ranks[0], bind), "other_port": other_port(job, ranks[0])}
            if ranks
            else {},
        )


@rule("meeting", scope="node", owner="admin")
def net_bind_failed(job: Job) -> Iterator[Outcome]:
    """Rank 0 cannot listen on MASTER_PORT, although no other process does.

    torch fails with "The server socket has failed to listen on any local network address" and the system error.

    Found by binding MASTER_PORT as torch's TCPStore binds it. env-master-port-privileged reports a port that needs a
    privilege.

    Fix: Allow the process to listen on TCP ports; the system error names what prevents it. The usual causes are a
    container without its own network namespace, or a security profile (SELinux, AppArmor, seccomp).

        {look|sudo ausearch -m avc -ts recent; sudo dmesg | grep -iE 'apparmor|seccomp|denied'}
    """
    for process, bind in _binds(job, "failed", "denied"):
        ranks = _binders(job, process)
        if bind.outcome == "denied" and ranks and bind.port < first_open_port(job.node_of(ranks[0])):
            continue
        denied = bind.outcome == "denied"
        look = f"python -c 'import socket; socket.create_server((\"\", {bind.port}))'"
        yield found(
            job,
            ranks,
            f"rank 0 {'is not permitted to' if denied else 'cannot'} listen on MASTER_PORT {bind.port}: {bind.error}",
            confirmed=False,
            evidence={"port": bind.port, "error": bind.error},
            values={} if denied else {"look": [look]},
        )


@rule("meeting", scope="rank")
def net_port_in_use_by_peer_job(job: Job) -> Iterator[Outcome]:
    """The roll call of another job answers on MASTER_PORT.

    Two jobs have the same MASTER_ADDR and MASTER_PORT. Their ranks would join each other's store: "Timed out …
    clients joined" with wrong counts, or a broken pipe.

    Found by the handshake: every connection carries the job's name and a nonce, and the other side refused it. Where
    rank 0's host shows which process holds the port, net-port-in-use reports it.

    Fix: Give each job its own MASTER_PORT, for example derived from the job id.

        {other_port|export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))}
    """
    if "stranger" not in master_outcomes(job) or any(_binds(job, "in-use")):
        return  # net-port-in-use names the process
    met = [(p, a) for p in job.processes for a in [a for a in master_attempts(p) if a.outcome == "stranger"][:1]]
    for where, several in grouped(met, lambda pair: address_of(pair[1])).items():
        answer = several[0][1].detail
        yield found(
            job,
            ranks_of(job, {process.uid for process, _ in several}),
            f"another job answers at {where}: {answer}",
            evidence={"address": where, "answer": answer},
            values={"other_port": other_port(job, job.ranks[0])},
        )


@rule("meeting", scope="link", unless=("torchrun-store-port-extra",), owner="admin")
def net_master_unreachable(job: Job) -> Iterator[Outcome]:
    """Packets to MASTER_ADDR:MASTER_PORT are dropped or rejected, or there is no route.

    torch waits ten minutes and then fails with "The client socket has timed out after 600000ms while trying to connect
    to (HOST, PORT)", or "errno: 113 - No route to host".

    Found by connecting from every process with a short timeout, until the roll call closes. No answer means that
    packets are dropped. Unreachable means that the node has no route (errno 101), or that a firewall answers so (errno
    113); either, in the node's own subnet, may mean that no host has the address. Refused, while rank 0 listened and
    was reached on another port, means that a firewall rejects them.

    Fix: open the port in the firewall or security group, or use an address that the node can route to. In a virtual
    machine, in WSL2 and in a container, use the host's network.
    """
    blocked = [*failing(job, {"timeout", "unreachable"}), *_refused(job, met=True)]
    for ranks, attempts in blocked:
        home = next((n.name for n in job.nodes if not own_addresses(n).isdisjoint(a.address for a in attempts)), "")
        ways = listed([f"{address_of(a)}: {_manner(a)}, {a.detail or a.outcome}" for a in attempts])
        name = ranks[0].placement.master_addr or ""
        target = "MASTER_ADDR:MASTER_PORT" if is_address(name) else f"rank 0 at MASTER_ADDR {name}"
        fix = Fix(
            "Check that MASTER_ADDR is an address of rank 0's host to which the nodes can route; open the port there.",
            (f"sudo firewall-cmd --add-port={attempts[0].port}/tcp  # on {home or 'the host of rank 0'}",),
        )
        if all(NO_ROUTE in a.detail for a in attempts):
            text = f"Use an address to which the nodes have a route. Guests need {HOST_NETWORK}, or a VPN."
            fix = Fix(text, (f"ip route get {quote(attempts[0].address)}  # on {job.node_of(ranks[0]).name}",))
        message = f"{named(job, ranks)} cannot reach {target} ({ways})"
        yield found(job, ranks, message, fix, evidence=tried(attempts))


def _manner(attempt: Attempt) -> str:
    if NO_ROUTE in attempt.detail:
        return "no route"
    causes = {"timeout": "packets are dropped", "refused": "rejected although rank 0 listens"}
    return causes.get(attempt.outcome, "rejected, or no route")


@rule("meeting", consequence=True, scope="link", owner="unknown")
def net_master_refused(job: Job) -> Iterator[Outcome]:
    """No process listens on MASTER_ADDR:MASTER_PORT.

    torch retries silently until "The client socket has timed out after 600000ms while trying to connect to (HOST,
    PORT)". The host answers, so the network works: rank 0 was not started, has crashed, or listens on another host
    or port.

    Found by connecting until the roll call closes. Rank 0's own distcheck listens there while it waits, so the start-up
    order does not matter.

    Fix: Start rank 0, or check in its log why it exited; on every node MASTER_ADDR must resolve to rank 0's host.

        {look_up|getent ahosts $MASTER_ADDR}
    """
    for ranks, attempts in _refused(job, met=False):
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: connection refused at {_places(ranks[0], attempts)}; no process listens there",
            evidence=tried(attempts),
            values={"look_up": _lookup_commands(job, ranks)},
        )


def _refused(job: Job, *, met: bool) -> Iterator[tuple[list[RankFacts], list[Attempt]]]:
    """Yield the refused ranks: those that reached rank 0 on another port, or the others."""
    zero = rank_zero(job)
    bind = job.process_of(zero).bind if zero else None
    listening = bind is not None and bind.outcome == "bound"
    for ranks, attempts in failing(job, {"refused"}):
        came_in = any(job.process_of(r).role is Role.FOLLOWER for r in ranks)
        if (listening and job.met and came_in) == met:
            yield ranks, attempts


def _places(rank: RankFacts, attempts: list[Attempt]) -> str:
    """Return the endpoints a rank tried, with their host name: node1 (10.0.0.1:29500)."""
    name, places = rank.placement.master_addr or "", listed([address_of(a) for a in attempts])
    return places if is_address(name) else f"{name} ({places})"


def _lookup_commands(job: Job, ranks: list[RankFacts]) -> tuple[str, ...]:
    """Return commands that resolve MASTER_ADDR on these ranks' node and on rank 0's, if known."""
    name = ranks[0].placement.master_addr or ""
    return () if is_address(name) else look_up(job, name, job.node_of(ranks[0]).name, home_of_rank_0(job))


@rule("meeting", scope="rank")
def net_master_silent(job: Job) -> Iterator[Outcome]:
    """A program accepts connections on MASTER_ADDR:MASTER_PORT and does not answer.

    torch's ranks then hang forever, because its timeout does not cover the handshake.

    Found by sending a handshake and waiting several seconds. When rank 0's host shows the program's owner, the port is
    reported as taken instead.

    Fix: Use another MASTER_PORT for the job, or end the program that listens there.

        {other_port|export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))}
        ssh {host|$MASTER_ADDR} ss -ltnp 'sport = :{port}'
    """
    for ranks, attempts in failing(job, {"silent", "closed"}):
        answer = attempts[0].detail or "it did not answer"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the program listening at {_places(ranks[0], attempts)} is not rank 0: {answer}",
            evidence=tried(attempts),
            values={
                "other_port": other_port(job, ranks[0]),
                "host": [quote(attempts[0].address)],
                "port": [str(attempts[0].port)],
            },
        )


def _binders(job: Job, process: ProcessFacts) -> list[RankFacts]:
    """Return the rank that would bind MASTER_PORT: rank 0, without others of its process."""
    ranks = ranks_of(job, {process.uid})
    return [r for r in ranks if r.placement.rank == 0] or ranks


def _binds(job: Job, *outcomes: str) -> Iterator[tuple[ProcessFacts, Bind]]:
    """Yield rank 0's processes whose binding of MASTER_PORT had one of these outcomes.

    A second rank 0 finds the port taken by the first one's distcheck. That is a duplicate rank, recognised by the
    owner's pid, and is left out. An outgoing connection of a distcheck holds the port like any other.
    """
    bound = [(p, p.bind) for p in job.processes if p.bind is not None and p.bind.outcome in outcomes]
    ours = {(p.node, p.pid) for p in job.processes} if bound else set()
    for process, bind in bound:
        if isinstance(bind.owner, PortOwner) and not bind.connection and (process.node, bind.owner.pid) in ours:
            continue
        yield process, bind
