"""Rules about the agents of torchrun, torch.distributed.launch and accelerate."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.job.addresses import here_over_nodes, may_pass, unresolved
from distcheck.rules.job.agents import ElasticAgent, agents_of, each_agent, own_id, ranks_of
from distcheck.rules.job.remedies import at_first_host
from distcheck.rules.job.settings import PORT, chosen_by_agent, free_port
from distcheck.rules.job.wrong_master import wrong_master
from distcheck.rules.network.attempts import address_of, failing, tried
from distcheck.rules.wording import brief, found, grouped, listed, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


@rule("environment", of=each_agent)
def torchrun_ignores_master_env(job: Job, agent: ElasticAgent) -> Fault | None:
    """MASTER_ADDR was exported, but torchrun does not read it, so every node trains alone.

    torchrun takes the master from ``--master-addr`` or ``--rdzv-endpoint`` (or PET_MASTER_ADDR), and the number of
    nodes from ``--nnodes``. It ignores MASTER_ADDR, MASTER_PORT, NODE_RANK and WORLD_SIZE in its environment.
    Without these options it starts a world of this node alone, so each node runs its own training without any error.
    With ``--nnodes`` alone all agents wait at their own localhost: ``Timed out after 901 seconds waiting for
    clients. 1/2 clients joined.``, and no script is started.

    Found by a MASTER_ADDR in the agent's environment that its ranks do not have, in a world of one agent, where the
    scheduler, NODE_RANK, NNODES or an exported WORLD_SIZE indicates more nodes.

    Fix: Pass the address, the number of nodes and this node's rank to torchrun as options.

        {run|torchrun --nnodes N --node-rank I --master-addr $MASTER_ADDR --master-port $MASTER_PORT}

    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    address, rank = agent.ignored_master, agent.rank
    if not address:
        return None
    port = agent.exported.get("MASTER_PORT") or str(free_port(job) or PORT)
    where = {"master-addr": quote(address), "master-port": quote(port)}
    by_hand = {"nnodes": "${NNODES:?}", "node-rank": "${NODE_RANK:?}", **where}
    slurm = "SLURM_JOB_ID" in rank.environment
    return Fault(
        f"{agent.program} was started with MASTER_ADDR={brief(address)} exported and does not read it; its world is "
        f"one node with {rank.environment.get('WORLD_SIZE')} ranks",
        evidence={"ranks' MASTER_ADDR": rank.placement.master_addr, "nodes of the step": agent.step_nodes or None},
        values={"run": (agent.on_each_node(where) if slurm else agent.restarted(by_hand),)},
    )


@rule("environment", of=each_agent)
def torchrun_per_task_under_srun(job: Job, agent: ElasticAgent) -> Fault | None:
    """Several torchruns start on each node, and each starts a process per GPU.

    ``srun --ntasks-per-node=8 torchrun --nproc-per-node=8`` starts 64 processes per node instead of 8. They compete
    for the port (``EADDRINUSE``), share GPUs, or every task trains alone. torchrun needs one task per node. Found by a
    step with more tasks than nodes, where the number of tasks is not the number of agents in the world. Silent where
    each task is intended as an agent (``--nnodes $SLURM_NTASKS``).

    Fix: Start one torchrun per node; torchrun starts the processes of its node.

        {run|srun --ntasks-per-node=1 --gpus-per-node=8 torchrun --nproc-per-node=8}
    """
    if not agent.one_per_task:
        return None
    nodes, tasks = agent.step or (0, 0)
    return Fault(
        f"srun started {tasks} tasks on {count(nodes, 'node')}, each a torchrun, and torchrun's world has "
        f"{agent.world}; expected one task on each node",
        evidence={"LOCAL_WORLD_SIZE": agent.rank.placement.local_world_size},
        values={"run": (agent.on_each_node(at_first_host(job, agent.rank)),)},
    )


@rule("environment", of=each_agent)
def torchrun_rdzv_id_mismatch(job: Job, agent: ElasticAgent) -> Fault | None:
    """The rendezvous id is empty, so every node generates its own and waits alone.

    Agents meet by endpoint and id. ``--rdzv-id=$JOB_ID`` with JOB_ID unset gives an empty id. torchrun warns ``config
    has no run_id, generated a random run_id``, and then reports ``RendezvousTimeoutError`` after ten minutes, or, with
    an elastic ``--nnodes 1:4``, every node trains alone. Only the elastic case starts a script, so distcheck can only
    detect that one. Found by an empty ``--rdzv-id`` and a world with fewer agents than ``--nnodes`` or the scheduler's
    number of nodes.

    Fix: Set the same id on all nodes; with ${NAME:?} in place of $NAME the shell stops if it is unset.

        {run|torchrun --rdzv-id $SLURM_JOB_ID}
    """
    if not agent.lacks_id or agent.wanted <= (agent.world or 0):
        return None
    return Fault(
        f"--rdzv-id is empty, so each agent generated its own; {agent.world} of {agent.wanted} nodes met",
        evidence={"TORCHELASTIC_RUN_ID": agent.rank.environment.get("TORCHELASTIC_RUN_ID")},
        values={"run": (agent.restarted({"rdzv-id": own_id(job, agent.rank)}),)},
    )


