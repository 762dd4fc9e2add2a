"""Rules about MASTER_PORT, the way to it, and the ports between peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from distcheck.facts import Attempt, Bind, Job, Missing, PeerTrial, PortOwner, ProcessFacts
from distcheck.finding import Finding, Fix, NotChecked
from distcheck.rules import Outcome, rule

_FIREWALL = (
    'sysctl -w net.ipv4.ip_local_port_range="50000 51000"',
    "firewall-cmd --add-port=50000-51000/tcp",
)


@rule("meeting")
def net_port_in_use(job: Job) -> Iterator[Outcome]:
    """Another program listens on MASTER_PORT of rank 0's host.

    Rank 0 cannot open its store there: torch says "The server socket has failed to listen on any local network
    address … EADDRINUSE, message: address already in use". The other ranks connect to that program instead of rank 0;
    when it never answers, they hang for ever. Usually it is what a former run has left behind, or a second job that
    took the same default port 29500.

    Found by binding MASTER_PORT as torch's TCPStore binds it, and by looking up the listening socket's process. The
    port of torchrun's own agent is not a fault.

    Fix: end the process if it is yours, or take another port: ``--master-port``, or ``torchrun --standalone`` on one
    node.
    """
    for process, bind in _binds(job, "in-use"):
        owner = bind.owner
        if isinstance(owner, PortOwner):
            who = f"process {owner.pid} of {owner.user} ({owner.command}), started {owner.started}"
            evidence = {
                "pid": owner.pid,
                "command": owner.command,
                "user": owner.user,
                "started": owner.started,
            }
            commands = (f"kill {owner.pid}", "torchrun --master-port 29511 …")
        else:
            reason = owner.reason if isinstance(owner, Missing) else "unknown"
            who = f"a process that cannot be seen ({reason})"
            evidence = {"owner": reason}
            commands = (f"ss -ltnp 'sport = :{bind.port}'", "torchrun --master-port 29511 …")
        yield Finding(
            scope="rank",
            ranks=_ranks(job, process),
            nodes=_nodes(job, process),
            message=f"MASTER_PORT {bind.port} is taken on rank 0's host by {who}",
            evidence={"port": bind.port, "error": bind.error, **evidence},
            fix=Fix("End that process if it is yours, or give the job another port.", commands),
        )


@rule("meeting")
def net_bind_failed(job: Job) -> Iterator[Outcome]:
    """Rank 0 cannot listen on MASTER_PORT, and not because somebody else does.

    torch says "The server socket has failed to listen on any local network address" with the system's reason. Found by
    binding MASTER_PORT as torch's TCPStore binds it. A privileged port has a rule of its own.

    Fix: look at the system's reason; a container without a network namespace of its own, or a security profile that
    forbids listening, are the usual ones.
    """
    for process, bind in _binds(job, "failed"):
        yield Finding(
            scope="node",
            owner="admin",
            confirmed=False,
            ranks=_ranks(job, process),
            nodes=_nodes(job, process),
            message=f"rank 0 cannot listen on MASTER_PORT {bind.port}: {bind.error}",
            evidence={"port": bind.port, "error": bind.error},
            fix=Fix("Let the process listen on TCP ports; see the system's reason above."),
        )


@rule("meeting")
def net_port_in_use_by_peer_job(job: Job) -> Iterator[Outcome]:
    """The roll call of another job answers on MASTER_PORT.

    Two jobs were given the same MASTER_ADDR and MASTER_PORT. Their ranks would join each other's store: "Timed out …
    clients joined" with counts that are wrong, or a broken pipe. Found by the handshake: every knock carries the job's
    name and a nonce, and the other side refused it.

    Fix: give each job a port of its own, for example derived from the job's number.
    """
    for process in job.processes:
        strangers = [a for a in _master(process) if a.outcome == "stranger"]
        if strangers:
            yield Finding(
                scope="rank",
                ranks=_ranks(job, process),
                nodes=_nodes(job, process),
                message=f"at {_where(strangers[0])} another job answers: {strangers[0].detail}",
                evidence={"address": _where(strangers[0]), "answer": strangers[0].detail},
                fix=Fix(
                    "Give each job a MASTER_PORT of its own.",
                    ("export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",),
                ),
            )


@rule("meeting")
def net_master_unreachable(job: Job) -> Iterator[Outcome]:
    """Packets to MASTER_ADDR:MASTER_PORT are dropped, or there is no route.

    torch waits ten minutes and then says "The client socket has timed out after 600000ms while trying to connect to
    (HOST, PORT)", or "errno: 113 - No route to host". Refused connections are another rule's matter: there the host
    answers. Found by connecting from every process with a short time limit, until the roll call closes.

    Fix: open the port in the firewall or security group, or use an address that the node can route to; in containers
    use the host's network.
    """
    for process, attempts in _failing(job, {"timeout", "unreachable"}):
        ways = ", ".join(f"{_where(a)}: {a.detail or a.outcome}" for a in attempts)
        yield Finding(
            scope="link",
            owner="admin",
            ranks=_ranks(job, process),
            nodes=_nodes(job, process),
            message=f"{_who(job, process)} cannot reach MASTER_ADDR:MASTER_PORT ({ways})",
            evidence={"attempts": [f"{_where(a)} {a.outcome} after {a.tries} tries: {a.detail}" for a in attempts]},
            fix=Fix(
                "Open the port between the nodes, or use an address that this node can route to.",
                (f"firewall-cmd --add-port={attempts[0].port}/tcp",),
            ),
        )


@rule("meeting")
def net_master_refused(job: Job) -> Iterator[Outcome]:
    """Nobody listens on MASTER_ADDR:MASTER_PORT.

    torch tries again silently until "The client socket has timed out after 600000ms while trying to connect to (HOST,
    PORT)". The host answers, so the network is good: rank 0 was not started, has crashed, or listens on another host
    or port. Found by connecting until the roll call closes; rank 0's own distcheck listens there while it waits, so
    start-up order does not matter.

    Fix: look at rank 0's log, and check that MASTER_ADDR is rank 0's host.
    """
    for process, attempts in _failing(job, {"refused"}):
        yield Finding(
            scope="link",
            owner="unknown",
            ranks=_ranks(job, process),
            nodes=_nodes(job, process),
            message=f"{_who(job, process)} found nobody listening at {', '.join(_where(a) for a in attempts)}",
            evidence={"attempts": [f"{_where(a)} {a.outcome} after {a.tries} tries: {a.detail}" for a in attempts]},
            fix=Fix("Start rank 0, or look at why it ended; MASTER_ADDR must be the host on which it runs."),
        )


@rule("meeting")
def net_master_silent(job: Job) -> Iterator[Outcome]:
    """Something accepts connections on MASTER_ADDR:MASTER_PORT and does not answer.

    torch's ranks then hang for ever: its time-out does not cover the handshake. Found by saying hello and waiting three
    seconds. When the program's owner is known from rank 0's host, the port is reported as taken instead.

    Fix: give the job another port, or end the program that listens there.
    """
    for process, attempts in _failing(job, {"silent", "closed"}):
        yield Finding(
            scope="rank",
            ranks=_ranks(job, process),
            nodes=_nodes(job, process),
            message=f"what listens at {', '.join(_where(a) for a in attempts)} is not rank 0: {attempts[0].detail}",
            evidence={"attempts": [f"{_where(a)} {a.outcome}: {a.detail}" for a in attempts]},
            fix=Fix(
                "Give the job another MASTER_PORT, or end the program that listens there.",
                (f"ss -ltnp 'sport = :{attempts[0].port}'",),
            ),
        )


@rule("peers")
def net_firewall_ephemeral(job: Job) -> Iterator[Outcome]:
    """Ports that the kernel chooses are closed between nodes.

    Only MASTER_PORT is open. NCCL's bootstrap and sockets and Gloo's mesh listen on kernel-chosen ports between every
    pair: the rendezvous works, and then "connectFullMesh failed", "No route to host" or "exceeded error retry count"
    follows, or nothing at all. Found by letting every process listen on such a port and every other one connect.

    Fix: allow all TCP between the nodes of a job, or open a range and keep the kernel to it.
    """
    failed = [t for t in job.peers if t.outcome != "met"]
    if "peers" in job.asked.looks and not job.peers and len(job.processes) > 1 and job.met:
        yield NotChecked(reason="the peers have not tried each other")
    both_ways = {(t.source, t.target) for t in failed}
    for trial in failed:
        if (trial.target, trial.source) in both_ways and trial.source < trial.target:
            yield _pair(job, trial, f"{_pair_names(job, trial)} cannot reach each other on ports the kernel chooses")


@rule("peers")
def net_asymmetric_route(job: Job) -> Iterator[Outcome]:
    """One process reaches another on a kernel-chosen port, and not the other way round.

    Every pair of ranks connects in a direction that the library picks, so the job hangs or not by luck. A one-sided
    firewall rule, reverse path filtering or address translation does this. Found by trying each pair both ways.

    Fix: make the firewall's rules symmetric; with several networks, loosen reverse path filtering.
    """
    outcome = {(t.source, t.target): t.outcome for t in job.peers}
    for trial in job.peers:
        if trial.outcome != "met" and outcome.get((trial.target, trial.source)) == "met":
            yield _pair(
                job,
                trial,
                f"{_name(job, trial.source)} cannot reach {_name(job, trial.target)}, the other direction works",
                "sysctl -w net.ipv4.conf.all.rp_filter=2",
            )


def _pair(job: Job, trial: PeerTrial, message: str, *commands: str) -> Finding:
    ends = [p for p in job.processes if p.uid in {trial.source, trial.target}]
    return Finding(
        scope="link",
        owner="admin",
        ranks=tuple(sorted(n for p in ends for n in _ranks(job, p))),
        nodes=tuple(dict.fromkeys(n for p in ends for n in _nodes(job, p))),
        message=f"{message} ({trial.outcome} at {trial.address}:{trial.port})",
        evidence={
            "address": f"{trial.address}:{trial.port}",
            "outcome": trial.outcome,
            "detail": trial.detail,
        },
        fix=Fix("Allow TCP between the nodes on the ports that the kernel chooses.", commands or _FIREWALL),
    )


def _pair_names(job: Job, trial: PeerTrial) -> str:
    return f"{_name(job, trial.source)} and {_name(job, trial.target)}"


def _binds(job: Job, outcome: str) -> Iterator[tuple[ProcessFacts, Bind]]:
    """Return rank 0's processes whose binding of MASTER_PORT ended so.

    A second rank 0 finds the port taken by the first one's distcheck; that is a rank that is there twice, and the
    owner's pid tells.
    """
    ours = {p.pid for p in job.processes}
    for process in job.processes:
        bind = process.bind
        if bind is None or bind.outcome != outcome:
            continue
        if isinstance(bind.owner, PortOwner) and bind.owner.pid in ours:
            continue
        yield process, bind


def _failing(job: Job, outcomes: set[str]) -> Iterator[tuple[ProcessFacts, list[Attempt]]]:
    """Return the processes of which every try at the master door ended so, unless something else explains it.

    Rank 0's own binding of the port may; or the roll call, held by another process, found that rank 0 is missing.
    """
    explained = any(p.bind is not None and p.bind.outcome in {"in-use", "denied", "failed"} for p in job.processes)
    explained = explained or (job.met and 0 in job.missing_ranks)
    masters = {r.process: (r.placement.master_addr, r.placement.master_port) for r in reversed(job.ranks)}
    rank_0 = next((masters[r.process] for r in job.ranks if r.placement.rank == 0), None)
    for process in job.processes:
        attempts = _master(process)
        if rank_0 is not None and masters.get(process.uid) != rank_0:
            continue  # it looked elsewhere: env-master-addr-differs and env-master-port-differs tell
        if attempts and not explained and all(a.outcome in outcomes for a in attempts):
            yield process, attempts


def _master(process: ProcessFacts) -> list[Attempt]:
    return [a for a in process.attempts if a.door == "master"]


def _where(attempt: Attempt) -> str:
    address = f"[{attempt.address}]" if ":" in attempt.address else attempt.address
    return f"{address}:{attempt.port}"


def _by_process(job: Job) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for r in job.ranks:
        if r.placement.rank is not None:
            ranks[r.process].append(r.placement.rank)
    return ranks


def _ranks(job: Job, process: ProcessFacts) -> tuple[int, ...]:
    return tuple(_by_process(job)[process.uid])


def _nodes(job: Job, process: ProcessFacts) -> tuple[str, ...]:
    return tuple(n.name for n in job.nodes if n.key == process.node)


def _name(job: Job, uid: str) -> str:
    process = next((p for p in job.processes if p.uid == uid), None)
    return _who(job, process) if process else "a process that is gone"


def _who(job: Job, process: ProcessFacts) -> str:
    ranks = _ranks(job, process)
    node = ", ".join(_nodes(job, process))
    if not ranks:
        return f"process {process.pid} ({node})"
    return f"rank {ranks[0]} ({node})" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]} ({node})"
