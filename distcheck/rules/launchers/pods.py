"""Rules about environments that identify a pod or a machine of a job, not a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.ranges import fold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.wording import found, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("environment", severity="info")
def k8s_rank_is_a_pods(job: Job) -> Iterator[Outcome]:
    """The environment identifies the pods of a job, not its ranks.

    Kubeflow's PyTorchJob sets RANK to the number of the pod, and WORLD_SIZE to the number of processes. Trainer v2
    sets only PET_*, an Indexed Job JOB_COMPLETION_INDEX, SageMaker SM_CURRENT_HOST. All are inputs for torchrun, which
    starts the ranks. A script started without torchrun reads RANK, finds no LOCAL_RANK, and waits for ranks that never
    start. The environment itself is correct: distcheck starts the ranks that torchrun would start, and this finding
    lists them.

    Fix: start the script with torchrun, which reads PET_*: ``torchrun train.py``.
    See: https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/
    """
    ranks = [r for r in job.ranks if job.asked.started_here and r.placement.launcher in {"kubernetes", "sagemaker"}]
    if not ranks:
        return
    nodes = fold({r.placement.node_rank for r in ranks if r.placement.node_rank is not None})
    each = ranks[0].placement.local_world_size or 1
    what = "pod" if ranks[0].placement.launcher == "kubernetes" else "machine"
    yield found(
        job,
        ranks,
        f"the environment identifies {what}s ({nodes}), not ranks; checked ranks {fold(numbers_of(ranks))}, {each} on "
        f"each {what}, as torchrun would number them",
        Fix("Start the script with torchrun in every pod.", (f"torchrun --nproc-per-node={each} train.py",)),
        evidence={"node_ranks": nodes, "ranks_per_node": each},
    )
