"""Rules about jobs that Slurm runs: who starts the tasks, and which GPUs and CPUs each of them gets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.gpu.nodes import VARIABLE
from distcheck.rules.job.agents import agent_per_node
from distcheck.rules.job.settings import number, started_by_distcheck
from distcheck.rules.job.world import allotted_nodes, started_without_srun
from distcheck.rules.wording import by_name, found, grouped, listed, named, once, rank_name, table_of
from distcheck.selection.placement import tasks_here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts import Job, RankFacts

_ONE_PROCESS = re.compile(r"python[\d.]*")
_ONE_NODE = frozenset({"torchrun", "accelerate"})


@once
def _tasks(job: Job) -> list[list[RankFacts]]:
    """Return the ranks that are tasks of an srun of the user's, node by node."""
    tasks = [r for r in job.ranks if not started_by_distcheck(job, r) and _is_task(r)]
    return list(grouped(tasks, lambda r: job.node_of(r).key).values())


def _is_task(rank: RankFacts) -> bool:
    table = table_of(rank)
    return table is not None and table.launcher == "slurm"


@rule("environment")
def slurm_no_srun(job: Job) -> Iterator[Outcome]:
    """The script was started in the batch shell, so only one of the job's tasks runs.

    ``sbatch`` starts the script itself once, on the first node; only ``srun`` starts the tasks. The batch shell has
    SLURM_PROCID=0 and SLURM_NTASKS like a first task: rank 0 then waits for ranks that nobody starts, ``Timed out
    after 601 seconds waiting for clients. 1/4 clients joined.``, or trains alone. Lightning says ``The `srun` command
    is available on your system but is not used.`` Found by a Slurm job without a step, where one process of several
    tasks has the numbers of a step (an error), where COMMAND would be python, or torchrun on one node of several, or
    where torchrun itself was started so (a warning: they may start the others in a way of their own).

    Fix: ``srun python train.py``; with torchrun one per node: ``srun --ntasks-per-node=1 torchrun ...``.
    See: https://github.com/Lightning-AI/pytorch-lightning/issues/15011
    """
    lone = started_without_srun(job)
    if lone is not None:
        tasks = lone.placement.world_size or 0
        yield found(
            job,
            [lone],
            f"{named(job, [lone])} runs in the batch shell of Slurm job {lone.environment['SLURM_JOB_ID']}, which "
            f"starts one process; only srun starts all {tasks} tasks",
            Fix("Start the script with srun.", (f"srun distcheck {job.asked.command}", "srun python train.py")),
            scope="job",
            evidence={"SLURM_NTASKS": tasks, "SLURM_STEP_ID": "not set"},
        )
        return
    first = next((r for r in job.ranks if "SLURM_JOB_ID" in r.environment), None)
    if first is None:
        return
    nodes = allotted_nodes(first) or number(first, "SLURM_NNODES") or 1
    tasks = number(first, "SLURM_NTASKS") or 1
    program = job.asked.program if job.asked.batch_shell else ""
    one_process = bool(_ONE_PROCESS.fullmatch(program)) and max(tasks, nodes) > 1
    if one_process or (program in _ONE_NODE and nodes > 1):
        run = "srun" if one_process else "srun --ntasks-per-node=1"
        yield found(
            job,
            [],
            f"COMMAND is {program}, started once in the batch shell of Slurm job {first.environment['SLURM_JOB_ID']}: "
            f"only srun starts it on {_extent(tasks, nodes)}",
            Fix(
                "Let srun start COMMAND, or distcheck and COMMAND together.",
                (f"# put {run} in front of COMMAND, or in front of distcheck",),
            ),
            severity="warning",
            scope="job",
            evidence={"COMMAND": program, "SLURM_NTASKS": tasks, "nodes": nodes},
        )
    elif _alone_under_torchrun(job, first, nodes):
        yield found(
            job,
            job.ranks,
            f"torchrun was started on {job.node_of(first).name} alone, in the batch shell of Slurm job "
            f"{first.environment['SLURM_JOB_ID']}, which has {nodes} nodes",
            Fix(
                "Start one torchrun on each node.",
                (agent_per_node(job, first, {}),),
            ),
            severity="warning",
            scope="job",
            evidence={"nodes": nodes, "GROUP_WORLD_SIZE": first.environment.get("GROUP_WORLD_SIZE", "")},
        )


def _extent(tasks: int, nodes: int) -> str:
    over = f"{nodes} nodes" if nodes > 1 else "the node"
    return f"{over} as {tasks} tasks" if tasks > 1 else over


def _alone_under_torchrun(job: Job, first: RankFacts, nodes: int) -> bool:
    step = first.environment.get("SLURM_STEP_ID")
    alone = first.placement.launcher == "torchrun" and number(first, "GROUP_WORLD_SIZE") == 1 and len(job.nodes) == 1
    return alone and nodes > 1 and step in {None, "4294967290"}  # the step of salloc's own shell


