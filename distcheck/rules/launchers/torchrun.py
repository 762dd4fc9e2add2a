"""Rules about the agents of torchrun, torch.distributed.launch and accelerate."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.addresses import here_over_nodes, may_pass, unresolved
from distcheck.rules.job.agents import (
    agent_per_node,
    agents_in_world,
    alone_beside_others,
    by_agent,
    command,
    endpoint_port,
    exported,
    ignored_master,
    lacks_id,
    meets_itself,
    nodes_of_step,
    one_per_task,
    own_id,
    program,
    restarted,
    tasks_of_step,
    told,
    wanted,
)
from distcheck.rules.job.astray import astray
from distcheck.rules.job.remedies import at_first_host
from distcheck.rules.job.settings import PORT, chosen_by_agent, free_port
from distcheck.rules.network.attempts import address_of, failing, tried
from distcheck.rules.wording import brief, found, grouped, listed, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


@rule("environment")
def torchrun_ignores_master_env(job: Job) -> Iterator[Outcome]:
    """MASTER_ADDR was exported, but torchrun does not read it, so every node trains alone.

    torchrun takes the master from ``--master-addr`` or ``--rdzv-endpoint`` (or PET_MASTER_ADDR), and the number of
    nodes from ``--nnodes``. It ignores MASTER_ADDR, MASTER_PORT, NODE_RANK and WORLD_SIZE in its environment.
    Without these options it starts a world of this node alone, so each node runs its own training without any error.
    With ``--nnodes`` alone all agents wait at their own localhost: ``Timed out after 901 seconds waiting for
    clients. 1/2 clients joined.``, and no script is started.

    Found by a MASTER_ADDR in the agent's environment that its ranks do not have, in a world of one agent, where the
    scheduler, NODE_RANK, NNODES or an exported WORLD_SIZE indicates more nodes.

    Fix: pass them as options:
    ``torchrun --nnodes N --node-rank I --master-addr $MASTER_ADDR --master-port $MASTER_PORT``.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    ignored = [(address, r) for r in by_agent(job) if (address := ignored_master(job, r))]
    for address, pairs in grouped(ignored, lambda pair: pair[0]).items():
        ranks = [r for _, r in pairs]
        first = ranks[0]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {program(job, first)} was started with MASTER_ADDR={brief(address)} exported and "
            f"does not read it; its world is one node with {first.environment.get('WORLD_SIZE')} ranks",
            Fix(
                "Pass the address, the number of nodes and this node's rank to torchrun as options.",
                (_with_master(job, first, address),),
            ),
            evidence={
                "agent's MASTER_ADDR": address,
                "ranks' MASTER_ADDR": first.placement.master_addr,
                "GROUP_WORLD_SIZE": agents_in_world(first),
                "nodes of the Slurm step": nodes_of_step(first),
                "agent": command(job, first),
            },
        )


@rule("environment")
def torchrun_per_task_under_srun(job: Job) -> Iterator[Outcome]:
    """Several torchruns start on each node, and each starts a process per GPU.

    ``srun --ntasks-per-node=8 torchrun --nproc-per-node=8`` starts 64 processes per node instead of 8. They compete
    for the port (``EADDRINUSE``), share GPUs, or every task trains alone. torchrun needs one task per node. Found by a
    step with more tasks than nodes, where the number of tasks is not the number of agents in the world. Silent where
    each task is intended as an agent (``--nnodes $SLURM_NTASKS``); gpu-worlds-overlap reports ``--standalone``.

    Fix: ``srun --ntasks-per-node=1 --gpus-per-node=8 torchrun --nproc-per-node=8``.
    """
    crowded = [r for r in by_agent(job) if one_per_task(job, r)]
    if not crowded:
        return
    first = crowded[0]
    tasks, nodes = tasks_of_step(first), nodes_of_step(first)
    yield found(
        job,
        crowded,
        f"{named(job, crowded)}: srun started {tasks} tasks on {nodes} {'node' if nodes == 1 else 'nodes'}, each a "
        f"torchrun, and torchrun's world has {agents_in_world(first)}; expected one task on each node",
        Fix(
            "Start one torchrun per node; torchrun starts the processes of its node.",
            (agent_per_node(job, first, at_first_host(job, first)),),
        ),
        evidence={
            "tasks of the step": tasks,
            "nodes of the step": nodes,
            "GROUP_WORLD_SIZE": agents_in_world(first),
            "LOCAL_WORLD_SIZE": first.placement.local_world_size,
            "agent": command(job, first),
        },
    )


