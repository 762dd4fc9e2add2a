"""Rules about the ranks of a job: each exists once, in one world."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.facts.ranges import fold, numbered, span
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.claims import claims, explanation, own_ranks
from distcheck.rules.job.kinds import each_rank
from distcheck.rules.job.numbering import assigned, by_formula, numbering, rank_commands
from distcheck.rules.job.remedies import export
from distcheck.rules.job.settings import mapping
from distcheck.rules.job.world import duplicates, gap, lonely, out_of_range, rankless, tasks_of, too_few_started, worlds
from distcheck.rules.wording import are, found, named, numbers_of, odd_ones, processes, spread, starter, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_SHOWN = 8
"""Most nodes in a finding's evidence."""

# Only three of the rules that need all ranks report unknown ranks as not checked: twenty rows with one reason
# would hide it, and none would be a pass.


@rule("environment", scope="rank", unless=("command-node-rank-beyond",))
def env_rank_out_of_range(job: Job) -> Iterator[Outcome]:
    """A rank is outside the range 0 to WORLD_SIZE - 1.

    torch does not validate the rank: every rank other than 0 connects and waits, until ``The client socket has timed
    out after 600000ms``, Gloo's ``rank < size`` or NCCL's ``Invalid rank requested : 4/4``. The usual causes are ranks
    counted from 1, a WORLD_SIZE that counts the GPUs of one node, and a wrong formula for RANK. Found by comparing RANK
    with WORLD_SIZE in each process, and with the ranks that joined the roll call.

    Fix: count RANK from 0, ``export RANK=$((NODE_RANK * GPUS_PER_NODE + LOCAL_RANK))``; or set WORLD_SIZE to the number
    of all processes.
    """
    beyond = out_of_range(job)
    if not beyond:
        return
    if numbering(job) == "world too small":
        yield _world_too_small(job)
        return
    world = beyond[0].placement.world_size or 0
    message = f"{named(job, beyond)} {are(beyond)} out of range for WORLD_SIZE {world}; expected {span(world)}"
    message += "; the ranks are counted from 1" if numbering(job) == "from one" else ""
    evidence = {"WORLD_SIZE": world, "RANK": fold(r.placement.rank for r in beyond if r.placement.rank is not None)}
    yield found(job, beyond, message, _in_range(job, beyond[0]), evidence=evidence)


def _world_too_small(job: Job) -> Fault:
    """Return that more ranks came than WORLD_SIZE says."""
    first, numbers = job.ranks[0], numbers_of(job.ranks)
    size = numbers[-1] + 1
    command = export(job, first, "WORLD_SIZE") if tasks_of(first) == size else assigned(first, "WORLD_SIZE", str(size))
    return found(
        job,
        job.ranks,
        f"{count(len(numbers), 'process')} have {numbered(numbers)}, but WORLD_SIZE is {job.world_size}",
        Fix("Set WORLD_SIZE to the number of all processes, in every process.", (command,)),
        evidence={"WORLD_SIZE": job.world_size, "RANK": fold(numbers)},
    )


def _in_range(job: Job, first: RankFacts) -> Fix:
    """Return the fix for ranks outside of the world, by what is known of the other processes."""
    from_one = numbering(job) == "from one"
    if table_of(first):
        return Fix("Set RANK to the number of the process in the whole job, from 0.", (export(job, first, "RANK"),))
    if commands := rank_commands(job, list(job.ranks)):
        text = "Count the ranks from 0: the first process is rank 0 and serves the store."
        return Fix(text if from_one else "Give each process a rank of its own.", commands)
    if from_one:
        return Fix("Subtract 1 from RANK where it is set: the first process is rank 0 and serves the store.")
    return Fix(
        "Set RANK to the number of the process in the whole job, from 0, and WORLD_SIZE to the number of processes.",
        (by_formula(job),),
    )