@rule("environment")
def slurm_cpus_per_task_not_inherited(job: Job) -> Iterator[Outcome]:
    """A task may use fewer CPUs than ``--cpus-per-task`` asked for.

    Since Slurm 22.05 srun does not take ``--cpus-per-task`` over from sbatch: every task is bound to one core. Data
    loaders and NCCL's proxy threads then share it, and the GPU waits; nothing says so. Found by comparing
    SLURM_CPUS_PER_TASK with the CPUs on which the rank's process may run; silent where it may run on all CPUs of the
    node.

    Fix: ``export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK`` in the batch script, or ``srun --cpus-per-task=...``.
    See: https://slurm.schedmd.com/srun.html#OPT_cpus-per-task
    """
    bound = []
    for r in (r for ranks in _tasks(job) for r in ranks):
        wanted, online = number(r, "SLURM_CPUS_PER_TASK"), job.node_of(r).cpus
        if wanted is not None and r.cpus is not None and online is not None and r.cpus < min(wanted, online):
            bound.append((r.cpus, wanted, r))
    for (cpus, wanted), several in grouped(bound, lambda item: item[:2]).items():
        ranks = [r for _, _, r in several]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: may run on {cpus} {'CPU' if cpus == 1 else 'CPUs'}, and SLURM_CPUS_PER_TASK is "
            f"{wanted}",
            Fix(
                "Hand the number to srun, which does not take it over from sbatch.",
                ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",),
            ),
            severity="warning",
            scope="job",
            evidence={"SLURM_CPUS_PER_TASK": wanted, "cpus": cpus, "cpus_of_node": job.node_of(ranks[0]).cpus or 0},
        )


@rule("environment")
def slurm_ntasks_vs_devices(job: Job) -> Iterator[Outcome]:
    """Slurm gave a node more GPUs than tasks, so that some GPUs would idle.

    torch wants one process for each GPU. Frameworks that count the devices stop at once, as Lightning does at
    ``Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8``; others leave GPUs idle that the job pays for. Found by
    comparing SLURM_GPUS_ON_NODE with the tasks that Slurm placed on the node. One task on a node is only mentioned:
    it may be a torchrun, or a process that starts the others. Silent for ``--backend gloo``, where tasks were given
    GPUs of their own, and where distcheck starts the ranks (``--nproc``). More tasks than GPUs is what gpu-duplicate
    and env-local-rank-out-of-range find.

    Fix: ``#SBATCH --ntasks-per-node=<GPUs>`` without ``--ntasks``; where each task starts a process for each GPU, tell
    distcheck so: ``--nproc <GPUs>``.
    See: https://github.com/Lightning-AI/pytorch-lightning/issues/20391
    """
    if job.asked.backend == "gloo":
        return
    idle = []
    for ranks in _tasks(job):
        first = ranks[0]
        gpus, tasks = number(first, "SLURM_GPUS_ON_NODE"), tasks_here(first.environment)
        own = "SLURM_GPUS_PER_TASK" in first.environment or len({r.environment.get(VARIABLE) for r in ranks}) > 1
        if gpus is not None and tasks is not None and gpus > tasks and not own:
            idle.append((gpus, tasks, ranks))
    for (gpus, tasks), several in grouped(idle, lambda item: item[:2]).items():
        ranks = [r for item in several for r in item[2]]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {tasks} {'task' if tasks == 1 else 'tasks'} for {gpus} GPUs on each node; "
            "expected one for each GPU",
            Fix(
                "Start a task for each GPU. Where each task starts a process for each GPU, say so with --nproc.",
                (
                    f"#SBATCH --ntasks-per-node={gpus}",
                    f"srun --ntasks-per-node={tasks} distcheck {job.asked.command} --nproc {gpus // tasks}",
                ),
            ),
            severity="info" if tasks == 1 else "warning",
            scope="job",
            evidence={"SLURM_GPUS_ON_NODE": gpus, "tasks_on_node": tasks},
        )


def _isolated(ranks: list[RankFacts]) -> bool:
    """Whether ranks see different GPUs under one and the same number: then the kernel hides the others' devices.

    A CUDA_VISIBLE_DEVICES of its own for each rank hides nothing from NCCL, which opens the other GPUs itself.
    """
    values = {r.environment.get(VARIABLE) for r in ranks}
    shown = [s for r in ranks if (s := _shown(r))]
    value = next(iter(values)) if len(values) == 1 else ""
    alike = value is None or bool(re.fullmatch(r"[\d,]+", value))
    return alike and len(shown) == len(ranks) > 1 and len({u for s in shown for u in s}) == sum(map(len, shown))


