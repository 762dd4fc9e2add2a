"""Rules about single variables: set, not empty, a number, and equal to the launcher's own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules import Outcome, Subject, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.kinds import each_rank, ranks_by
from distcheck.rules.job.remedies import export, export_missing
from distcheck.rules.job.settings import (
    MPI_LAUNCHERS,
    expected,
    mapping,
    number,
    started_by_distcheck,
    unset,
)
from distcheck.rules.job.world import duplicates, in_blocks, out_of_range
from distcheck.rules.wording import are, brief, by_name, found, listed, named, process_name, table_of
from distcheck.selection.placement import Table, integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distcheck.facts.base import Missing
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "GROUP_RANK")
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankVariable(NamedTuple):
    """A variable of a rank that distcheck did not set itself."""

    name: str
    value: str
    rank: RankFacts


def each_variable(*names: str) -> Subject:
    """Return what rules about these variables have as ``of``, for the ranks on which they are set."""

    def each(job: Job, judge: Callable[[RankVariable], Fault | Missing | None]) -> Iterator[Outcome]:
        def of(rank: RankFacts, name: str) -> Fault | Missing | None:
            value = None if started_by_distcheck(job, rank) else rank.environment.get(name)
            return None if value is None else judge(RankVariable(name, value, rank))

        for name in names:
            yield from each_rank(job, partial(of, name=name))

    return each


def _lacking(job: Job, rank: RankFacts) -> tuple[str, ...]:
    """Return the variables that a rank lacks; ``distcheck node`` needs none, and distcheck sets those of its ranks."""
    return () if job.asked.command == "node" or started_by_distcheck(job, rank) else unset(rank)


def _only_of_launcher(job: Job, rank: RankFacts) -> Fault | None:
    names = _lacking(job, rank)
    if not names:
        return None
    from distcheck.rules.environment.launcher_variables import only_launcher_variables  # not in a bare shell

    return only_launcher_variables(job, rank, names)


@rule("environment", scope="rank", of=each_rank)
def env_rank_unset(job: Job, rank: RankFacts) -> Fault | None:
    """A variable that torch needs to find the other ranks is not set.

    ``init_process_group()`` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT and stops at the first one that is not
    set: ``ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected,
    but not set``.

    Under srun it is a warning: many scripts (Lightning, Accelerate, submitit) map Slurm's own variables, and distcheck
    derives MASTER_ADDR from the first host of the step and MASTER_PORT from the job id. Scripts with defaults, such as
    ``os.environ.get("RANK", 0)``, run as several jobs of one rank. It is an info where COMMAND's script mentions the
    launcher's variables, Lightning or submitit, and silent with ``--export -- COMMAND``, and where COMMAND is torchrun,
    which sets them for its ranks. Under MPI and Horovod, env-mpi-horovod-vars-only reports the same problem. Found by
    checking the four variables; values given as options count as set.

    Fix: start the script with torchrun, which sets all four, or export them: ``distcheck gate --export -- COMMAND``.
    See: https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    if rank.placement.launcher == "slurm":
        return _only_of_launcher(job, rank)
    names = () if rank.placement.launcher in MPI_LAUNCHERS else _lacking(job, rank)
    if not names:
        return None
    commands = ["torchrun --standalone --nproc-per-node=2 train.py", export_missing(job, rank, names)]
    text = "Start the script with torchrun, which sets them, or export them in every process, each with its own "
    text += "RANK and LOCAL_RANK, counted from 0."
    if "RANK" not in names:
        commands = [export(job, rank, name) for name in names]
        text = f"Export {listed(names)} in every process as well, or start the script with torchrun."
    elif batch := rank.environment.get("SLURM_JOB_ID"):
        commands.insert(0, "srun distcheck env")
        text += f" This shell belongs to Slurm job {batch} but is not one of its tasks: only srun starts tasks."
    return Fault(f"{listed(names)} {are(names)} not set", Fix(text, tuple(commands)), {"unset": list(names)})


@rule("environment", scope="rank", of=each_rank)
def env_mpi_horovod_vars_only(job: Job, rank: RankFacts) -> Fault | None:
    """MPI or Horovod started the ranks, and only its own variables are set.

    mpirun, mpiexec, jsrun and horovodrun number their processes in variables such as OMPI_COMM_WORLD_RANK,
    PMI_RANK or HOROVOD_RANK. torch does not read them and stops with ``environment variable RANK expected, but not
    set``, or a script that has defaults runs as several jobs of one rank. It may map them, so this is a warning.

    distcheck takes as the host of rank 0 the one on which Open MPI's mpirun, Hydra's mpiexec or horovodrun runs, or
    the first host of a Slurm allocation. If neither is known, or rank 0 is on another host, the ranks cannot meet, and
    missing MASTER_ADDR and MASTER_PORT are an error. Silent with ``--export -- COMMAND``. Found by a launcher's
    variables without torch's.

    Fix: map the variables before the script and pass MASTER_ADDR and MASTER_PORT to all ranks
    (``mpirun -x MASTER_ADDR=... -x MASTER_PORT=...``), or use ``distcheck gate --export -- COMMAND``.
    See: https://github.com/pytorch/examples/issues/540
    """
    return _only_of_launcher(job, rank) if rank.placement.launcher in MPI_LAUNCHERS else None


