"""Rules about single variables: set, not empty, a number, and equal to the launcher's own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.kinds import ranks_by, ranks_with
from distcheck.rules.job.remedies import export, export_missing, meant
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
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "GROUP_RANK")
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _unset_everywhere(job: Job) -> dict[tuple[str, tuple[str, ...]], list[RankFacts]]:
    """Group the ranks that lack variables by launcher and by missing variables.

    ``distcheck node`` needs no rank, and distcheck sets the variables of the ranks that it starts.
    """
    if job.asked.command == "node":
        return {}

    def lacking(rank: RankFacts) -> tuple[str, tuple[str, ...]] | None:
        names = () if started_by_distcheck(job, rank) else unset(rank)
        return (rank.placement.launcher, names) if names else None

    return ranks_by(job, lacking)


@rule("environment", scope="rank")
def env_rank_unset(job: Job) -> Iterator[Outcome]:
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
    for (launcher, names), ranks in _unset_everywhere(job).items():
        first = ranks[0]
        if launcher in MPI_LAUNCHERS:
            continue
        if launcher == "slurm":
            from distcheck.rules.environment.launcher_variables import only_launcher_variables  # not in a bare shell

            yield from only_launcher_variables(job, ranks, names)
            continue
        commands: tuple[str, ...] = (
            "torchrun --standalone --nproc-per-node=2 train.py",
            export_missing(job, first, names),
        )
        text = (
            "Start the script with torchrun, which sets them, or export them in every process, each with its own RANK "
            "and LOCAL_RANK, counted from 0."
        )
        if "RANK" not in names:
            commands = tuple(export(job, first, name) for name in names)
            text = f"Export {listed(names)} in every process as well, or start the script with torchrun."
        batch = first.environment.get("SLURM_JOB_ID")
        if batch and "RANK" in names:
            commands = ("srun distcheck env", *commands)
            text += f" This shell belongs to Slurm job {batch} but is not one of its tasks: only srun starts tasks."
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {listed(names)} {are(names)} not set",
            Fix(text, commands),
            evidence={"unset": list(names)},
        )


@rule("environment", scope="rank")
def env_mpi_horovod_vars_only(job: Job) -> Iterator[Outcome]:
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
    for (launcher, names), ranks in _unset_everywhere(job).items():
        if launcher in MPI_LAUNCHERS:
            from distcheck.rules.environment.launcher_variables import only_launcher_variables  # not in a bare shell

            yield from only_launcher_variables(job, ranks, names)


@rule("environment", scope="rank")
def env_empty_string(job: Job) -> Iterator[Outcome]:
    """A variable that defines the rank or the master is set to an empty string.

    torch treats an empty value like a missing one and reports that the variable is ``expected, but not set``, although
    ``env`` shows the name; scripts fail with ``invalid literal for int() with base 10: ''``. The usual cause is an
    ``export`` of a value that is not set itself. Found by distinguishing empty from unset.

    Fix: set the variable; ``${NAME:?}`` in a script stops at an empty expansion.
    """
    for name in NEEDED:
        ranks = ranks_with(job, partial(_is_empty, job, name))
        if not ranks:
            continue
        # An option replaces the variable, so only scripts that read it are affected.
        instead = all(
            (name in {"RANK", "WORLD_SIZE"} and r.placement.by_options)
            or (name == "MASTER_ADDR" and r.placement.master_addr and not r.placement.master_derived)
            or (name == "MASTER_PORT" and r.placement.master_port is not None and not r.placement.master_derived)
            for r in ranks
        )
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} is set but empty; expected {expected(name)}",
            Fix(
                f"Set {name}, or find the empty expansion in the line that exports it; "
                "with ${NAME:?} in place of $NAME the shell stops there.",
                (export(job, ranks[0], name),),
            ),
            severity="warning" if instead else "error",
            evidence={"variable": name, "value": ""},
        )


def _is_empty(job: Job, name: str, rank: RankFacts) -> bool:
    return rank.environment.get(name) == "" and not started_by_distcheck(job, rank)


@rule("environment", scope="rank")
def env_not_integer(job: Job) -> Iterator[Outcome]:
    """A variable that must be an integer is not an integer, or too large.

    torch and scripts pass it to Python's ``int()``, whose ``ValueError`` names the value and not the variable.

    Typical causes are a variable in single quotes, which the shell does not expand, a float from a calculation, and
    Slurm's ``4(x2)``, which means four tasks on each of two nodes. Blanks around a number are harmless. Found by
    parsing RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT and GROUP_RANK as ``int()`` does.

    Fix: export the integer.
    """
    wrong = ((name, *item) for name in NUMBERS for item in ranks_by(job, partial(_no_number, job, name)).items())
    for name, value, ranks in wrong:
        text, command = meant(job, ranks[0], name, value)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {name} is {brief(repr(value))}, expected {expected(name, value)}",
            Fix(text, (command,)),
            evidence={"variable": name, "value": value},
        )


def _no_number(job: Job, name: str, rank: RankFacts) -> str | None:
    value = "" if started_by_distcheck(job, rank) else rank.environment.get(name)
    return value if value and integer(value) is None else None


@rule("environment", severity="warning", scope="rank")
def env_scheduler_disagrees(job: Job) -> Iterator[Outcome]:
    """RANK differs from the rank that the scheduler assigned to the process.

    A stale ``export RANK=...`` in a shell profile or a batch script overrides the launcher, so ranks run on
    unexpected nodes or twice. Found by comparing RANK with SLURM_PROCID (or MPI's rank) of the same world. Silent
    under torchrun, which numbers its workers itself; where ranks were renumbered so that every node holds a
    block of them; and where ranks are duplicated or out of range, which other rules report.

    Fix: ``unset RANK WORLD_SIZE LOCAL_RANK`` before the launcher, and map its variables in each process.
    """

    def of_scheduler(rank: RankFacts) -> Table | None:
        table = table_of(rank)
        return None if table is None or table.launcher == "torchrun" or started_by_distcheck(job, rank) else table

    unlike = [
        (table, r)
        for table, ranks in ranks_by(job, of_scheduler).items()
        for r in ranks
        if (own := r.environment.get("RANK")) is not None and own != r.environment.get(table.rank)
    ]
    if not unlike:
        return
    spoken_for = {id(r) for several in duplicates(job).values() for r in several} | {id(r) for r in out_of_range(job)}
    pairs = []
    for table, r in unlike:
        if id(r) in spoken_for:
            continue
        rank, theirs = number(r, "RANK"), integer(r.environment.get(table.rank))
        size, world = integer(r.environment.get(table.world_size)), number(r, "WORLD_SIZE")
        # Different world sizes mean different ranks, for example where each task starts several processes.
        if rank is not None and theirs is not None and rank != theirs and world in {None, size}:
            pairs.append((r, table, theirs))
    if not pairs or (len(job.nodes) > 1 and in_blocks(job)):
        return
    ranks = [r for r, _, _ in pairs]
    first, table, theirs = pairs[0]
    yield found(
        job,
        ranks,
        f"{named(job, ranks)}: RANK is not {table.rank}, for example RANK={first.environment['RANK']} "
        f"where {table.rank}={theirs}",
        Fix(
            "Unset the exported values before the launcher starts, and map the launcher's own in each process.",
            ("unset RANK WORLD_SIZE LOCAL_RANK", mapping(table)),
        ),
        evidence=by_name(
            (f"RANK={r.environment['RANK']}", f"{t.rank}={n} on {process_name(job, r)}") for r, t, n in pairs
        ),
    )
