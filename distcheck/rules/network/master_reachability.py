"""Rules about MASTER_PORT and the way to it."""

from __future__ import annotations

from collections.abc import Iterator

from distcheck.facts import A_STORE, Attempt, Bind, Job, Missing, PortOwner, ProcessFacts, RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import first_open_port, is_address, rank_zero
from distcheck.rules.job.astray import home_of_rank_0, look_up
from distcheck.rules.job.remedies import other_port
from distcheck.rules.job.settings import chosen_by_agent
from distcheck.rules.network.attempts import address_of, at_master_door, failing, ranks_of, tried
from distcheck.rules.wording import brief, found, grouped, listed, named


@rule("meeting")
def net_port_in_use(job: Job) -> Iterator[Outcome]:
    """Another program listens on MASTER_PORT of rank 0's host.

    Rank 0 cannot open its store there: torch says "The server socket has failed to listen on any local network
    address … EADDRINUSE, message: address already in use". The other ranks connect to that program instead of rank 0;
    when it never answers, they hang for ever. Usually it is what a former run has left behind, or a second job that
    took the same default port 29500.

    Found by binding MASTER_PORT as torch's TCPStore binds it, and by looking up the listening socket's process. The
    port of torchrun's own agent is not a fault. A port that distcheck derived because MASTER_PORT is not set is a
    warning, unless ``--export`` hands it to COMMAND: the job's own script may take another.

    Fix: end the process if it is yours, or take another port: ``export MASTER_PORT=...`` on every rank, or
    ``torchrun --standalone`` on one node. Another job's, user's or container's process is left alone.
    """
    for process, bind in _binds(job, "in-use"):
        owner, ranks = bind.owner, _binders(job, process)
        if isinstance(owner, PortOwner):
            whose = f"process {owner.pid} of {owner.user}"
            whose += f" in Slurm job {owner.slurm_job}" if owner.slurm_job else ""
            whose += f" in container {owner.container}" if owner.container else ""
            who = f"{whose} ({brief(owner.command)}), started {owner.started}"
            evidence = {"pid": owner.pid, "command": owner.command, "user": owner.user, "started": owner.started}
        else:
            reason = owner.reason if isinstance(owner, Missing) else "unknown"
            who, evidence = f"a process that cannot be seen ({reason})", {"owner": reason}
        derived = bool(ranks) and ranks[0].placement.master_derived and not ranks[0].environment.get("MASTER_PORT")
        port = f"MASTER_PORT {bind.port}" + (", which distcheck derived," if derived else "")
        yield found(
            job,
            ranks,
            f"{port} is taken on rank 0's host by {who}{_heard(job)}",
            _elsewhere(job, ranks[0], bind) if ranks else Fix("Give the job another port."),
            severity="warning" if derived and not job.asked.export else "error",
            evidence={"port": bind.port, "error": bind.error, **evidence},
        )


def _elsewhere(job: Job, rank: RankFacts, bind: Bind) -> Fix:
    """Return what frees rank 0's port: the process that holds it is only ended where it is the user's own to end."""
    owner, node, another = bind.owner, job.node_of(rank), other_port(job, rank)
    where = f"ssh {node.name} " if len(job.nodes) > 1 else ""
    if not isinstance(owner, PortOwner):
        jobs = (f"squeue --nodelist={node.name}",) if "SLURM_JOB_ID" in rank.environment else ()
        return Fix(
            "Give the job another port; root on that host sees whose process it is.",
            (*another, *jobs, f"{where}sudo ss -ltnp 'sport = :{bind.port}'"),
        )
    if owner.slurm_job and owner.slurm_job != rank.environment.get("SLURM_JOB_ID"):
        return Fix(
            f"Slurm job {owner.slurm_job} holds {node.name}:{bind.port}: give this job another port.",
            (*another, f"scontrol show job {owner.slurm_job}"),
        )
    if owner.container or not owner.own or bind.port < first_open_port(node):
        place = f"Container {owner.container} of {owner.user}" if owner.container else f"A process of {owner.user}"
        return Fix(f"{place} holds {node.name}:{bind.port}: give the job another port.", another)
    return Fix(
        f"Process {owner.pid} is {owner.user}'s, as this job is: end it if it is left over, or give the job another "
        "port.",
        (f"{where}kill {owner.pid}", *another),
    )


