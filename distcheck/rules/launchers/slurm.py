"""Rules about Slurm jobs: what starts the tasks, and which GPUs and CPUs each task gets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.agents import ElasticAgent, in_step
from distcheck.rules.job.kinds import by_node, each_rank, ranks_with
from distcheck.rules.job.settings import number, started_by_distcheck
from distcheck.rules.job.world import allotted_nodes, started_without_srun
from distcheck.rules.wording import by_name, found, listed, named, once, rank_name, table_of
from distcheck.selection.placement import tasks_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_ONE_PROCESS = re.compile(r"python[\d.]*")
_ONE_NODE = frozenset({"torchrun", "accelerate"})


@once
def _tasks(job: Job) -> list[Sequence[RankFacts]]:
    """Return the ranks that are tasks of the user's srun, node by node."""
    return by_node(job, ranks_with(job, lambda r: _is_task(job, r)))


def _is_task(job: Job, rank: RankFacts) -> bool:
    table = table_of(rank)
    return table is not None and table.launcher == "slurm" and not started_by_distcheck(job, rank)


@rule("environment")
def slurm_no_srun(job: Job) -> Iterator[Outcome]:
    """The script was started in the batch shell, so only one of the job's tasks runs.

    ``sbatch`` starts the script once, on the first node; only ``srun`` starts the tasks. The batch shell has
    SLURM_PROCID=0 and SLURM_NTASKS like a first task. Rank 0 then waits for ranks that never start, ``Timed out
    after 601 seconds waiting for clients. 1/4 clients joined.``, or trains alone. Lightning reports ``The `srun`
    command is available on your system but is not used.``

    Found by a Slurm job without a step. It is an error where one process has the variables of a step with several
    tasks. It is a warning where COMMAND is python, or torchrun on one of several nodes, and where torchrun itself
    was started this way: these may start the other processes themselves.

    Fix: ``srun python train.py``; with torchrun one per node: ``srun --ntasks-per-node=1 torchrun ...``.
    See: https://github.com/Lightning-AI/pytorch-lightning/issues/15011
    """
    lone = started_without_srun(job)
    first = lone or next((r for r in job.ranks if "SLURM_JOB_ID" in r.environment), None)
    if first is None:
        return
    shell = f"the batch shell of Slurm job {first.environment['SLURM_JOB_ID']}"
    if lone is not None:
        tasks = lone.placement.world_size or 0
        yield found(
            job,
            [lone],
            f"{named(job, [lone])} runs in {shell}, which starts one process; only srun starts all {tasks} tasks",
            Fix("Start the script with srun.", (f"srun distcheck {job.asked.command}", "srun python train.py")),
            evidence={"SLURM_NTASKS": tasks, "SLURM_STEP_ID": "not set"},
        )
        return
    nodes = allotted_nodes(first) or number(first, "SLURM_NNODES") or 1
    tasks = number(first, "SLURM_NTASKS") or 1
    program = job.asked.program if job.asked.batch_shell else ""
    one_process = bool(_ONE_PROCESS.fullmatch(program)) and max(tasks, nodes) > 1
    alone = first.placement.launcher == "torchrun" and number(first, "GROUP_WORLD_SIZE") == 1 and len(job.nodes) == 1
    if one_process or (program in _ONE_NODE and nodes > 1):
        run = "srun" if one_process else "srun --ntasks-per-node=1"
        over = f"{nodes} nodes" if nodes > 1 else "the node"
        yield Fault(
            f"COMMAND is {program}, started once in {shell}; only srun starts it on {over}"
            + (f" as {tasks} tasks" if tasks > 1 else ""),
            Fix(
                "Start COMMAND with srun, or distcheck and COMMAND together.",
                (f"# put {run} in front of COMMAND, or in front of distcheck",),
            ),
            severity="warning",
        )
    elif alone and nodes > 1 and not in_step(first):
        yield found(
            job,
            job.ranks,
            f"torchrun was started only on {job.node_of(first).name}, in {shell}, which has {nodes} nodes",
            Fix("Start one torchrun on each node.", (ElasticAgent(job, first).on_each_node({}),)),
            severity="warning",
        )