def _with_master(job: Job, rank: RankFacts, address: str) -> str:
    """Return the agent's command line with the master, which it does not read from variables."""
    port = exported(job, rank).get("MASTER_PORT") or str(free_port(job) or PORT)
    where = {"master-addr": quote(address), "master-port": quote(port)}
    if "SLURM_JOB_ID" in rank.environment:
        return agent_per_node(job, rank, where)
    return restarted(job, rank, {"nnodes": "${NNODES:?}", "node-rank": "${NODE_RANK:?}", **where})


def _local_addr(job: Job, rank: RankFacts) -> str:
    return restarted(job, rank, {"local-addr": "$(hostname -I | cut -d' ' -f1)"})


def _static(job: Job, rank: RankFacts) -> dict[str, str]:
    """Return the options by which agents and ranks meet at one known port."""
    nodes = agents_in_world(rank) or len(job.nodes)
    return {
        "rdzv-backend": "static",
        "nnodes": str(nodes),
        "node-rank": "${NODE_RANK:?}",
        **at_first_host(job, rank),
        "master-port": str(free_port(job) or PORT),
    }


@rule("environment")
def torchrun_rdzv_id_mismatch(job: Job) -> Iterator[Outcome]:
    """The rendezvous id is empty, so every node generates its own and waits alone.

    Agents meet by endpoint and id. ``--rdzv-id=$JOB_ID`` with JOB_ID unset gives an empty id. torchrun warns ``config
    has no run_id, generated a random run_id``, and then reports ``RendezvousTimeoutError`` after ten minutes, or, with
    an elastic ``--nnodes 1:4``, every node trains alone. Only the elastic case starts a script, so distcheck can only
    detect that one. Found by an empty ``--rdzv-id`` and a world with fewer agents than ``--nnodes`` or the scheduler's
    number of nodes.

    Fix: set the same id on all nodes: ``--rdzv-id $SLURM_JOB_ID``.
    """
    empty = [r for r in by_agent(job) if lacks_id(job, r) and wanted(job, r) > (agents_in_world(r) or 0)]
    if not empty:
        return
    first = empty[0]
    yield found(
        job,
        empty,
        f"{named(job, empty)}: --rdzv-id is empty, so each agent generated its own; "
        f"{agents_in_world(first)} of {wanted(job, first)} nodes met",
        Fix(
            "Set the same id on all nodes; with ${NAME:?} in place of $NAME the shell stops if it is unset.",
            (restarted(job, first, {"rdzv-id": own_id(job, first)}),),
        ),
        evidence={"TORCHELASTIC_RUN_ID": first.environment.get("TORCHELASTIC_RUN_ID"), "agent": command(job, first)},
    )


@rule("environment")
def torchrun_localhost_name_ambiguous(job: Job) -> Iterator[Outcome]:
    """The rendezvous endpoint is localhost, so each agent meets only itself.

    The agent on the endpoint's host starts the store. With localhost or 127.0.0.1 every agent starts one and waits for
    the others: ``RendezvousTimeoutError`` after ten minutes, or, with an elastic ``--nnodes 1:4``, a separate training
    on every node. Found by a loopback ``--rdzv-endpoint`` in a world with fewer agents than ``--nnodes`` or the
    scheduler's number of nodes. Silent for several agents on one machine, which do meet there.

    Fix: set the endpoint to the first node's name or address, as the other nodes reach it.
    """
    alone = [r for r in by_agent(job) if meets_itself(job, r)]
    if not alone:
        return
    first = alone[0]
    options = told(job, first) or {}
    endpoint = options.get("rdzv-endpoint", "")
    certain = alone_beside_others(job, first)
    yield found(
        job,
        alone,
        f"{named(job, alone)}: --rdzv-endpoint is {brief(endpoint)}, which on every node is the node itself; "
        f"{agents_in_world(first)} of {wanted(job, first)} nodes met",
        Fix(
            "Set --rdzv-endpoint to the first node's address.",
            (restarted(job, first, {"rdzv-endpoint": quote(f"{job.node_of(first).name}:{endpoint_port(options)}")}),),
        ),
        severity="error" if certain else "info",
        evidence={"--rdzv-endpoint": endpoint, "agent": command(job, first)},
    )