@rule("environment", of=each_agent)
def torchrun_localhost_name_ambiguous(_: Job, agent: ElasticAgent) -> Fault | None:
    """The rendezvous endpoint is localhost, so each agent meets only itself.

    The agent on the endpoint's host starts the store. With localhost or 127.0.0.1 every agent starts one and waits for
    the others: ``RendezvousTimeoutError`` after ten minutes, or, with an elastic ``--nnodes 1:4``, a separate training
    on every node. Found by a loopback ``--rdzv-endpoint`` in a world with fewer agents than ``--nnodes`` or the
    scheduler's number of nodes. Silent for several agents on one machine, which do meet there.

    Fix: Set the endpoint to the first node's name or address, as the other nodes reach it.

        {run|torchrun --rdzv-endpoint node1:29400}
    """
    if not agent.meets_itself:
        return None
    reachable = quote(f"{agent.node.name}:{agent.endpoint[1]}")
    return Fault(
        f"--rdzv-endpoint is {brief(agent.options['rdzv-endpoint'])}, which on every node is the node itself; "
        f"{agent.world} of {agent.wanted} nodes met",
        severity="error" if agent.alone_in_step else "info",
        values={"run": (agent.restarted({"rdzv-endpoint": reachable}),)},
    )


@rule("environment", scope=("rank", "node"))
def torchrun_fqdn_unreachable(job: Job) -> Iterator[Outcome]:
    """The host name that torchrun's agent chose for MASTER_ADDR fails on other nodes.

    With the c10d rendezvous the agents meet at ``--rdzv-endpoint``, but their ranks at the first agent's own fully
    qualified host name. If that is ``localhost.localdomain``, a name that only the node itself resolves, or one that
    DNS does not have, the agents meet and the ranks do not: ``The client socket has failed to connect to
    [node1.internal]:45319``, ``gai error: -2``. Found by resolving MASTER_ADDR in every process, where the agent's
    command line does not set it.

    Fix: Pass each agent the address at which the other nodes reach it, or add the name to DNS or /etc/hosts.

        getent hosts {name|$MASTER_ADDR}
        {run|torchrun --local-addr $(hostname -I | cut -d' ' -f1)}

    See: https://github.com/pytorch/pytorch/issues/150532
    """
    itself, zero = {id(r) for r in here_over_nodes(job)}, wrong_master(job)
    own = "$(hostname -I | cut -d' ' -f1)"

    def trouble(rank: RankFacts) -> str:
        if not chosen_by_agent(job, rank):
            return ""
        if why := unresolved(job, rank):
            return f"does not resolve ({why})"
        if id(rank) in itself:
            return "resolves to the node itself on every node"
        return "is not an address of rank 0's node" if rank is zero else ""

    for problem, ranks in grouped(ranks_of(agents_of(job)), trouble).items():
        if not problem:
            continue
        address, agent = ranks[0].placement.master_addr or "", ElasticAgent(job, ranks[0])
        temporary = may_pass(unresolved(job, ranks[0]))
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: MASTER_ADDR {address}, the host name of torchrun's first agent, {problem}",
            scope="node" if temporary else "rank",
            confirmed=not temporary,
            evidence={"agent": agent.command},
            values={"name": [quote(address)], "run": [agent.restarted({"local-addr": own})]},
        )


@rule("meeting", scope="link", owner="admin")
def torchrun_store_port_extra(job: Job) -> Iterator[Outcome]:
    """The agents meet, but the ephemeral port for their ranks is blocked between the nodes.

    Only the endpoint's port is fixed. With the c10d rendezvous the ranks' store listens on a different ephemeral port
    at every start, so opening the port of ``--rdzv-endpoint`` is not sufficient: the agents meet, and the ranks report
    ``The client socket has timed out after 600000ms``. Found by connecting to MASTER_ADDR:MASTER_PORT from every
    process.

    Fix: Allow TCP between the nodes on ephemeral ports, or use the static rendezvous, and open its one port.

        {run|torchrun --rdzv-backend static --master-port 29500}

    See: https://github.com/pytorch/pytorch/issues/80772
    """
    for ranks, attempts in failing(job, {"timeout", "unreachable"}):
        if not chosen_by_agent(job, ranks[0]):
            continue
        results = listed([f"{address_of(a)}: {a.detail or a.outcome}" for a in attempts])
        agent = ElasticAgent(job, ranks[0])
        static = {"rdzv-backend": "static", "nnodes": str(agent.world or len(job.nodes)), "node-rank": "${NODE_RANK:?}"}
        static |= at_first_host(job, ranks[0]) | {"master-port": str(free_port(job) or PORT)}
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} cannot reach the port that torchrun's agent chose for the ranks ({results})",
            evidence=tried(attempts),
            values={"run": [agent.restarted(static)]},
        )