def _heard(job: Job) -> str:
    """Say how the program that holds rank 0's port treated the others, '' when none of them met it."""
    met = [a for p in job.processes if p.role != "host" for a in at_master_door(p)]
    words = next((a.detail for a in met if a.outcome == "foreign" and a.detail), "")
    if words:
        return f"; it answers the others {brief(repr(words))}"
    if any(a.outcome == "stranger" for a in met):
        return "; it is the roll call of another job"
    silent = [a for a in met if a.outcome == "silent"]
    if any(a.detail == A_STORE for a in silent):
        return f"; it is {A_STORE}"
    if silent:
        return "; it says nothing to the others, so that they would wait for ever"
    if any(a.outcome == "closed" for a in met):
        return "; it closes the others' connections"
    return ""


@rule("meeting")
def net_bind_failed(job: Job) -> Iterator[Outcome]:
    """Rank 0 cannot listen on MASTER_PORT, and not because somebody else does.

    torch says "The server socket has failed to listen on any local network address" with the system's reason. Found by
    binding MASTER_PORT as torch's TCPStore binds it. A port that needs a privilege is env-master-port-privileged.

    Fix: look at the system's reason; a container without a network namespace of its own, or a security profile
    (SELinux, AppArmor, seccomp) that forbids listening, are the usual ones.
    """
    for process, bind in _binds(job, "failed", "denied"):
        ranks = _binders(job, process)
        if bind.outcome == "denied" and ranks and bind.port < first_open_port(job.node_of(ranks[0])):
            continue
        verb = "may not" if bind.outcome == "denied" else "cannot"
        yield found(
            job,
            ranks,
            f"rank 0 {verb} listen on MASTER_PORT {bind.port}: {bind.error}",
            Fix(
                "Let the process listen on TCP ports; the system's reason says what keeps it from that.",
                ("sudo ausearch -m avc -ts recent; sudo dmesg | grep -iE 'apparmor|seccomp|denied'",)
                if bind.outcome == "denied"
                else (f"python -c 'import socket; socket.create_server((\"\", {bind.port}))'",),
            ),
            scope="node",
            owner="admin",
            confirmed=False,
            evidence={"port": bind.port, "error": bind.error},
        )


@rule("meeting")
def net_port_in_use_by_peer_job(job: Job) -> Iterator[Outcome]:
    """The roll call of another job answers on MASTER_PORT.

    Two jobs were given the same MASTER_ADDR and MASTER_PORT. Their ranks would join each other's store: "Timed out …
    clients joined" with counts that are wrong, or a broken pipe. Found by the handshake: every knock carries the job's
    name and a nonce, and the other side refused it. Where rank 0's own host shows whose process holds the port,
    net-port-in-use reports it.

    Fix: give each job a port of its own, for example derived from the job's number.
    """
    if any(_binds(job, "in-use")):
        return  # net-port-in-use tells whose process it is
    met = [
        (p, a) for p in job.processes if (a := next((a for a in at_master_door(p) if a.outcome == "stranger"), None))
    ]
    for where, several in grouped(met, lambda pair: address_of(pair[1])).items():
        answer = several[0][1].detail
        yield found(
            job,
            ranks_of(job, {process.uid for process, _ in several}),
            f"at {where} another job answers: {answer}",
            Fix("Give each job a MASTER_PORT of its own.", other_port(job, job.ranks[0])),
            evidence={"address": where, "answer": answer},
        )


@rule("meeting")
def net_master_unreachable(job: Job) -> Iterator[Outcome]:
    """Packets to MASTER_ADDR:MASTER_PORT are dropped or rejected on the way, or there is no route.

    torch waits ten minutes and then says "The client socket has timed out after 600000ms while trying to connect to
    (HOST, PORT)", or "errno: 113 - No route to host".

    Found by connecting from every process with a short time limit, until the roll call closes. No answer means that
    packets are dropped, unreachable that there is no route or that a firewall says so; refused, that it rejects
    them, when rank 0 listened and could be met on another port.

    Fix: open the port in the firewall or security group, or use an address that the node can route to; in containers
    use the host's network.
    """
    ways_in = [*failing(job, {"timeout", "unreachable"}), *_refused(job, met=True)]
    for ranks, attempts in ways_in:
        if chosen_by_agent(job, ranks[0]):
            continue  # torchrun chose the port as well: torchrun-store-port-extra
        ways = listed([f"{address_of(a)}: {_manner(a)}" for a in attempts])
        name = ranks[0].placement.master_addr or ""
        spelt = "MASTER_ADDR:MASTER_PORT" if is_address(name) else f"rank 0 at MASTER_ADDR {name}"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} cannot reach {spelt} ({ways})",
            Fix(
                "Open the port between the nodes, or use an address that the nodes can route to.",
                (f"sudo firewall-cmd --add-port={attempts[0].port}/tcp",),
            ),
            scope="link",
            owner="admin",
            evidence=tried(attempts),
        )