@rule("environment", scope=("rank", "node"))
def torchrun_fqdn_unreachable(job: Job) -> Iterator[Outcome]:
    """The host name that torchrun's agent chose for MASTER_ADDR fails on other nodes.

    With the c10d rendezvous the agents meet at ``--rdzv-endpoint``, but their ranks at the first agent's own fully
    qualified host name. If that is ``localhost.localdomain``, a name that only the node itself resolves, or one that
    DNS does not have, the agents meet and the ranks do not: ``The client socket has failed to connect to
    [node1.internal]:45319``, ``gai error: -2``. Found by resolving MASTER_ADDR in every process, where the agent's
    command line does not set it.

    Fix: ``torchrun --local-addr ADDRESS_OF_THIS_NODE`` on every node, or fix /etc/hosts.
    See: https://github.com/pytorch/pytorch/issues/150532
    """
    lost = [(unresolved(job, r), r) for r in by_agent(job) if chosen_by_agent(job, r) and unresolved(job, r)]
    itself = [r for r in here_over_nodes(job) if chosen_by_agent(job, r)]
    zero = astray(job)
    trouble = [(f"does not resolve ({why})", why, r) for why, r in lost]
    trouble += [("resolves to the node itself on every node", "", r) for r in itself]
    trouble += [("is not an address of rank 0's node", "", zero)] if zero and chosen_by_agent(job, zero) else []
    for problem, several in grouped(trouble, lambda item: item[0]).items():
        ranks = [r for _, _, r in several]
        address, temporary = ranks[0].placement.master_addr or "", may_pass(several[0][1])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR {address}, the host name of torchrun's first agent, {problem}",
            Fix(
                "Pass each agent the address at which the other nodes reach it, or add the name to DNS or /etc/hosts.",
                (f"getent hosts {quote(address)}", _local_addr(job, ranks[0])),
            ),
            scope="node" if temporary else "rank",
            confirmed=not temporary,
            evidence={"MASTER_ADDR": address, "agent": command(job, ranks[0])},
        )


@rule("meeting", scope="link", owner="admin")
def torchrun_store_port_extra(job: Job) -> Iterator[Outcome]:
    """The agents meet, but the ephemeral port for their ranks is blocked between the nodes.

    Only the endpoint's port is fixed. With the c10d rendezvous the ranks' store listens on a different ephemeral port
    at every start, so opening the port of ``--rdzv-endpoint`` is not sufficient: the agents meet, and the ranks report
    ``The client socket has timed out after 600000ms``. Found by connecting to MASTER_ADDR:MASTER_PORT from every
    process.

    Fix: allow all TCP between the nodes, or use the static rendezvous, whose only port is ``--master-port``.
    See: https://github.com/pytorch/pytorch/issues/80772
    """
    for ranks, attempts in failing(job, {"timeout", "unreachable"}):
        if not chosen_by_agent(job, ranks[0]):
            continue
        results = listed([f"{address_of(a)}: {a.detail or a.outcome}" for a in attempts])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} cannot reach the port that torchrun's agent chose for the ranks ({results})",
            Fix(
                "Allow TCP between the nodes on ephemeral ports, or set one port and open it.",
                (restarted(job, ranks[0], _static(job, ranks[0])),),
            ),
            evidence=tried(attempts),
        )
