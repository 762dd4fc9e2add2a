"""Rules about several jobs of torchrun on the GPUs of one node."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal, NamedTuple

from distcheck.facts.gpu import Gpus
from distcheck.facts.pci import Pci
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.nodes import all_visible, without_loss
from distcheck.rules.gpu.sharing import sharing_allowed
from distcheck.rules.job.agents import ElasticAgent
from distcheck.rules.job.command_words import SETS_VARIABLES, shown, words_of
from distcheck.rules.job.settings import number
from distcheck.rules.wording import STARTERS, found, grouped, listed, nodes_of
from distcheck.selection.placement import beside, find_table, integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import RankFacts

_ONE_PER_NODE = {
    "srun": "srun --ntasks-per-node=1",
    "mpirun": "mpirun --map-by ppr:1:node",
    "mpiexec": "mpiexec -ppn 1",
}
_HAS_A_TERMINAL = "SLURM_PTY_PORT"
"""Set by srun --pty: only the first task has a terminal, and the others end."""


class _Started(NamedTuple):
    """What the tasks of a node start."""

    ranks: Sequence[RankFacts]
    tasks: int
    processes: int
    """Of all tasks together."""
    gpus: int
    """That they share."""
    unless: Literal["", "only this task", "other devices"] = ""
    """What else may be: only the first task starts torchrun, or its ranks take other GPUs than cuda:LOCAL_RANK."""


@rule("gpu")
def gpu_worlds_overlap(job: Job) -> Iterator[Outcome]:
    """Several tasks of a node each start a torchrun, and together they start more processes than the node has GPUs.

    With ``srun --ntasks-per-node=2 torchrun --standalone --nproc-per-node 8`` both jobs start and are sound by
    themselves, but each GPU has a rank of both: ``CUDA out of memory``, or half of the speed without an error.

    Found by the tasks that srun or mpirun placed on the node, times the processes of torchrun, compared with the GPUs
    of the node: for a distcheck that torchrun started, and for ``distcheck gate -- torchrun ...``. A warning where only
    the first task of the node is known to start torchrun, and where the GPUs suffice but all tasks see the same ones,
    because cuda:LOCAL_RANK is the same GPU in each. Silent where tasks see GPUs of their own, as with
    ``--gpus-per-task``, with ``--backend gloo``, MIG, the Multi-Process Service or NCCL_MULTI_RANK_GPU_ENABLE=1, and
    under ``srun --pty``. torchrun-per-task-under-srun reports agents that should have met.

    Fix: start one task per node: ``srun --ntasks-per-node=1 torchrun --nproc-per-node 8 train.py``.
    """
    nodes = [started for node, _ in without_loss(job) if (started := _started(job, node))]
    for alike in grouped((each for each in nodes if each.processes > each.gpus), lambda each: each[1:]).values():
        yield _overlap(job, alike[0]._replace(ranks=[rank for each in alike for rank in each.ranks]))


def _overlap(job: Job, started: _Started) -> Fault:
    first = started.ranks[0]
    table = find_table(_before_torchrun(first))
    program = STARTERS[table.launcher] if table else "a launcher"
    each = started.processes // started.tasks
    own = first.placement.launcher == "torchrun"
    what = "torchrun" if own else f"COMMAND ({shown(job)})"
    words = words_of(job)
    gate = f"distcheck {job.asked.command} --nproc {each} -- {shlex.join(words)}" if words else ""
    command = ElasticAgent(job, first).restarted({}) if own else gate
    start = _ONE_PER_NODE.get(program)
    start_of_each = f"each starts {what} with {each} {'process' if each == 1 else 'processes'}"
    starts = {
        "": f"{start_of_each}, so",
        "only this task": f"if {start_of_each}, as this one did,",
        "other devices": f"{start_of_each}; if they take cuda:LOCAL_RANK,",
    }[started.unless]
    names = nodes_of(job, started.ranks)
    where = f"each of {listed(names)}" if len(names) > 1 else names[0]
    return found(
        job,
        started.ranks,
        f"{program} started {started.tasks} tasks on {where}; {starts} {started.processes} processes share "
        f"{count(started.gpus, 'GPU')}",
        Fix("Start one task per node.", (f"{start} {command}",) if start and command else ()),
        severity="warning" if started.unless else "error",
    )


def _started(job: Job, node: NodeFacts) -> _Started | None:
    """Return what the tasks of a node start, None if that is unknown or GPUs are shared on purpose."""
    ranks = job.ranks_on(node)
    if job.launched or not ranks or not isinstance(node.gpus, Gpus) or node.gpus.mps_daemon:
        return None
    if any(gpu.mig is True for gpu in node.gpus.devices) or sharing_allowed(job, ranks[0]):
        return None
    first = ranks[0]
    if first.placement.launcher != "torchrun":
        return _of_command(job, ranks)
    task, tasks = beside(_before_torchrun(first))
    agents = len({rank.placement.node_rank for rank in ranks})
    if tasks <= agents or ElasticAgent(job, first).one_per_task or _HAS_A_TERMINAL in first.environment:
        return None
    known = len(node.pci.gpus) if isinstance(node.pci, Pci) else 0  # a task may see its own only
    gpus = max(len(all_visible(job, node).uuids), number(first, "SLURM_GPUS_ON_NODE") or 0, known)
    each, seen = first.placement.local_world_size or 1, first.visible_gpus
    if each * tasks <= gpus and task and isinstance(seen, tuple) and len(seen) >= gpus:
        return _Started(ranks, tasks, each * tasks, each, "other devices")
    return _Started(ranks, tasks, each * tasks, gpus, "" if task else "only this task")


def _of_command(job: Job, ranks: Sequence[RankFacts]) -> _Started | None:
    """Return what the distchecks of a node start on a pass, if they become torchrun."""
    asked, tasks = job.asked, {rank.process: rank for rank in ranks}
    seen = [rank.visible_gpus for rank in tasks.values() if isinstance(rank.visible_gpus, tuple)]
    each = [len(shown) if asked.processes in {"gpu", "auto"} else integer(asked.processes) or 0 for shown in seen]
    if asked.program not in SETS_VARIABLES or len(tasks) < 2 or len(seen) < len(tasks):
        return None
    there = len({gpu for shown in seen for gpu in shown})
    taken = len({gpu for shown, number in zip(seen, each, strict=True) for gpu in shown[:number]})
    enough = sum(each) <= there
    return _Started(ranks, len(tasks), sum(each), taken if enough else there, "other devices" if enough else "")


def _before_torchrun(rank: RankFacts) -> Mapping[str, str]:
    """Return a rank's variables without the mark of torchrun, so that they show what started torchrun."""
    return {name: value for name, value in rank.environment.items() if name != "TORCHELASTIC_RUN_ID"}