@rule("meeting", scope="rank", unless=("command-node-rank-duplicate",))
def env_rank_duplicate(job: Job) -> Iterator[Outcome]:
    """Several processes claim the same rank.

    Two processes with rank 0 compete for the port (``EADDRINUSE``) or wait separately. Two with another rank leave
    the job one rank short: ``wait timeout after 600000ms, keys: /default_pg/0//cpu//0/2``, in NCCL ``Bootstrap
    Root : rank 1 of 4 ranks has already checked in``. The usual causes are the same node rank on two nodes,
    LOCAL_RANK copied into RANK, and one RANK exported for all tasks. Found at the roll call, which identifies
    every process.

    Fix: set RANK to the number in the whole job; give each node its own ``--node-rank`` or ``machine_rank``. If one of
    the processes is not yours, set ``DISTCHECK_TOKEN`` for the job: processes without the token are rejected.
    See: https://github.com/huggingface/accelerate/issues/2362
    """
    claimed = duplicates(job)
    if not claimed:
        if reason := gap(job):
            yield NotChecked(reason=reason)
        return
    claimants = [r for several in claimed.values() for r in several]
    rank, several = next(iter(claimed.items()))
    if len(claimed) == 1:
        often = "twice" if len(several) == 2 else f"{len(several)} times"
        message = f"rank {rank} is claimed {often}, by {processes(job, several)}"
    else:
        message = f"{numbered(claimed)} are claimed by several processes each, rank {rank} by {processes(job, several)}"
    fix = Fix(*own_ranks(job, claimants))
    yield found(job, claimants, f"{message}; expected one process per rank", fix, evidence=claims(job, claimants))


@rule("meeting", consequence=True, scope="node", owner="unknown")
def env_rank_missing(job: Job) -> Iterator[Outcome]:
    """Some ranks of the world did not join the roll call.

    The ranks that joined wait for them until torch's timeout: ``Timed out after 601 seconds waiting for clients. 7/8
    clients joined.`` on rank 0, ``wait timeout after 600000ms, keys: /default_pg/0//...`` or nothing on the others,
    and ``The client socket has timed out`` without rank 0. A node was not started, is still queued, died during
    start-up or cannot reach rank 0. Found by comparing the ranks in the roll call with the world size.

    The nodes of the missing ranks are named if they are known from Slurm's variables, the nodes that distcheck was
    given, or the node ranks of torchrun's agents. If another fault explains the missing ranks, that fault is reported
    and this rule is listed under *not checked*.

    Fix: Check that the processes were started, read the end of their logs, and check that their nodes reach rank 0. If
    nodes start late, raise --join-timeout.

        {look|distcheck net}

    See: https://slurm.schedmd.com/srun.html#OPT_distribution
    """
    if reason := gap(job):
        yield NotChecked(reason=reason)
        return
    missing = job.missing_ranks
    if not missing:
        return
    from distcheck.rules.job.homes import located, look_at, missing_by_node  # imported only when needed

    explained, by_node = explanation(job), missing_by_node(job)
    if explained:
        yield NotChecked(ranks=missing, nodes=tuple(by_node), reason=f"{explained}; see the other findings")
        return
    world, lost = job.world_size or 0, rankless(job)
    also = f"; {lost} of them may be the processes with an invalid rank" if lost else ""
    yield Fault(
        f"{located(job, missing)} of {world} did not join the roll call{also}",
        evidence={"came": len(job.ranks)} | {node: numbered(ranks) for node, ranks in islice(by_node.items(), _SHOWN)},
        confirmed=False,
        ranks=missing,
        nodes=tuple(by_node),
        values={"look": look_at(job, tuple(by_node))},
    )


@rule("meeting", scope="rank")
def env_world_size_mismatch(job: Job) -> Iterator[Outcome]:
    """The ranks do not agree on the world size.

    Each side waits for a different number of ranks, with a different message: ``Gloo connectFullMesh failed``, ``wait
    timeout after 600000ms, keys: /default_pg/0//cpu//0/2``, or NCCL's ``Bootstrap Root : mismatch in info
    from procs, nranks 8 vs 16``. The usual causes are a WORLD_SIZE that counts the GPUs of one node on some of the
    nodes, and a different ``--nnodes``. Found by comparing WORLD_SIZE of all ranks.

    Fix: Set the same world size for every process: nodes times processes per node.

        {export|export WORLD_SIZE=$((NNODES * GPUS_PER_NODE))}
    """
    sizes = worlds(job)
    if len(sizes) > 1:
        odd = odd_ones(sizes)
        yield found(
            job,
            odd,
            f"{spread(job, 'WORLD_SIZE', sizes)}; expected one value",
            evidence={str(size): named(job, ranks) for size, ranks in sizes.items()},
            values={"export": [export(job, odd[0], "WORLD_SIZE")]},
        )
    elif reason := gap(job):
        yield NotChecked(reason=reason)


