"""Rules about the ranks of a job: each exists once, in one world."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from distcheck.facts.quantities import count
from distcheck.facts.ranges import fold, numbered, span
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.claims import claims, explanation, told_apart
from distcheck.rules.job.numbering import assigned, by_formula, numbering, rank_commands
from distcheck.rules.job.remedies import export
from distcheck.rules.job.settings import mapping
from distcheck.rules.job.world import (
    duplicates,
    gap,
    lonely,
    out_of_range,
    strays,
    tasks_of,
    too_few_started,
    worlds,
)
from distcheck.rules.wording import (
    are,
    found,
    grouped,
    named,
    numbers_of,
    odd_ones,
    processes,
    spread,
    starter,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_SHOWN = 8
"""Most nodes in a finding's evidence."""

# Only three of the rules that need all ranks report unknown ranks as not checked: twenty rows with one reason
# would hide it, and none would be a pass.


@rule("environment", scope="rank")
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
    if numbering(job) == "from one":
        message += "; the ranks are counted from 1"
    yield found(
        job,
        beyond,
        message,
        _in_range(job, beyond, world),
        evidence={
            "WORLD_SIZE": world,
            "RANK": fold(r.placement.rank for r in beyond if r.placement.rank is not None),
        },
    )


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


def _in_range(job: Job, beyond: list[RankFacts], world: int) -> Fix:
    """Return the fix for ranks outside of the world, by what is known of the other processes."""
    first = beyond[0]
    if table_of(first):
        return Fix("Set RANK to the number of the process in the whole job, from 0.", (export(job, first, "RANK"),))
    if commands := rank_commands(job, list(job.ranks)):
        from_one = "Count the ranks from 0: the first process is rank 0 and serves the store."
        return Fix(from_one if numbering(job) == "from one" else "Give each process a rank of its own.", commands)
    if numbering(job) == "from one":
        return Fix("Subtract 1 from RANK where it is set: the first process is rank 0 and serves the store.")
    if len(beyond) == 1 and first.placement.rank == world:
        return Fix(
            "Ranks are counted from 0. Either this process is the last one, or WORLD_SIZE is too small.",
            (
                f"{assigned(first, 'RANK', str(world - 1))}  # if WORLD_SIZE {world} is right",
                f"{assigned(first, 'WORLD_SIZE', str(world + 1))}  # in every process, if there are {world + 1}",
            ),
        )
    return Fix(
        "Set RANK to the number of the process in the whole job, from 0, and WORLD_SIZE to the number of processes.",
        by_formula(job),
    )


@rule("meeting", scope="rank")
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
    if len(claimed) == 1:
        rank, several = next(iter(claimed.items()))
        often = "twice" if len(several) == 2 else f"{len(several)} times"
        message = f"rank {rank} is claimed {often}, by {processes(job, several)}"
    else:
        several = next(iter(claimed.values()))
        message = f"{numbered(claimed)} are claimed by several processes each, rank {several[0].placement.rank} by "
        message += processes(job, several)
    text, commands = told_apart(job, claimants)
    yield found(
        job,
        claimants,
        f"{message}; expected one process per rank",
        Fix(text, commands),
        evidence=claims(job, claimants),
    )