@rule("environment", severity="warning", of=each_rank)
def slurm_cpus_per_task_not_inherited(job: Job, rank: RankFacts) -> Answer:
    """A task may use fewer CPUs than ``--cpus-per-task`` requests.

    Since Slurm 22.05 srun does not inherit ``--cpus-per-task`` from sbatch, so every task is bound to one core. Data
    loaders and NCCL's proxy threads share that core, and the GPU waits without an error message. Found by comparing
    SLURM_CPUS_PER_TASK with the CPU affinity of the rank's process. Silent where the process may run on all CPUs of
    the node.

    Fix: Export the number for srun in the batch script, because srun does not inherit it from sbatch.

        export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

    See: https://slurm.schedmd.com/srun.html#OPT_cpus-per-task
    """
    requested, cpus, online = number(rank, "SLURM_CPUS_PER_TASK"), rank.cpus, job.node_of(rank).cpus
    if requested is None or cpus is None or online is None or cpus >= min(requested, online) or not _is_task(job, rank):
        return None
    return Fault(
        f"CPU affinity allows {count(cpus, 'CPU')}, but SLURM_CPUS_PER_TASK is {requested}",
        evidence={"cpus_of_node": online},
    )


@rule("environment", severity="warning")
def slurm_ntasks_vs_devices(job: Job) -> Iterator[Outcome]:
    """Slurm assigned a node more GPUs than tasks, so some GPUs would be idle.

    torch needs one process per GPU. Frameworks that count the devices stop at once, as Lightning does at
    ``Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8``; others leave allocated GPUs idle. Found by
    comparing SLURM_GPUS_ON_NODE with the tasks that Slurm placed on the node. One task on a node is only an info:
    it may be a torchrun, or a process that starts the others. Silent for ``--backend gloo``, where tasks have
    GPUs of their own, and where distcheck starts the ranks (``--nproc``). gpu-duplicate and
    env-local-rank-out-of-range report more tasks than GPUs.

    Fix: Start one task per GPU. If each task starts one process per GPU, pass --nproc.

        #SBATCH --ntasks-per-node={gpus|8}
        {start|srun --ntasks-per-node=1 distcheck gate --nproc 8}

    See: https://github.com/Lightning-AI/pytorch-lightning/issues/20391
    """
    if job.asked.backend == "gloo":
        return
    idle: dict[tuple[int, int], list[RankFacts]] = {}
    for ranks in _tasks(job):
        here = ranks[0].environment
        gpus, tasks = number(ranks[0], "SLURM_GPUS_ON_NODE"), tasks_here(here)
        own = "SLURM_GPUS_PER_TASK" in here or len({r.environment.get("CUDA_VISIBLE_DEVICES") for r in ranks}) > 1
        if gpus is not None and tasks is not None and gpus > tasks and not own:
            idle.setdefault((gpus, tasks), []).extend(ranks)
    for (gpus, tasks), several in idle.items():
        yield found(
            job,
            several,
            f"{named(job, several)}: {count(tasks, 'task')} for {gpus} GPUs on each node; expected one task per GPU",
            severity="info" if tasks == 1 else "warning",
            values={
                "gpus": [str(gpus)],
                "start": [f"srun --ntasks-per-node={tasks} distcheck {job.asked.command} --nproc {gpus // tasks}"],
            },
        )


def _isolated(ranks: Sequence[RankFacts]) -> bool:
    """Whether a device cgroup hides GPUs: ranks see different GPUs under the same number.

    A different CUDA_VISIBLE_DEVICES per rank hides no GPU from NCCL, which opens the other GPUs itself.
    """
    if len(ranks) < 2 or _shown(ranks[0]) == _shown(ranks[1]):
        return False
    values = {r.environment.get("CUDA_VISIBLE_DEVICES") for r in ranks}
    shown = [s for r in ranks if (s := _shown(r))]
    value = values.pop() if len(values) == 1 else ""
    alike = value is None or bool(re.fullmatch(r"[\d,]+", value))
    return alike and len(shown) == len(ranks) and len({u for s in shown for u in s}) == sum(map(len, shown))


def _one_each(ranks: Sequence[RankFacts]) -> bool:
    """Whether each rank of a node sees exactly one GPU, and a different one."""
    shown = [s for r in ranks if len(s := _shown(r)) == 1]
    return len(shown) == len(ranks) > 1 and len(set(shown)) == len(ranks)


