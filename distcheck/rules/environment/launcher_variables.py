"""The finding about ranks that have only their launcher's own variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.storage import MAPS_LAUNCHER
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.command_words import SETS_VARIABLES, mentioned, shown
from distcheck.rules.job.remedies import master_commands
from distcheck.rules.job.settings import mapping
from distcheck.rules.job.wrong_master import wrong_master
from distcheck.rules.wording import are, listed, starter, table_of

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts


def only_launcher_variables(job: Job, rank: RankFacts, names: tuple[str, ...]) -> Fault | None:
    """Report what env:// lacks under a launcher; an error only if no master was derived.

    Silent where COMMAND gets the variables from distcheck or sets them for its own ranks.
    """
    table, lost, where = table_of(rank), wrong_master(job), rank.placement
    met = where.can_meet and not (lost and lost.placement.master_derived)
    known = job.process_of(rank).launch is not None or job.asked.program in SETS_VARIABLES
    if table is None or (met and (job.asked.export or known)):
        return None
    masters = [name for name in names if name.startswith("MASTER_")]
    numbers = [name for name in names if not name.startswith("MASTER_")]
    program, at = starter(rank), f"{where.master_addr}:{where.master_port}"
    how = f"distcheck derived {at}" if where.master_derived else f"distcheck used {program}'s own, such as {table.rank}"
    own = "No action if the script sets them itself, as Lightning, Accelerate and submitit do. Otherwise"
    text = f"{own} export them before the script, or use distcheck gate --export -- COMMAND."
    if not met:
        derived = f"{how}, and rank 0 is on {job.node_of(lost).name}" if lost else ""
        how = derived or f"{program} does not provide the host of rank 0"
        text = f"Set the host of rank 0 and a free port on every rank; {program} does not set them."
    message = f"{listed(names)} {are(names)} not set; torch needs them for env://; {how}"
    line = mapping(table)
    commands = [line, f"{program} bash -c '{line} && exec python train.py'"] if numbers else []
    commands += master_commands(job, rank, *masters) if masters else ()
    maps = bool(job.asked.program and mentioned(job, MAPS_LAUNCHER))
    if job.asked.program and met:
        message = f"{program} starts COMMAND ({shown(job)}) without {listed(names)}"
        alone = len(numbers) > 1 and len(job.ranks) > 1
        message += f"; if the script has defaults for them, {len(job.ranks)} jobs of one rank run" if alone else ""
        commands = ["# add to distcheck gate, before COMMAND: --export"]
        text = f"{own} let distcheck set them for COMMAND."
    return Fault(
        message,
        Fix(text, tuple(commands)),
        {"unset": list(names), "launcher": table.launcher}
        | ({"distcheck met at": at} if where.master_derived and met else {}),
        "error" if not met else "info" if maps else "warning",
    )
