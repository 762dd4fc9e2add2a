"""Rules about torchrun, torch.distributed.launch and accelerate: what their agents were told, and what came of it."""

from __future__ import annotations

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
from distcheck.rules.job.remedies import first_host
from distcheck.rules.job.settings import PORT, chosen_by_agent, free_port
from distcheck.rules.network.attempts import address_of, failing, tried
from distcheck.rules.wording import brief, found, grouped, listed, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts import Job, RankFacts


@rule("environment")
def torchrun_ignores_master_env(job: Job) -> Iterator[Outcome]:
    """MASTER_ADDR was exported for torchrun, which does not read it, so every node trains alone.

    torchrun takes where to meet from ``--master-addr`` or ``--rdzv-endpoint`` (or PET_MASTER_ADDR), and the number of
    nodes from ``--nnodes``; MASTER_ADDR, MASTER_PORT, NODE_RANK and WORLD_SIZE in its environment mean nothing to it.
    Without these options it starts a world of this node alone, and there is no error at all: as many trainings as
    nodes. With ``--nnodes`` alone all agents wait at their own localhost: ``Timed out after 901 seconds waiting for
    clients. 1/2 clients joined.``, and no script is started.

    Found by a MASTER_ADDR in the agent's environment that its ranks do not have, in a world of one agent, where the
    scheduler, NODE_RANK, NNODES or an exported WORLD_SIZE says that there are more.

    Fix: hand them over: ``torchrun --nnodes N --node-rank I --master-addr $MASTER_ADDR --master-port $MASTER_PORT``.
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
                "Give torchrun the address, the number of nodes and this node's number as options.",
                (_told_where(job, first, address),),
            ),
            scope="job",
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
    """A torchrun is started for every task of srun, and each of them starts a process per GPU.

    ``srun --ntasks-per-node=8 torchrun --nproc-per-node=8`` makes 64 processes where 8 belong: they fight for the
    port (``EADDRINUSE``), the GPUs are taken several times over, or every task trains for itself. torchrun wants one
    task per node. Found by a step with more tasks than nodes whose number is not the number of agents in the world;
    silent where each task is meant to be an agent (``--nnodes $SLURM_NTASKS``), and for ``--standalone``.

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
            "Start one torchrun per node; it starts the processes of its node.",
            (agent_per_node(job, first, {"master-addr": first_host(job)}),),
        ),
        scope="job",
        evidence={
            "tasks of the step": tasks,
            "nodes of the step": nodes,
            "GROUP_WORLD_SIZE": agents_in_world(first),
            "LOCAL_WORLD_SIZE": first.placement.local_world_size,
            "agent": command(job, first),
        },
    )


def _told_where(job: Job, rank: RankFacts, address: str) -> str:
    """Return the agent's command line with where to meet, of which it was told by variables that it does not read."""
    port = exported(job, rank).get("MASTER_PORT") or str(free_port(job) or PORT)
    where = {"master-addr": address, "master-port": port}
    if "SLURM_JOB_ID" in rank.environment:
        return agent_per_node(job, rank, where)
    return restarted(job, rank, {"nnodes": "$NNODES", "node-rank": "$NODE_RANK", **where})


def _local_addr(job: Job, rank: RankFacts) -> str:
    return restarted(job, rank, {"local-addr": "$(hostname -I | cut -d' ' -f1)"})


def _static(job: Job, rank: RankFacts) -> dict[str, str]:
    """Return the options by which agents and ranks meet at one known port."""
    nodes = agents_in_world(rank) or len(job.nodes)
    return {
        "rdzv-backend": "static",
        "nnodes": str(nodes),
        "node-rank": "$NODE_RANK",
        "master-addr": first_host(job),
        "master-port": str(free_port(job) or PORT),
    }


@rule("environment")
def torchrun_rdzv_id_mismatch(job: Job) -> Iterator[Outcome]:
    """The rendezvous id came out empty, so every node draws one of its own and waits alone.

    Agents meet by endpoint and id. ``--rdzv-id=$JOB_ID`` with JOB_ID unset gives none; torchrun warns ``config has no
    run_id, generated a random run_id``, and then says ``RendezvousTimeoutError`` after ten minutes, or, with an elastic
    ``--nnodes 1:4``, every node trains alone. Only the latter starts a script at all, and so can be seen from it.
    Found by an empty ``--rdzv-id`` and a world of fewer agents than ``--nnodes`` or the scheduler has nodes.

    Fix: one id for the job that all nodes know: ``--rdzv-id $SLURM_JOB_ID``.
    """
    empty = [r for r in by_agent(job) if lacks_id(job, r) and wanted(job, r) > (agents_in_world(r) or 0)]
    if not empty:
        return
    first = empty[0]
    yield found(
        job,
        empty,
        f"{named(job, empty)}: --rdzv-id is empty, so each agent drew its own; "
        f"{agents_in_world(first)} of {wanted(job, first)} nodes met",
        Fix(
            "Give all nodes the same id; ${NAME:?} in place of $NAME makes the shell stop where it is unset.",
            (restarted(job, first, {"rdzv-id": own_id(job, first)}),),
        ),
        scope="job",
        evidence={"TORCHELASTIC_RUN_ID": first.environment.get("TORCHELASTIC_RUN_ID"), "agent": command(job, first)},
    )