@rule("environment", scope="rank", of=each_variable(*NEEDED))
def env_empty_string(job: Job, variable: RankVariable) -> Fault | None:
    """A variable that defines the rank or the master is set to an empty string.

    torch treats an empty value like a missing one and reports that the variable is ``expected, but not set``, although
    ``env`` shows the name; scripts fail with ``invalid literal for int() with base 10: ''``. The usual cause is an
    ``export`` of a value that is not set itself. Found by distinguishing empty from unset.

    Fix: Set it, or find the empty expansion in the line that exports it; with ``${NAME:?}`` in place of ``$NAME`` the
    shell stops there.

        {export|export NAME=VALUE}
    """
    name, where = variable.name, variable.rank.placement
    if variable.value:
        return None
    # An option replaces the variable, so only scripts that read it are affected.
    instead = (
        (name in {"RANK", "WORLD_SIZE"} and where.by_options)
        or (name == "MASTER_ADDR" and where.master_addr and not where.master_derived)
        or (name == "MASTER_PORT" and where.master_port is not None and not where.master_derived)
    )
    return Fault(
        f"{name} is set but empty; expected {expected(name)}",
        evidence={"variable": name, "value": ""},
        severity="warning" if instead else "error",
        values={"export": (export(job, variable.rank, name),)},
    )


@rule("environment", scope="rank", of=each_variable(*NUMBERS))
def env_not_integer(job: Job, variable: RankVariable) -> Fault | None:
    """A variable that must be an integer is not an integer, or too large.

    torch and scripts pass it to Python's ``int()``, whose ``ValueError`` names the value and not the variable.

    Typical causes are a variable in single quotes, which the shell does not expand, a float from a calculation, and
    Slurm's ``4(x2)``, which means four tasks on each of two nodes. Blanks around a number are harmless. Found by
    parsing RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT and GROUP_RANK as ``int()`` does.

    Fix: Export an integer. A variable that was not expanded must be in double quotes.

        {export|export NAME=VALUE}
    """
    name, value, rank = variable
    if not value or integer(value) is not None:
        return None
    return Fault(
        f"{name} is {brief(repr(value))}, expected {expected(name, value)}",
        evidence={"variable": name, "value": value},
        values={"export": (export(job, rank, name),)},
    )


@rule("environment", severity="warning", scope="rank")
def env_scheduler_disagrees(job: Job) -> Iterator[Outcome]:
    """RANK differs from the rank that the scheduler assigned to the process.

    A stale ``export RANK=...`` in a shell profile or a batch script overrides the launcher, so ranks run on
    unexpected nodes or twice. Found by comparing RANK with SLURM_PROCID (or MPI's rank) of the same world. Silent
    under torchrun, which numbers its workers itself; where ranks were renumbered so that every node holds a
    block of them; and where ranks are duplicated or out of range, which other rules report.

    Fix: Unset the exported values before the launcher starts, and map the launcher's own in each process.

        unset RANK WORLD_SIZE LOCAL_RANK
        {mapping|export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID}
    """

    def of_scheduler(rank: RankFacts) -> Table | None:
        table = table_of(rank)
        return None if table is None or table.launcher == "torchrun" or started_by_distcheck(job, rank) else table

    def differs(table: Table, rank: RankFacts) -> bool:
        if rank.environment.get("RANK") == rank.environment.get(table.rank):
            return False
        own, theirs = number(rank, "RANK"), integer(rank.environment.get(table.rank))
        # Different world sizes mean different ranks, for example where each task starts several processes.
        alike = number(rank, "WORLD_SIZE") in {None, integer(rank.environment.get(table.world_size))}
        return alike and own is not None and theirs is not None and own != theirs

    reported = {id(r) for several in duplicates(job).values() for r in several} | {id(r) for r in out_of_range(job)}
    tables = ranks_by(job, of_scheduler).items()
    pairs = [(table, r) for table, ranks in tables for r in ranks if differs(table, r) and id(r) not in reported]
    if not pairs or (len(job.nodes) > 1 and in_blocks(job)):
        return
    ranks, (table, first) = [r for _, r in pairs], pairs[0]
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: RANK is not {table.rank}, for example RANK={first.environment['RANK']} where "
        f"{table.rank}={number(first, table.rank)}",
        evidence=by_name(
            (f"RANK={r.environment['RANK']}", f"{t.rank}={number(r, t.rank)} on {process_name(job, r)}")
            for t, r in pairs
        ),
        values={"mapping": [mapping(table)]},
    )