@rule("meeting")
def env_world_size_not_product(job: Job) -> Iterator[Outcome]:
    """WORLD_SIZE is larger than the number of processes that were started.

    All started processes wait for ranks that do not exist: ``Timed out after 601 seconds waiting
    for clients. 8/16 clients joined.`` WORLD_SIZE and the launcher's number of tasks should both be nodes times
    processes per node. A retry on other nodes waits in the same way.

    Found when other variables count the job's processes, exactly these joined, and WORLD_SIZE is larger: the launcher's
    own (SLURM_NTASKS, OMPI_COMM_WORLD_SIZE), PET_NNODES times PET_NPROC_PER_NODE, and Volcano's VC_*_NUM. Variables
    that count nodes or pods (PET_NNODES, NNODES, SM_HOSTS, the hosts in PBS_NODEFILE) hold if one process of each
    joined. Where one of them counts as many processes as WORLD_SIZE, or more than joined, ranks are missing
    (env-rank-missing).

    Fix: ``#SBATCH --ntasks-per-node=<GPUs>`` without ``--ntasks``, and WORLD_SIZE from the launcher. If each task
    starts a process per GPU, run distcheck with ``--nproc <GPUs>``.
    See: https://github.com/Lightning-AI/pytorch-lightning/issues/20391
    """
    counted = too_few_started(job)
    if counted is None:
        return
    world, first, number = job.world_size or 0, job.ranks[0], counted.number
    launcher, each, unit = starter(first), world // number, "process"
    text = "Start WORLD_SIZE processes, or set WORLD_SIZE to the number of processes."
    commands = [export(job, first, "WORLD_SIZE") if table_of(first) else f"export WORLD_SIZE={number}"]
    if counted.of == "nodes":
        unit = "pod" if "KUBERNETES_SERVICE_HOST" in first.environment else "node"
    counts = "count" if " and " in counted.names else "counts"
    how = f"{counted.names} {counts} {count(number, unit)}, and {count(number, 'process')} joined"
    if launcher:
        text += " If each process starts one process per GPU, pass --nproc."
        commands += [f"{launcher} distcheck {job.asked.command} --nproc {each}"] * (world % number == 0)
    elif counted.of == "nodes":
        where = "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py"
        torchrun = f"torchrun --nnodes={number} --node-rank=$RANK --nproc-per-node={each} {where}"
        commands += [torchrun] * (world % number == 0)
    text += " torchrun starts several on each." if counted.of == "nodes" else ""
    evidence = {"WORLD_SIZE": world, counted.names: number, "nodes": len(job.nodes)}
    yield found(job, job.ranks, f"WORLD_SIZE is {world}, but {how}", Fix(text, tuple(commands)), evidence=evidence)


@rule("environment", scope="rank", of=each_rank)
def env_world_size_zero_neg(job: Job, rank: RankFacts) -> Fault | None:
    """The world size is zero or negative.

    torch reports ``ValueError: TCPStore world size cannot be 0`` or, from Gloo, ``rank < size. 0 vs -1``. The usual
    cause is an unset factor of ``$((NNODES * GPUS_PER_NODE))``. Found by reading WORLD_SIZE.

    Fix: Set WORLD_SIZE to nodes times processes per node; one factor is probably unset.

        {export|export WORLD_SIZE=$((NNODES * GPUS_PER_NODE))}
    """
    size = rank.placement.world_size
    if size is None or size > 0:
        return None
    return Fault(
        f"WORLD_SIZE is {size}, expected 1 or more",
        evidence={"variable": "WORLD_SIZE", "value": size},
        values={"export": (export(job, rank, "WORLD_SIZE"),)},
    )


@rule("environment")
def env_world_size_1_everywhere(job: Job) -> Iterator[Outcome]:
    """Every process has WORLD_SIZE 1, so each trains separately.

    There is no error message: each process is rank 0 of 1, trains alone, and writes the same checkpoints. The
    launcher started several processes, but RANK=0 and WORLD_SIZE=1 come from defaults in code or from an earlier
    shell. Found by WORLD_SIZE=1 with a launcher whose variables give more than one task, or with other processes of
    the same job.

    Fix: Unset the exported values and map the launcher's, or start the script with torchrun.

        {unset|unset RANK WORLD_SIZE LOCAL_RANK}

    See: https://github.com/Lightning-AI/pytorch-lightning/issues/15011
    """
    alone = lonely(job)
    if not alone:
        return
    table, tasks = table_of(alone[0]), tasks_of(alone[0])
    others = f"{table.world_size} is {tasks}" if table and tasks else f"{len(alone)} processes take part"
    unset = ("unset RANK WORLD_SIZE LOCAL_RANK", mapping(table)) if table else (export(job, alone[0], "WORLD_SIZE"),)
    yield found(
        job,
        alone,
        f"{named(job, alone)}: WORLD_SIZE is 1, but {others}; each process would train separately",
        values={"unset": unset},
    )