@rule("environment")
def torchrun_localhost_name_ambiguous(job: Job) -> Iterator[Outcome]:
    """The agents meet at localhost, which every node takes for itself, so each meets only itself.

    The agent whose host the endpoint names starts the store. With localhost or 127.0.0.1 all of them do, and wait for
    the others: ``RendezvousTimeoutError`` after ten minutes, or, with an elastic ``--nnodes 1:4``, a training of its
    own on every node. Found by a loopback ``--rdzv-endpoint`` in a world of fewer agents than ``--nnodes`` or the
    scheduler has nodes; several agents on one machine do meet there, which is no fault.

    Fix: the first node's name or address, as the other nodes know it.
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
        f"{named(job, alone)}: the agents meet at {brief(endpoint)}, which is every node itself; "
        f"{agents_in_world(first)} of {wanted(job, first)} nodes met",
        Fix(
            "Let the agents meet at the first node's address.",
            (restarted(job, first, {"rdzv-endpoint": f"{job.node_of(first).name}:{endpoint_port(options)}"}),),
        ),
        severity="error" if certain else "info",
        scope="job",
        evidence={"--rdzv-endpoint": endpoint, "agent": command(job, first)},
    )


@rule("environment")
def torchrun_fqdn_unreachable(job: Job) -> Iterator[Outcome]:
    """The host name that torchrun's agent chose for MASTER_ADDR does not lead the other nodes to it.

    With the c10d rendezvous the agents meet at ``--rdzv-endpoint``, but their ranks at the first agent's own fully
    qualified host name. Where that is ``localhost.localdomain``, a name of the node's own making or one that DNS does
    not know, the agents meet and the ranks do not: ``The client socket has failed to connect to
    [node1.internal]:45319``, ``gai error: -2``. Found by resolving MASTER_ADDR on every process, where the agent's
    command line does not have it.

    Fix: ``torchrun --local-addr ADDRESS_OF_THIS_NODE`` on every node, or mend /etc/hosts.
    See: https://github.com/pytorch/pytorch/issues/150532
    """
    lost = [(unresolved(job, r), r) for r in by_agent(job) if chosen_by_agent(job, r) and unresolved(job, r)]
    itself = [r for r in here_over_nodes(job) if chosen_by_agent(job, r)]
    zero = astray(job)
    trouble = [(f"does not resolve ({why})", why, r) for why, r in lost]
    trouble += [("is every node itself", "", r) for r in itself]
    trouble += [("is no address of rank 0's node", "", zero)] if zero and chosen_by_agent(job, zero) else []
    for words, several in grouped(trouble, lambda item: item[0]).items():
        ranks = [r for _, _, r in several]
        address, temporary = ranks[0].placement.master_addr or "", may_pass(several[0][1])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the first agent's host name {address}, which torchrun made MASTER_ADDR, {words}",
            Fix(
                "Tell each agent the address by which the other nodes reach it, or make the name known to them.",
                (f"getent hosts {address}", _local_addr(job, ranks[0])),
            ),
            scope="node" if temporary else "rank",
            confirmed=not temporary,
            evidence={"MASTER_ADDR": address, "agent": command(job, ranks[0])},
        )


@rule("meeting")
def torchrun_store_port_extra(job: Job) -> Iterator[Outcome]:
    """The agents meet, but the port that they chose for their ranks is closed between the nodes.

    Only the endpoint's port is fixed. With the c10d rendezvous the ranks' store listens on a port that the kernel
    chooses anew at every start, so that opening the one of ``--rdzv-endpoint`` does not suffice: the agents meet, and
    the ranks say ``The client socket has timed out after 600000ms``. Found by connecting to MASTER_ADDR:MASTER_PORT
    from every process.

    Fix: allow all TCP between the nodes, or use the static rendezvous, whose one port is ``--master-port``.
    See: https://github.com/pytorch/pytorch/issues/80772
    """
    for ranks, attempts in failing(job, {"timeout", "unreachable"}):
        if not chosen_by_agent(job, ranks[0]):
            continue
        ways = listed([f"{address_of(a)}: {a.detail or a.outcome}" for a in attempts])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} cannot reach the port that torchrun's agent chose for the ranks ({ways})",
            Fix(
                "Allow TCP between the nodes on the ports that the kernel chooses, or name one port to open.",
                (restarted(job, ranks[0], _static(job, ranks[0])),),
            ),
            scope="link",
            owner="admin",
            evidence=tried(attempts),
        )
