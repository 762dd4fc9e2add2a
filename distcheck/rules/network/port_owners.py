"""The program that holds MASTER_PORT on the host of rank 0: how to end it, and how it treats other ranks."""

from __future__ import annotations

from shlex import quote

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.network import A_STORE, Bind, PortOwner
from distcheck.facts.rank import RankFacts, Role
from distcheck.rules.job.addresses import first_open_port
from distcheck.rules.network.attempts import master_attempts
from distcheck.rules.wording import brief

_TIME_WAIT_SECONDS = 60
"""Linux's TCP_TIMEWAIT_LEN (include/net/tcp.h), which no sysctl changes."""

_ANSWERS = {
    "stranger": "; it is the roll call of another job",
    "silent": "; it does not answer the other ranks, so they would hang",
    "closed": "; it closes the connections of the other ranks",
}
"""How a program on rank 0's port may treat the attempts of other ranks, by their outcome."""


def holder(bind: Bind) -> tuple[str, dict[str, object]]:
    """Return what holds a taken port, as text and as evidence."""
    owner, connection = bind.owner, bind.connection
    prefix, evidence = "", dict[str, object]()
    if connection is not None:
        evidence = {"connected_to": connection.peer, "state": connection.state}
        if connection.ended:
            kept = f"the kernel keeps the port for up to {_TIME_WAIT_SECONDS} s ({connection.state})"
            return f"a connection to {connection.peer} that has ended; {kept}", evidence
        prefix = f"a connection to {connection.peer} of "
    if isinstance(owner, PortOwner):
        program, _, arguments = owner.command.partition(" ")
        shown = brief(f"{program.rpartition('/')[2]} {arguments}".strip())
        whose = f"process {owner.pid} ({shown}) of {owner.user}"
        whose += f" in Slurm job {owner.slurm_job}" if owner.slurm_job else ""
        whose += f" in container {owner.container}" if owner.container else ""
        evidence |= {"pid": owner.pid, "command": owner.command, "user": owner.user, "started": owner.started}
        return prefix + whose, evidence
    reason = owner.reason if isinstance(owner, Missing) else "unknown"
    return f"{prefix}a process that is not visible ({reason})", evidence | {"owner": reason}


def owner_commands(job: Job, rank: RankFacts, bind: Bind) -> tuple[str, ...]:
    """Return the command that ends the program, if it is the user's and no other job's, or one that shows it."""
    owner, node = bind.owner, job.node_of(rank)
    where = f"ssh {quote(node.name)} " if len(job.nodes) > 1 else ""
    if bind.connection is not None:
        return ()
    if not isinstance(owner, PortOwner):
        return (f"{where}sudo ss -ltnp 'sport = :{bind.port}'",)
    if owner.slurm_job and owner.slurm_job != rank.environment.get("SLURM_JOB_ID"):
        return (f"scontrol show job {quote(owner.slurm_job)}",)
    own = owner.own and not owner.container and bind.port >= first_open_port(node)
    return (f"{where}kill {owner.pid}",) if own else ()


def answers_of_owner(job: Job) -> str:
    """Return how the program on rank 0's port treated other ranks, '' when none met it."""
    met = {a.outcome: a.detail for p in job.processes if p.role is not Role.LEADER for a in master_attempts(p)}
    if met.get("foreign"):
        return f"; it answers the other ranks with {brief(repr(met['foreign']))}"
    if met.get("silent") == A_STORE:
        return f"; it is {A_STORE}"
    return next((words for outcome, words in _ANSWERS.items() if outcome in met), "")