@rule("meeting", consequence=True, scope="node", owner="unknown")
def env_rank_missing(job: Job) -> Iterator[Outcome]:
    """Some ranks of the world did not join the roll call.

    The ranks that joined wait for them until torch's timeout: ``Timed out after 601 seconds waiting for clients. 7/8
    clients joined.`` on rank 0, ``wait timeout after 600000ms, keys: /default_pg/0//...`` or nothing on the others,
    and ``The client socket has timed out`` without rank 0. A node was not started, is still queued, died during
    start-up or cannot reach rank 0. Found by comparing the ranks in the roll call with the world size.

    The nodes of the missing ranks are named if they are known from Slurm's variables, the nodes that distcheck was
    given, the node ranks of torchrun's agents, or the names of the job's pods. If another fault explains the missing
    ranks, that fault is reported and this rule is listed under *not checked*.

    Fix: start the missing ranks, read their logs, and check that the nodes reach rank 0 (``distcheck net``).
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
    world, lost = job.world_size or 0, strays(job)
    message = f"{located(job, missing)} of {world} did not join the roll call"
    if lost:
        message += f"; {lost} of them may be the processes with an invalid rank"
    yield Fault(
        confirmed=False,
        ranks=missing,
        nodes=tuple(by_node),
        message=message,
        fix=Fix(
            "Check that the processes were started, read the end of their logs, and check that their nodes reach "
            "rank 0. If nodes start late, raise --join-timeout.",
            look_at(job, tuple(by_node)),
        ),
        evidence={"world_size": world, "came": len(job.ranks), "missing": fold(missing)}
        | {node: numbered(ranks) for node, ranks in islice(by_node.items(), _SHOWN)},
    )


@rule("meeting", scope="rank")
def env_world_size_mismatch(job: Job) -> Iterator[Outcome]:
    """The ranks do not agree on the world size.

    Each side waits for a different number of ranks, with a different message: ``Gloo connectFullMesh failed``, ``wait
    timeout after 600000ms, keys: /default_pg/0//cpu//0/2``, or NCCL's ``Bootstrap Root : mismatch in info
    from procs, nranks 8 vs 16``. The usual causes are a WORLD_SIZE that counts the GPUs of one node on some of the
    nodes, and a different ``--nnodes``. Found by comparing WORLD_SIZE of all ranks.

    Fix: set the same value everywhere: nodes times processes per node.
    """
    sizes = worlds(job)
    if len(sizes) < 2:
        if reason := gap(job):
            yield NotChecked(reason=reason)
        return
    odd = odd_ones(sizes)
    yield found(
        job,
        odd,
        f"{spread(job, 'WORLD_SIZE', sizes)}; expected one value",
        Fix(
            "Set the same world size for every process: nodes times processes per node.",
            (export(job, odd[0], "WORLD_SIZE"),),
        ),
        evidence={str(size): named(job, ranks) for size, ranks in sizes.items()},
    )


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
    processes = "1 process" if number == 1 else f"{number} processes"
    if counted.of == "tasks":
        how = f"{starter(first)} started {processes} on {count(len(job.nodes), 'node')}, and "
        how += "it joined" if number == 1 else "all of them joined"
    else:
        pods = "pod" if "KUBERNETES_SERVICE_HOST" in first.environment else "node"
        how = f"{counted.names} {'count' if ' and ' in counted.names else 'counts'} "
        how += f"{processes}, and {number} came" if counted.of == "processes" else ""
        how += f"{count(number, pods)}, and one process of each came" if counted.of == "nodes" else ""
    commands = [export(job, first, "WORLD_SIZE") if table_of(first) else f"export WORLD_SIZE={number}"]
    if world % number == 0 and starter(first):
        commands.append(f"{starter(first)} distcheck {job.asked.command} --nproc {world // number}")
    elif world % number == 0 and counted.of == "nodes":
        where = "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py"
        commands.append(f"torchrun --nnodes={number} --node-rank=$RANK --nproc-per-node={world // number} {where}")
    yield found(
        job,
        job.ranks,
        f"WORLD_SIZE is {world}, but {how}",
        Fix(
            "Start WORLD_SIZE processes, or set WORLD_SIZE to the number of processes."
            + (" If each process starts one process per GPU, pass --nproc." if starter(first) else "")
            + (" torchrun starts several on each." if counted.of == "nodes" else ""),
            tuple(commands),
        ),
        evidence={"WORLD_SIZE": world, counted.names: number, "nodes": len(job.nodes)},
    )


@rule("environment", scope="rank")
def env_world_size_zero_neg(job: Job) -> Iterator[Outcome]:
    """The world size is zero or negative.

    torch reports ``ValueError: TCPStore world size cannot be 0`` or, from Gloo, ``rank < size. 0 vs -1``. The usual
    cause is an unset factor of ``$((NNODES * GPUS_PER_NODE))``. Found by reading WORLD_SIZE.

    Fix: print the factors beside the product in the script, and set the one that is empty.
    """
    bad = [r for r in job.ranks if r.placement.world_size is not None and r.placement.world_size < 1]
    for size, ranks in grouped(bad, lambda r: r.placement.world_size).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: WORLD_SIZE is {size}, expected 1 or more",
            Fix(
                "Set WORLD_SIZE to nodes times processes per node; one factor is probably unset.",
                (export(job, ranks[0], "WORLD_SIZE"),),
            ),
            evidence={"variable": "WORLD_SIZE", "value": size},
        )


@rule("environment")
def env_world_size_1_everywhere(job: Job) -> Iterator[Outcome]:
    """Every process has WORLD_SIZE 1, so each trains separately.

    There is no error message: each process is rank 0 of 1, trains alone, and writes the same checkpoints. The
    launcher started several processes, but RANK=0 and WORLD_SIZE=1 come from defaults in code or from an earlier
    shell. Found by WORLD_SIZE=1 with a launcher whose variables give more than one task, or with other processes of
    the same job.

    Fix: map the launcher's variables, or start the script with torchrun.
    See: https://github.com/Lightning-AI/pytorch-lightning/issues/15011
    """
    alone = lonely(job)
    if not alone:
        return
    first = alone[0]
    table, tasks = table_of(first), tasks_of(first)
    others = f"{table.world_size} is {tasks}" if table and tasks else f"{len(alone)} processes take part"
    yield found(
        job,
        alone,
        f"{named(job, alone)}: WORLD_SIZE is 1, but {others}; each process would train separately",
        Fix(
            "Unset the exported values and map the launcher's, or start the script with torchrun.",
            ("unset RANK WORLD_SIZE LOCAL_RANK", mapping(table)) if table else (export(job, first, "WORLD_SIZE"),),
        ),
        evidence={"WORLD_SIZE": 1, table.world_size if table else "processes": tasks or len(alone)},
    )