def _one_each(ranks: list[RankFacts]) -> bool:
    """Whether each rank of a node sees one GPU, another one each."""
    shown = [s for r in ranks if len(s := _shown(r)) == 1]
    return len(shown) == len(ranks) > 1 and len(set(shown)) == len(ranks)


def _numbered(ranks: list[RankFacts]) -> bool:
    """Whether LOCAL_RANK numbers the ranks, so that cuda:LOCAL_RANK is no GPU for all but the first."""
    return any((number(r, "LOCAL_RANK") or 0) > 0 for r in ranks)


@rule("gpu")
def slurm_gpus_per_task_hides_gpus(job: Job) -> Iterator[Outcome]:
    """Each task sees one GPU as cuda:0, while LOCAL_RANK counts on.

    With ``--gpus-per-task=1`` or ``--gpu-bind=single:1`` Slurm shows every task its own GPU only. Scripts that take
    cuda:LOCAL_RANK stop on all but the first rank of a node: ``CUDA error: invalid device ordinal``. Scripts that
    take cuda:0 there, or LOCAL_RANK modulo the devices, work, which is why this is a warning. Found by several tasks
    of a node that see one GPU each, another one each, with LOCAL_RANK set; where LOCAL_RANK is not set it is only
    mentioned. Silent for ``--backend gloo``.

    Fix: ``#SBATCH --gpus-per-node=8 --ntasks-per-node=8`` and ``srun --gpu-bind=none``, or cuda:0 in every task.
    See: https://github.com/ACEsuit/mace/issues/435
    """
    if job.asked.backend == "gloo":
        return
    hidden = [ranks for ranks in _tasks(job) if _one_each(ranks)]
    unnumbered = [n for n in hidden if all("LOCAL_RANK" not in r.environment for r in n) and not _isolated(n)]
    for severity, nodes in (("warning", [n for n in hidden if _numbered(n)]), ("info", unnumbered)):
        if not nodes:
            continue
        ranks = [r for node in nodes for r in node]
        here = max(len(node) for node in nodes)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: each sees one GPU, its own, as cuda:0"
            + (": cuda:LOCAL_RANK is a CUDA error: invalid device ordinal" if severity == "warning" else ""),
            Fix(
                "Let every task see all GPUs of the node and take its own by LOCAL_RANK, or take cuda:0 in every task.",
                (f"#SBATCH --gpus-per-node={here} --ntasks-per-node={here}", "export SLURM_GPU_BIND=none"),
            ),
            severity="warning" if severity == "warning" else "info",
            scope="job",
            evidence=_sights(job, nodes[0]),
        )


@rule("gpu")
def slurm_gpu_bind_no_p2p(job: Job) -> Iterator[Outcome]:
    """Each task can open its own GPU only, which keeps NCCL from copying between the GPUs of a node directly.

    ``--gpus-per-task`` and ``--gpu-bind`` with ConstrainDevices put every task into a device cgroup of its own. CUDA
    cannot map a GPU's memory there that the task may not open: NCCL's log says ``via SHM`` in place of ``via P2P``,
    and the node is slow without any error. Found by tasks of one node that see different GPUs under the same number.
    A CUDA_VISIBLE_DEVICES of its own for each task does no such harm. Silent for ``--backend gloo``; where
    slurm-gpus-per-task-hides-gpus warns, one fix mends both.

    Fix: ``srun --gpu-bind=none``, and choose the GPU by LOCAL_RANK.
    See: https://github.com/jax-ml/jax/issues/23452
    """
    if job.asked.backend == "gloo":
        return
    nodes = [n for n in _tasks(job) if _isolated(n) and not (_one_each(n) and _numbered(n))]
    if not nodes:
        return
    ranks = [r for node in nodes for r in node]
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: each can open its own GPUs only, so NCCL cannot copy between the tasks' GPUs directly",
        Fix("Let every task open all GPUs of the node, and choose by LOCAL_RANK.", ("export SLURM_GPU_BIND=none",)),
        severity="warning",
        scope="job",
        evidence=_sights(job, nodes[0]),
    )


def _sights(job: Job, ranks: list[RankFacts]) -> dict[str, str]:
    """Return as evidence what the first ranks of a node see."""
    lines = []
    for r in ranks[:8]:
        told = ", ".join(f"{name} {r.environment.get(name, 'not set')}" for name in (VARIABLE, "LOCAL_RANK"))
        lines.append((rank_name(job, r), f"{told}, sees {listed(_shown(r)) or 'nothing'}"))
    return by_name(lines)


def _shown(rank: RankFacts) -> tuple[str, ...]:
    return rank.visible_gpus if isinstance(rank.visible_gpus, tuple) else ()
