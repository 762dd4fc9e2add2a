"""Rules about what COMMAND starts: as many processes as were tested, with the variables that its script reads."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.storage import MAPS_LAUNCHER, READS_RANK, STARTS_OTHERS
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.command_words import SETS_VARIABLES, for_torchrun, mentioned, shown, words_of
from distcheck.rules.job.world import refused
from distcheck.rules.wording import found
from distcheck.selection.command import ON_NODES
from distcheck.selection.placement import integer

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule("storage", severity="warning", unless=("slurm-no-srun",))
def command_processes_differ(job: Job) -> Iterator[Outcome]:
    """COMMAND starts another number of processes than were tested.

    ``distcheck gate --nproc 2 -- python train.py`` tests two ranks and then starts Python once, as a shell or a step of
    one task (``srun --pty``) would. Without a launcher the script trains alone, or stops with ``environment variable
    RANK expected, but not set``. ``distcheck gate --nproc 2 -- torchrun --nproc-per-node 8`` leaves six ranks untested.

    Found with ``--nproc`` or ``--hosts``, where COMMAND is torchrun with a number of processes, or where it is Python
    and its script mentions nothing that starts further processes, such as ``mp.spawn``, subprocess, Lightning or Ray.
    Where COMMAND is another program, or the script could not be read, the number of its processes is not known.

    Fix: ``distcheck gate -- torchrun --standalone --nproc-per-node 2 train.py``, or start distcheck on each rank:
    ``srun distcheck gate --export -- python train.py``. No action if the modules of the script start the others.
    """
    asked, tested, each = job.asked, len(job.ranks), integer(job.asked.processes) or 0
    starts = 1 if job.launched else len(job.processes)
    if not each or not asked.started_here or asked.by_default or asked.program in ON_NODES or each * starts == tested:
        return
    if refused(job):
        return
    if each == 1 and asked.program not in SETS_VARIABLES:
        launches = any(process.launch for process in job.processes)  # an engine that Python runs
        if launches or each * starts > tested or mentioned(job, STARTS_OTHERS) is not False:
            return
        what = f"is one process, started {'once' if starts == 1 else f'{starts} times'}"
        text = "Start COMMAND with a launcher that starts every rank. No action if it starts the other ranks itself."
        command = f"distcheck gate -- torchrun --standalone --nproc-per-node {tested} {for_torchrun(job)}"
    elif not job.launched:
        what, words = f"starts {count(each * starts, 'process')}", words_of(job)
        text = "Test as many ranks as COMMAND starts."
        command = f"distcheck gate --nproc {each} -- {shlex.join(words)}" if words else ""
    else:
        return  # it starts those of one machine
    fix = Fix(text, (command,) if command and len(job.processes) == 1 else ())
    message = f"COMMAND ({shown(job)}) {what}; distcheck tested {tested} ranks"
    yield found(job, job.ranks, message, fix, evidence={"COMMAND": shown(job)})


@rule("storage", severity="warning")
def command_without_ranks(job: Job) -> Iterator[Outcome]:
    """COMMAND is srun or mpirun, and its script reads RANK, which they do not set.

    ``distcheck gate -- srun python train.py`` tests the ranks of the job, but srun numbers its tasks in SLURM_PROCID
    and mpirun in variables of its own. ``os.environ["RANK"]`` stops with ``KeyError``, and a script with a default,
    ``os.environ.get("RANK", 0)``, runs as several jobs of one rank.

    Found in a run from outside by the text of the script: it mentions RANK or WORLD_SIZE, and none of the launchers'
    variables, Lightning, submitit, DeepSpeed, Horovod or mpi4py. Under srun and mpirun, env-rank-unset and
    env-mpi-horovod-vars-only report it.

    Fix: Let distcheck set them in each task: ``srun distcheck gate --export -- python train.py``. No action if a module
    that the script imports does.

        # put {launcher|srun} and its options in front of distcheck, and --export before COMMAND
    """
    asked, ranks = job.asked, job.ranks
    bare = job.launched and asked.program in ON_NODES and asked.processes == "1" and len(ranks) > 1
    if bare and mentioned(job, READS_RANK) and mentioned(job, MAPS_LAUNCHER) is False:
        message = f"{asked.program} sets no RANK and WORLD_SIZE, but COMMAND's script {asked.script} reads them; if it "
        message += f"has defaults, {len(ranks)} jobs of one rank run"
        yield found(job, ranks, message, values={"launcher": [asked.program]})
