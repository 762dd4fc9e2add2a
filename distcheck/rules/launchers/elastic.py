"""Rules about the ranks of torchelastic agents: numbering, restarts and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.ranges import fold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.agents import agents_in_world, by_agent, command, own_id, program, rendezvous, restarted, told
from distcheck.rules.job.remedies import at_first_host
from distcheck.rules.job.settings import number, started_by_distcheck
from distcheck.rules.job.world import is_complete
from distcheck.rules.wording import brief, by_name, found, grouped, listed, named, nodes_of
from distcheck.selection.placement import integer

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
    is a warning. Found by comparing LOCAL_WORLD_SIZE of all agents once all ranks joined.

    Fix: use a number in place of ``gpu``, so that torch fails on the node that lacks a GPU; drain that node.
    """
    if not is_complete(job) or not by_agent(job):
        return
    sizes = grouped(by_agent(job), lambda r: r.placement.local_world_size or 0)
    if len(sizes) < 2:
        return
    most = max(sizes)
    fewer = [r for size, ranks in sizes.items() if size < most for r in ranks]
    counted = [r for r in fewer if (told(job, r) or {}).get("nproc-per-node") in {"gpu", "auto"}]
    yield found(
        job,
        counted or fewer,
        f"{named(job, counted or fewer)}: torchrun started {fold(r.placement.local_world_size or 0 for r in fewer)} "
        f"processes; other nodes have {most}" + ("; each node counted its own GPUs" if counted else ""),
        Fix(
            "Start the same number of processes on every node; if a GPU is missing, check that node.",
            ("nvidia-smi -L", restarted(job, fewer[0], {"nproc-per-node": str(most)})),
        ),
        severity="warning" if counted else "info",
        evidence={str(size): ", ".join(nodes_of(job, ranks)) for size, ranks in sizes.items()},
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

    Fix: expand the variable in the node's own shell: ``srun bash -c 'torchrun --node-rank $SLURM_NODEID ...'``.
    See: https://github.com/huggingface/accelerate/issues/2362
    """
    for variable in ("PET_NODE_RANK", "NODE_RANK"):
        ranks = [
            r
            for r in job.ranks
            if r.placement.launcher != "torchrun"
            and not started_by_distcheck(job, r)
            and number(r, variable) is not None
        ]
        for value, several in grouped(ranks, lambda r, name=variable: number(r, name)).items():  # type: ignore[misc]
            nodes = nodes_of(job, several)
            if len({job.node_of(r).key for r in several}) < 2:
                continue
            yield found(
                job,
                several,
                f"{named(job, several)}: {variable} is {value} on {listed(nodes)}; expected a different one on each",
                Fix(
                    "Expand the number in each node's shell, not in the shell that submits the job.",
                    (f"export {variable}=$SLURM_NODEID  # in each task, not where the job is submitted",)
                    if "SLURM_NODEID" in several[0].environment
                    else tuple(f"export {variable}={n}  # on {name}" for n, name in enumerate(nodes[:_MOST_NODES])),
                ),
                evidence={"variable": variable, "value": value, "nodes": ", ".join(nodes)},
            )
            return


@rule("meeting", severity="info")
def torchrun_node_rank_with_c10d(job: Job) -> Iterator[Outcome]:
    """The c10d rendezvous ignored ``--node-rank`` and numbered the nodes itself.

    torchrun warns ``node_rank is only used for static rdzv_backend. It will be ignored``. The job runs, but rank 0, and
    with it the logs and checkpoints, may be on another node than expected. Found by comparing ``--node-rank`` with
    GROUP_RANK.

    Fix: if the order matters, ``--rdzv-backend static`` with ``--master-addr``.
    See: https://github.com/pytorch/pytorch/issues/137402
    """
    other = []
    for r in by_agent(job):
        options = told(job, r) or {}
        option = integer(options.get("node-rank"))
        if option is not None and rendezvous(options) == "c10d" and option != r.placement.node_rank:
            other.append((option, r))
    if other:
        ranks = [r for _, r in other]
        option, first = other[0]
        master = at_first_host(job, first)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: --node-rank {option} was ignored, GROUP_RANK is {first.placement.node_rank}"
            + ("; same on other nodes" if len({job.node_of(r).key for r in ranks}) > 1 else ""),
            Fix(
                "Remove --node-rank; if the order matters, use the static rendezvous.",
                (restarted(job, first, {"rdzv-backend": "static", "node-rank": "${NODE_RANK:?}", **master}),),
            ),
            evidence=by_name((job.node_of(r).name, f"requested {n}, got {r.placement.node_rank}") for n, r in other),
        )


@rule("environment", severity="info")
def torchrun_rdzv_id_shared(job: Job) -> Iterator[Outcome]:
    """The job has no rendezvous id, so another job at the same endpoint can join it.

    Without ``--rdzv-id`` the id is ``none``. Two jobs at the same endpoint, or a restart while the old agents are still
    running, mix: ``RendezvousClosedError``, ``RendezvousGracefulExitError``, or a world with the other job's ranks.
    Found by TORCHELASTIC_RUN_ID being ``none`` in a c10d rendezvous of several agents.

    Fix: ``--rdzv-id $SLURM_JOB_ID``, or any id that is unique to this job.
    See: https://github.com/pytorch/pytorch/issues/147064
    """
    shared = [
        r for r in by_agent(job) if r.environment.get("TORCHELASTIC_RUN_ID") == "none" and (agents_in_world(r) or 0) > 1
    ]
    shared = [r for r in shared if rendezvous(told(job, r) or {}) == "c10d"]
    if shared:
        endpoint = (told(job, shared[0]) or {}).get("rdzv-endpoint", "")
        yield found(
            job,
            shared,
            f"{named(job, shared)}: the rendezvous at {brief(endpoint)} has no id; another job there can join",
            Fix("Set an id unique to this job.", (restarted(job, shared[0], {"rdzv-id": own_id(job, shared[0])}),)),
            evidence={"TORCHELASTIC_RUN_ID": "none", "agent": command(job, shared[0])},
        )


@rule("environment", severity="info")
def launch_local_rank_arg(job: Job) -> Iterator[Outcome]:
    """The launcher torch.distributed.launch adds ``--local-rank=N`` to the script's arguments.

    Scripts that do not accept it stop with ``error: unrecognized arguments: --local-rank=0``. Since torch 2.0 it is
    written with a dash, which scripts that expect ``--local_rank`` reject. No action for a script that accepts it.
    Found by the agent's command line without ``--use-env``.

    Fix: use torchrun, with ``os.environ["LOCAL_RANK"]`` in the script; or
    ``add_argument("--local-rank", "--local_rank", type=int)``.
    See: https://docs.pytorch.org/docs/stable/distributed.html#launch-utility
    """
    added = []
    for r in by_agent(job):
        agent = job.process_of(r).agent
        if agent is not None and agent.program == "launch" and "use-env" not in (told(job, r) or {}):
            added.append(r)
    if added:
        yield found(
            job,
            added,
            f"{named(job, added)}: torch.distributed.launch passes --local-rank; the script must accept it",
            Fix(
                "Use torchrun and read LOCAL_RANK, or accept the argument in both spellings.",
                (
                    restarted(job, added[0], {}).replace(program(job, added[0]), "torchrun", 1),
                    restarted(job, added[0], {"use-env": ""}),
                ),
            ),
            evidence={"agent": command(job, added[0])},
        )


@rule("environment", severity="info")
def elastic_restart_stale(job: Job) -> Iterator[Outcome]:
    """The ranks have been restarted by torchrun after a failure.

    After a failure torchrun ends the ranks and restarts them. A process of an earlier start that exits slowly or still
    holds a GPU conflicts with the new ranks: out of memory, ``EADDRINUSE``. Found by TORCHELASTIC_RESTART_COUNT, which
    each agent counts from its own start.

    Fix: find processes that are older than these ranks (``nvidia-smi``, ``ps``), and kill them by their pid.
    See: https://github.com/pytorch/pytorch/issues/69345
    """
    again = [r for r in by_agent(job) if (number(r, "TORCHELASTIC_RESTART_COUNT") or 0) > 0]
    for count, ranks in grouped(again, lambda r: number(r, "TORCHELASTIC_RESTART_COUNT")).items():
        most = ranks[0].environment.get("TORCHELASTIC_MAX_RESTARTS", "?")
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: this is restart {count} of at most {most}",
            Fix(
                "Check why the earlier ranks failed, and whether any of them is still running.",
                ("ps -eo pid,lstart,stat,args --sort=start_time", "nvidia-smi"),
            ),
            evidence={"TORCHELASTIC_RESTART_COUNT": count, "TORCHELASTIC_MAX_RESTARTS": most},
        )


@rule("gpu", severity="warning")
def accelerate_num_processes_total(job: Job) -> Iterator[Outcome]:
    """The ``--num_processes`` of accelerate counts one node, but it must count all nodes.

    ``--num_processes`` is the total: with 8 on two nodes of 8 GPUs each node runs 4 processes, and half of the GPUs
    are unused without a warning. Found by an accelerate launch over several nodes whose world size equals the number
    of GPUs that a rank of one node sees.

    Fix: ``accelerate launch --num_processes $((NNODES * GPUS_PER_NODE)) --num_machines $NNODES``.
    See: https://github.com/huggingface/accelerate/issues/2818
    """
    halved = []
    for r in by_agent(job):
        agent, seen, nodes = job.process_of(r).agent, r.visible_gpus, agents_in_world(r) or 1
        if agent is None or agent.program != "accelerate" or not isinstance(seen, tuple) or nodes < 2:
            continue
        if r.placement.world_size == len(seen):
            halved.append(r)
    if halved:
        first = halved[0]
        world, nodes = first.placement.world_size or 0, agents_in_world(first) or 1
        yield found(
            job,
            halved,
            f"{named(job, halved)}: {world} processes on {nodes} nodes with {world} GPUs each; "
            "accelerate's --num_processes is the total of all nodes",
            Fix(
                "Set --num_processes to the total of all nodes.",
                (restarted(job, first, {"nnodes": str(nodes), "num-processes": str(world * nodes)}),),
            ),
            evidence={"WORLD_SIZE": world, "nodes": nodes, "agent": command(job, first)},
        )