@rule("meeting", consequence=True)
def net_master_refused(job: Job) -> Iterator[Outcome]:
    """Nobody listens on MASTER_ADDR:MASTER_PORT.

    torch tries again silently until "The client socket has timed out after 600000ms while trying to connect to (HOST,
    PORT)". The host answers, so the network is good: rank 0 was not started, has crashed, or listens on another host
    or port. Found by connecting until the roll call closes; rank 0's own distcheck listens there while it waits, so
    start-up order does not matter.

    Fix: look at rank 0's log, and check that MASTER_ADDR is rank 0's host.
    """
    for ranks, attempts in _refused(job, met=False):
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} found nobody listening at {_places(ranks[0], attempts)}",
            Fix(
                "Start rank 0, or look at why it ended; on every node MASTER_ADDR must mean the one where it runs.",
                _what_it_means(job, ranks),
            ),
            scope="link",
            owner="unknown",
            evidence=tried(attempts),
        )


def _refused(job: Job, *, met: bool) -> Iterator[tuple[list[RankFacts], list[Attempt]]]:
    """Return who was refused: those who met a listening rank 0 on another port all the same, or the others."""
    zero = rank_zero(job)
    bind = job.process_of(zero).bind if zero else None
    listening = bind is not None and bind.outcome == "bound"
    for ranks, attempts in failing(job, {"refused"}):
        came_in = any(job.process_of(r).role == "guest" for r in ranks)
        if (listening and job.met and came_in) == met:
            yield ranks, attempts


def _places(rank: RankFacts, attempts: list[Attempt]) -> str:
    """Name where a rank knocked, with the name that leads there: node1 (10.0.0.1:29500)."""
    name, places = rank.placement.master_addr or "", listed([address_of(a) for a in attempts])
    return places if is_address(name) else f"{name} ({places})"


def _what_it_means(job: Job, ranks: list[RankFacts]) -> tuple[str, ...]:
    """Return the commands that show what MASTER_ADDR means to these ranks and on rank 0's node, if that is known."""
    name = ranks[0].placement.master_addr or ""
    return () if is_address(name) else look_up(job, name, job.node_of(ranks[0]).name, home_of_rank_0(job))


def _manner(attempt: Attempt) -> str:
    words = {
        "timeout": "packets are dropped",
        "unreachable": "rejected, or no route",
        "refused": "rejected although rank 0 listens",
    }
    return f"{words[attempt.outcome]}, {attempt.detail or attempt.outcome}"


@rule("meeting")
def net_master_silent(job: Job) -> Iterator[Outcome]:
    """Something accepts connections on MASTER_ADDR:MASTER_PORT and does not answer.

    torch's ranks then hang for ever: its time-out does not cover the handshake. Found by saying hello and waiting three
    seconds. When the program's owner is known from rank 0's host, the port is reported as taken instead.

    Fix: give the job another port, or end the program that listens there.
    """
    for ranks, attempts in failing(job, {"silent", "closed"}):
        said = attempts[0].detail or "it did not answer"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: what listens at {_places(ranks[0], attempts)} is not rank 0: {said}",
            Fix(
                "Give the job another MASTER_PORT, or end the program that listens there.",
                (*other_port(job, ranks[0]), f"ssh {attempts[0].address} ss -ltnp 'sport = :{attempts[0].port}'"),
            ),
            evidence=tried(attempts),
        )


def _binders(job: Job, process: ProcessFacts) -> list[RankFacts]:
    """Return the rank that would have bound MASTER_PORT: rank 0, not those for which its process speaks as well."""
    spoken = ranks_of(job, {process.uid})
    return [r for r in spoken if r.placement.rank == 0] or spoken


def _binds(job: Job, *outcomes: str) -> Iterator[tuple[ProcessFacts, Bind]]:
    """Return rank 0's processes whose binding of MASTER_PORT ended so.

    A second rank 0 finds the port taken by the first one's distcheck; that is a rank that is there twice, and the
    owner's pid tells.
    """
    ours = {(p.node, p.pid) for p in job.processes}
    for process in job.processes:
        bind = process.bind
        if bind is None or bind.outcome not in outcomes:
            continue
        if isinstance(bind.owner, PortOwner) and (process.node, bind.owner.pid) in ours:
            continue
        yield process, bind