def _numbered(ranks: Sequence[RankFacts]) -> bool:
    """Whether LOCAL_RANK counts up, so that cuda:LOCAL_RANK exists only for the first rank."""
    return any((number(r, "LOCAL_RANK") or 0) > 0 for r in ranks)


@rule("gpu", severity="warning")
def slurm_gpus_per_task_hides_gpus(job: Job) -> Iterator[Outcome]:
    """Each task sees one GPU as cuda:0, but LOCAL_RANK counts up.

    With ``--gpus-per-task=1`` or ``--gpu-bind=single:1`` Slurm shows every task only its own GPU. Scripts that use
    cuda:LOCAL_RANK fail on all but the first rank of a node: ``CUDA error: invalid device ordinal``. Scripts that
    use cuda:0 there, or LOCAL_RANK modulo the devices, work, so this is a warning. Found by several tasks of a node
    that each see one, different GPU, with LOCAL_RANK set; if LOCAL_RANK is not set it is only an info. Silent for
    ``--backend gloo``.

    Fix: Show every task all GPUs of the node and select cuda:LOCAL_RANK, or use cuda:0 in every task.

        #SBATCH --gpus-per-node={here|8} --ntasks-per-node={here|8}
        export SLURM_GPU_BIND=none

    See: https://github.com/ACEsuit/mace/issues/435
    """
    if job.asked.backend == "gloo":
        return
    hidden = [ranks for ranks in _tasks(job) if _one_each(ranks)]
    unnumbered = [n for n in hidden if all("LOCAL_RANK" not in r.environment for r in n) and not _isolated(n)]
    for numbered, nodes in ((True, [n for n in hidden if _numbered(n)]), (False, unnumbered)):
        if not nodes:
            continue
        ranks = [r for node in nodes for r in node]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: each sees only its own GPU, as cuda:0"
            + ("; cuda:LOCAL_RANK fails with CUDA error: invalid device ordinal" if numbered else ""),
            severity="warning" if numbered else "info",
            evidence=_views(job, nodes[0]),
            values={"here": [str(max(len(node) for node in nodes))]},
        )


@rule("gpu", severity="warning")
def slurm_gpu_bind_no_p2p(job: Job) -> Iterator[Outcome]:
    """Each task can open only its own GPU, so NCCL cannot use P2P within the node.

    ``--gpus-per-task`` and ``--gpu-bind`` with ConstrainDevices put every task into its own device cgroup. CUDA
    cannot map the memory of a GPU that the task may not open: NCCL's log shows ``via SHM`` in place of ``via P2P``,
    and the node is slow without any error. Found by tasks of one node that see different GPUs under the same number.
    A different CUDA_VISIBLE_DEVICES per task does not have this effect. Silent for ``--backend gloo``, and where
    slurm-gpus-per-task-hides-gpus warns, whose fix solves both.

    Fix: Allow every task all GPUs of the node (``srun --gpu-bind=none``), and select the GPU with LOCAL_RANK.

        export SLURM_GPU_BIND=none

    See: https://github.com/jax-ml/jax/issues/23452
    """
    if job.asked.backend == "gloo":
        return
    nodes = [n for n in _tasks(job) if _isolated(n) and not (_one_each(n) and _numbered(n))]
    if nodes:
        ranks = [r for node in nodes for r in node]
        message = "each can open only its own GPUs, so NCCL cannot use P2P between the tasks' GPUs"
        yield found(job, ranks, f"{named(job, ranks)}: {message}", evidence=_views(job, nodes[0]))


def _views(job: Job, ranks: Sequence[RankFacts]) -> dict[str, str]:
    """Return the GPUs that the first ranks of a node see, as evidence."""
    lines = []
    for r in ranks[:8]:
        values = ", ".join(
            f"{name} {r.environment.get(name, 'not set')}" for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK")
        )
        lines.append((rank_name(job, r), f"{values}, sees {listed(_shown(r)) or 'nothing'}"))
    return by_name(lines)


def _shown(rank: RankFacts) -> tuple[str, ...]:
    return rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else ()
