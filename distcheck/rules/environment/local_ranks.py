"""Rules about the ranks of each node: numbered from 0, one per GPU, and consecutive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.facts.ranges import fold, numbered, span
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.claims import beyond_node, claims, local_size, own_gpus, shares_gpus
from distcheck.rules.job.numbering import by_formula
from distcheck.rules.job.remedies import export
from distcheck.rules.job.settings import started_by_distcheck, unset
from distcheck.rules.job.world import agents, crowded, duplicates, in_blocks, is_complete, lonely
from distcheck.rules.wording import found, grouped, listed, named, numbers_of, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


def _numbered_here(job: Job, rank: RankFacts) -> Fix:
    text = "Set LOCAL_RANK to the number of the process on its node, from 0."
    return Fix(text, (export(job, rank, "LOCAL_RANK"),))


@rule("environment", severity="warning", scope="rank")
def env_local_rank_unset(job: Job) -> Iterator[Outcome]:
    """RANK is set but LOCAL_RANK is not, so every rank of a node uses the same GPU.

    torch itself does not read LOCAL_RANK, but scripts select the GPU with it. Without it all ranks of a node use
    cuda:0, which runs out of memory, or NCCL reports ``Duplicate GPU detected``. Found on ranks with GPUs or the
    NCCL backend. Silent where the job does not use GPUs, where the rank is alone on its node, or where an option
    gives the local rank.

    Fix: ``export LOCAL_RANK=$SLURM_LOCALID``, or ``$OMPI_COMM_WORLD_LOCAL_RANK``, or the rank modulo the
    ranks per node.
    """
    complete = is_complete(job)
    without = [
        r
        for r in job.ranks
        if "LOCAL_RANK" not in r.environment
        and "RANK" not in unset(r)
        and r.placement.rank is not None
        and shares_gpus(job, r, complete=complete)
        and not started_by_distcheck(job, r)
    ]
    # Where the launcher numbers the ranks of a node, only the mapping is missing, which many scripts do.
    for known, ranks in grouped(without, lambda r: r.placement.local_rank is not None).items():
        if not known or table_of(ranks[0]):  # otherwise an option gives it
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: LOCAL_RANK is not set; a script that selects its GPU by it fails or uses cuda:0",
                _numbered_here(job, ranks[0]),
                severity="info" if known else "warning",
                evidence={"variable": "LOCAL_RANK", "value": None},
            )


@rule("environment", "gpu-duplicate-silent-modulo", scope="rank")
def env_local_rank_out_of_range(job: Job) -> Iterator[Outcome]:
    """LOCAL_RANK exceeds the GPUs that the rank sees or the ranks on its node.

    Scripts use cuda:LOCAL_RANK and fail with ``CUDA error: invalid device ordinal``. The node has more ranks than
    GPUs, CUDA_VISIBLE_DEVICES shows too few GPUs, or LOCAL_RANK holds the global rank, which works only on the first
    node. Scripts that use cuda:(LOCAL_RANK modulo the GPUs) do not fail, but their ranks share GPUs or leave some idle.

    Found by comparing LOCAL_RANK with the GPUs that the rank sees, with LOCAL_WORLD_SIZE, and with the ranks that
    joined from the node. Silent for ``--backend gloo``, and where a lost GPU or a wrong CUDA_VISIBLE_DEVICES explains
    it. Info only where every rank of the node sees several GPUs of its own: such scripts rarely use cuda:LOCAL_RANK.

    Fix: start at most one rank per GPU (``--nproc-per-node=gpu``), show one GPU per rank in CUDA_VISIBLE_DEVICES,
    or ``export LOCAL_RANK=$((RANK % GPUS_PER_NODE))``.
    See: https://github.com/NVIDIA/nccl-tests/issues/165
    """
    if job.asked.backend == "gloo":
        return
    reported: set[int] = set()
    complete = is_complete(job)
    for ranks in agents(job):
        if {r.placement.local_rank for r in ranks} <= {None, *range(len(ranks))}:
            continue  # none is beyond even the smallest size
        size = local_size(ranks, complete=complete)
        beyond = [r for r in ranks if beyond_node(r, size)]
        if beyond:
            reported |= {id(r) for r in beyond}
            local = fold(r.placement.local_rank for r in beyond if r.placement.local_rank is not None)
            is_global = all(r.placement.local_rank == r.placement.rank for r in beyond)
            yield found(
                job,
                beyond,
                f"{named(job, beyond)} {'has' if len(beyond) == 1 else 'have'} LOCAL_RANK {local}; "
                f"expected {span(size) if size else '0 or more'}" + ("; it holds the global rank" if is_global else ""),
                _numbered_here(job, beyond[0]),
                evidence={"LOCAL_RANK": local, "ranks_on_node": size},
            )
    if crowded(job) or "gpu" not in job.asked.looks:
        return  # mpi-slots-all-on-one-host reports why there are more ranks than GPUs
    from distcheck.rules.gpu.ordinals import beyond_visible, without_gpu  # only where GPUs were looked at

    for ranks in beyond_visible(job):
        if without := [r for r in ranks if id(r) not in reported]:
            yield without_gpu(job, without)


@rule("meeting", scope="rank")
def env_local_rank_duplicate(job: Job) -> Iterator[Outcome]:
    """Ranks of one node have the same local rank, so they use the same GPU.

    NCCL reports ``Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000`` or, from 2.30,
    ``Multiple Ranks are using the same GPU/Partition``. Found by comparing LOCAL_RANK within each node.
    Silent where each rank sees its own GPU, as with Slurm's ``--gpus-per-task``, and for ``--backend gloo``,
    which needs no GPU. Ranks that see only one GPU use it whatever LOCAL_RANK is; gpu-duplicate reports it if
    they see the same one.

    Fix: number the processes of each node from 0, or let the launcher do it.
    See: https://github.com/horovod/horovod/issues/3929
    """
    if job.asked.backend == "gloo":
        return
    doubled = [ranks for ranks in agents(job) if len({r.placement.local_rank for r in ranks}) < len(ranks)]
    if not doubled:
        return
    elsewhere = {id(r) for several in duplicates(job).values() for r in several} | {id(r) for r in lonely(job)}
    if "gpu" in job.asked.looks:
        from distcheck.rules.gpu.sharing import shown_one  # as above

        elsewhere |= shown_one(job)
    for ranks in doubled:
        placed = [r for r in ranks if r.placement.local_rank is not None and id(r) not in elsewhere]
        for local, several in grouped(placed, lambda r: r.placement.local_rank).items():
            if len(several) > 1 and not own_gpus(several):
                yield found(
                    job,
                    several,
                    f"{named(job, several)} have the same LOCAL_RANK {local}; expected a different one for each",
                    _numbered_here(job, several[0]),
                    evidence={"LOCAL_RANK": local} | claims(job, several),
                )


@rule("meeting", severity="warning", scope="rank")
def env_local_world_size_inconsistent(job: Job) -> Iterator[Outcome]:
    """LOCAL_WORLD_SIZE is not the number of ranks on the node.

    Frameworks compute the number of nodes and the groups within a node from it. If it is wrong, their assertions fail
    or hybrid-shard groups span nodes. Different values on different nodes are allowed. Found by counting the ranks of
    each node once all ranks joined.

    Fix: Set LOCAL_WORLD_SIZE (``--nproc-per-node``) to the number of processes on the node.

        export LOCAL_WORLD_SIZE={number|8}
    """
    for ranks in agents(job) if is_complete(job) else ():
        if wrong := [r for r in ranks if r.placement.local_world_size not in {None, len(ranks)}]:
            sizes = fold({r.placement.local_world_size or 0 for r in wrong})
            yield found(
                job,
                wrong,
                f"{named(job, wrong)}: LOCAL_WORLD_SIZE is {sizes}, but the node runs {count(len(ranks), 'rank')}",
                evidence={"LOCAL_WORLD_SIZE": sizes, "ranks_on_node": len(ranks)},
                values={"number": [str(len(ranks))]},
            )


@rule("meeting", severity="warning", unless=("mesh-rank-order",))
def env_rank_order_not_node_major(job: Job) -> Iterator[Outcome]:
    """Consecutive ranks are on different nodes.

    The job works but is slow: frameworks put tensor-parallel and hybrid-shard groups on consecutive ranks, whose
    traffic then leaves the node. The cause is cyclic placement (``srun --distribution=cyclic``, ``mpirun --map-by
    node``). Found, once all ranks joined, by a node whose ranks are not consecutive. Silent with a ``--mesh`` whose
    tensor and expert groups all lie within nodes.

    Fix: ``srun --distribution=block:block``, or ``mpirun --map-by ppr:<GPUs>:node``.
    """
    if len(job.nodes) < 2 or not is_complete(job) or in_blocks(job):
        return
    if job.asked.mesh is not None:
        from distcheck.rules.job.mesh import within_nodes  # costs start-up time

        if within_nodes(job):
            return
    layout = {n.name: numbered(numbers_of(job.ranks_on(n))) for n in job.nodes}
    here, table = max(len(job.ranks_on(n)) for n in job.nodes), table_of(job.ranks[0])
    command = {
        "slurm": "export SLURM_DISTRIBUTION=block:block",
        "openmpi": f"# add to mpirun: --map-by ppr:{here}:node",
    }.get(table.launcher if table else "", by_formula(job))
    names = [f"{node} has {held}" for node, held in layout.items()]
    yield found(
        job,
        job.ranks,
        f"consecutive ranks are on different nodes ({listed(names)}); expected a block of ranks on each node",
        Fix("Place consecutive ranks on the same node.", (command,)),
        evidence=layout,
    )
