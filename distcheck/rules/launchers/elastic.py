"""Rules about the ranks of torchelastic agents: numbering, restarts and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.ranges import fold
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.job.agents import ElasticAgent, agents_of, each_agent, own_id, ranks_of
from distcheck.rules.job.settings import number, started_by_distcheck
from distcheck.rules.job.world import is_complete
from distcheck.rules.wording import brief, found, grouped, listed, named, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_MOST_NODES = 8
"""Most nodes that get a command each."""


@rule("meeting", severity="warning")
def torchrun_nproc_mismatch(job: Job) -> Iterator[Outcome]:
    """The agents of one job start different numbers of processes.

    Intended or not, frameworks that compute groups from LOCAL_WORLD_SIZE fail on nodes of different size. With
    ``--nproc-per-node`` ``gpu`` or ``auto`` each node counts its own GPUs, and a smaller count means a lost GPU: this
    is a warning. Found by counting the ranks of each agent once all joined.

    Fix: Start the same number of processes on every node; if a GPU is missing, drain that node.

        nvidia-smi -L
        {run|torchrun --nproc-per-node 8}
    """
    if not is_complete(job) or not agents_of(job):
        return
    sizes = grouped(agents_of(job), lambda agent: len(agent.ranks))
    if len(sizes) < 2:
        return
    most = max(sizes)
    fewer = [agent for size, agents in sizes.items() if size < most for agent in agents]
    counted = [agent for agent in fewer if agent.options.get("nproc-per-node") in {"gpu", "auto"}]
    ranks = ranks_of(counted or fewer)
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: torchrun started {fold(len(agent.ranks) for agent in fewer)} processes; "
        f"other nodes have {most}" + ("; each node counted its own GPUs" if counted else ""),
        severity="warning" if counted else "info",
        evidence={str(size): ", ".join(nodes_of(job, ranks_of(agents))) for size, agents in sizes.items()},
        values={"run": [fewer[0].restarted({"nproc-per-node": str(most)})]},
    )


@rule("meeting", "accelerate-machine-rank-same", severity="warning", scope="rank", unless=("env-rank-duplicate",))
def torchrun_node_rank_duplicated(job: Job) -> Iterator[Outcome]:
    """Several nodes have the same node rank.

    torchrun's and accelerate's agents then wait for a node that does not exist (``wait timeout after 900000ms, keys:
    /none/torchelastic/role_info/0, /none/torchelastic/role_info/1``; ``1/2 clients joined`` where each serves its own
    store) and start no script; Lightning assigns the same ranks twice. Usually the variable was expanded on the submit
    host and not on the node, or a configuration file with ``machine_rank: 0`` was copied to all nodes. Ranks under
    torchrun have already passed this point, so it is found before torchrun: by the same NODE_RANK or PET_NODE_RANK on
    ranks of several nodes.

    Fix: Expand the number in each node's shell, not in the shell that submits the job.

        {export|export NODE_RANK=$SLURM_NODEID  # in each task}

    See: https://github.com/huggingface/accelerate/issues/2362
    """
    before = [r for r in job.ranks if r.placement.launcher != "torchrun" and not started_by_distcheck(job, r)]
    for variable in ("PET_NODE_RANK", "NODE_RANK"):
        groups = grouped(before, lambda r, name=variable: number(r, name))  # type: ignore[misc]
        for value, ranks in groups.items():
            nodes = nodes_of(job, ranks)
            if value is None or len({job.node_of(r).key for r in ranks}) < 2:
                continue
            by_hand = [f"export {variable}={n}  # on {name}" for n, name in enumerate(nodes[:_MOST_NODES])]
            slurm = [f"export {variable}=$SLURM_NODEID  # in each task, not where the job is submitted"]
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {variable} is {value} on {listed(nodes)}; expected a different one on each",
                evidence={"variable": variable, "value": value},
                values={"export": slurm if "SLURM_NODEID" in ranks[0].environment else by_hand},
            )
            return


@rule("environment", severity="info", of=each_agent)
def torchrun_rdzv_id_shared(job: Job, agent: ElasticAgent) -> Fault | None:
    """The job has no rendezvous id, so another job at the same endpoint can join it.

    Without ``--rdzv-id`` the id is ``none``. Two jobs at the same endpoint, or a restart while the old agents are still
    running, mix: ``RendezvousClosedError``, ``RendezvousGracefulExitError``, or a world with the other job's ranks.
    Found by TORCHELASTIC_RUN_ID being ``none`` in a c10d rendezvous of several agents.

    Fix: Set an id unique to this job.

        {run|torchrun --rdzv-id $SLURM_JOB_ID}

    See: https://github.com/pytorch/pytorch/issues/147064
    """
    without = agent.rank.environment.get("TORCHELASTIC_RUN_ID") == "none" and agent.rendezvous == "c10d"
    if not without or (agent.world or 0) < 2:
        return None
    return Fault(
        f"the rendezvous at {brief(agent.options.get('rdzv-endpoint', ''))} has no id; another job there can join",
        values={"run": (agent.restarted({"rdzv-id": own_id(job, agent.rank)}),)},
    )


@rule("environment", severity="info", of=each_agent)
def launch_local_rank_arg(_: Job, agent: ElasticAgent) -> Fault | None:
    """The launcher torch.distributed.launch adds ``--local-rank=N`` to the script's arguments.

    Scripts that do not accept it stop with ``error: unrecognized arguments: --local-rank=0``. Since torch 2.0 it is
    written with a dash, which scripts that expect ``--local_rank`` reject. No action for a script that accepts it.
    Found by the agent's command line without ``--use-env``.

    Fix: Use torchrun and read LOCAL_RANK, or accept the argument in both spellings.

        {run|torchrun --nproc-per-node 8 train.py}

    See: https://docs.pytorch.org/docs/stable/distributed.html#launch-utility
    """
    if agent.facts is None or agent.facts.program != "launch" or "use-env" in agent.options:
        return None
    by_torchrun = agent.restarted({}).replace(agent.program, "torchrun", 1)
    message = "torch.distributed.launch passes --local-rank; the script must accept it"
    return Fault(message, values={"run": (by_torchrun, agent.restarted({"use-env": ""}))})


@rule("environment", severity="info", of=each_agent)
def elastic_restart_stale(_: Job, agent: ElasticAgent) -> Answer:
    """The ranks have been restarted by torchrun.

    After a failure, and when a node joins or leaves an elastic job, torchrun ends the ranks and restarts them. A
    process of an earlier start that exits slowly or still holds a GPU conflicts with the new ranks: out of memory,
    ``EADDRINUSE``. Found by TORCHELASTIC_RESTART_COUNT, which each agent counts from its own start.

    Fix: Check why the earlier ranks failed, and kill by their pid processes that are older than these ranks.

        ps -eo pid,lstart,stat,args --sort=start_time
        nvidia-smi

    See: https://github.com/pytorch/pytorch/issues/69345
    """
    count = number(agent.rank, "TORCHELASTIC_RESTART_COUNT") or 0
    most = agent.rank.environment.get("TORCHELASTIC_MAX_RESTARTS", "?")
    return f"this is restart {count} of at most {most}" if count > 0 else None


@rule("gpu", severity="warning", of=each_agent)
def accelerate_num_processes_total(_: Job, agent: ElasticAgent) -> Fault | None:
    """The ``--num_processes`` of accelerate counts one node, but it must count all nodes.

    ``--num_processes`` is the total: with 8 on two nodes of 8 GPUs each node runs 4 processes, and half of the GPUs
    are unused without a warning. Found by an accelerate launch over several nodes whose world size equals the number
    of GPUs that a rank of one node sees.

    Fix: Set --num_processes to the total of all nodes.

        {run|accelerate launch --num_processes $((NNODES * GPUS_PER_NODE)) --num_machines $NNODES}

    See: https://github.com/huggingface/accelerate/issues/2818
    """
    seen, nodes, world = agent.rank.visible_gpus, agent.world or 1, agent.rank.placement.world_size or 0
    accelerate = agent.facts is not None and agent.facts.program == "accelerate"
    if not accelerate or nodes < 2 or not isinstance(seen, tuple) or world != len(seen):
        return None
    total = {"nnodes": str(nodes), "num-processes": str(world * nodes)}
    return Fault(
        f"{world} processes on {nodes} nodes with {world} GPUs each; accelerate's --num_processes is the total of all "
        "nodes",
        values={"run": (agent.restarted(total),)},
    )
