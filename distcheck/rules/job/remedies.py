"""Commands that set a variable correctly: by launcher, with the job's own values."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.rules.job.numbering import assigned, by_formula, right_rank
from distcheck.rules.job.settings import PORT, agreed_port, free_port, usual_port
from distcheck.rules.wording import STARTERS, table_of
from distcheck.selection import nodelist

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.placement import Launcher
    from distcheck.facts.rank import RankFacts

# How each launcher forwards a variable to all ranks; launchers that forward the whole environment are not listed.
HAND_OVER: Mapping[Launcher, str] = {
    "openmpi": "-x {}={}",
    "hydra": "-genv {} {}",
    "mvapich": "{}={}",
    "pals": "--env {}={}",
    "jsrun": "-E {}={}",
}
FIND_HOST = "hostname -f  # on the node of rank 0; set MASTER_ADDR to what it prints, on all nodes"
_SLURM_FIRST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
SLURM_MASTER_ADDR = f"export MASTER_ADDR={_SLURM_FIRST}"
SLURM_MASTER_PORT = "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"


def handed_over(launcher: Launcher, **values: str) -> str:
    """Return what to add to the launcher's command line, so that all ranks get these variables."""
    options = (HAND_OVER[launcher].format(name, value) for name, value in values.items() if value)
    return f"# add to {STARTERS[launcher]}: {' '.join(options)}"


def first_host(job: Job) -> str:
    """Return rank 0's node, 127.0.0.1 for a job on one node, '' if unknown."""
    zero = next((r for r in job.ranks if r.placement.rank == 0), None)
    if len(job.nodes) == 1 and job.world_size in {None, len(job.ranks)}:
        return "127.0.0.1"
    if zero:
        return job.node_of(zero).name
    from distcheck.rules.job.homes import homes  # imported only when needed

    return homes(job).get(0, "")


def at_first_host(job: Job, rank: RankFacts) -> dict[str, str]:
    """Return the option that gives an agent rank 0's host; none if it is unknown."""
    from distcheck.rules.job.agents import ElasticAgent  # not needed in a bare shell

    if host := first_host(job) or ElasticAgent(job, rank).endpoint[0]:
        return {"master-addr": quote(host)}
    return {"master-addr": _SLURM_FIRST} if "SLURM_JOB_ID" in rank.environment else {}


def other_port(job: Job, rank: RankFacts) -> tuple[str, ...]:
    """Return the commands that set another MASTER_PORT."""
    now = rank.placement.master_port
    port = free_port(job, *([now] if now is not None else []))
    table = table_of(rank)
    if port is None:
        slurm = "SLURM_JOB_ID" in rank.environment and (table is None or table.launcher == "slurm")
        return (SLURM_MASTER_PORT,) if slurm else ()
    if table and table.launcher == "torchrun":
        from distcheck.rules.job.agents import ElasticAgent  # not needed in a bare shell

        return (ElasticAgent(job, rank).restarted({"master-port": str(port)}),)
    if table and table.launcher in HAND_OVER and not job.asked.started_here:
        host = rank.placement.master_addr or first_host(job)
        return (handed_over(table.launcher, MASTER_ADDR=host and quote(host), MASTER_PORT=str(port)),)
    if rank.placement.launcher == "distcheck" and job.launched is None:
        return (f"distcheck {job.asked.command} --master-port {port}",)
    return (f"export MASTER_PORT={port}",)


def _leads_the_list(job: Job, rank: RankFacts) -> bool:
    """Whether the first node of the allocation runs rank 0; True if unknown."""
    zero = next((r for r in job.ranks if r.placement.rank == 0), None)
    listed = nodelist.first_host(rank.environment.get("SLURM_JOB_NODELIST", ""))
    if zero is None or not listed:
        return True
    node = job.node_of(zero)
    return listed in {node.name, node.hostname}


def master_commands(job: Job, rank: RankFacts, *variables: str) -> tuple[str, ...]:
    """Return the commands that set the same master on all ranks."""
    names = variables or ("MASTER_ADDR", "MASTER_PORT")
    launcher = table_of(rank)
    if launcher and launcher.launcher in HAND_OVER:
        host, port = first_host(job), str(usual_port(job))
        command = handed_over(launcher.launcher, MASTER_ADDR=host and quote(host), MASTER_PORT=port)
        return (command,) if host or "MASTER_ADDR" not in names else (FIND_HOST, command)
    return tuple(export(job, rank, name) for name in names)


def export(job: Job, rank: RankFacts, variable: str) -> str:
    """Return the command that sets a variable, from the launcher's own or by formula."""
    table = table_of(rank)
    slurm = "SLURM_JOB_ID" in rank.environment and (table is None or table.launcher == "slurm")
    if table and table.launcher != "torchrun":
        field = "node_rank" if variable == "GROUP_RANK" else variable.lower()
        if source := "" if variable.startswith("MASTER_") else getattr(table, field):
            return f"export {variable}=${source}"
    if slurm and variable == "MASTER_ADDR" and _leads_the_list(job, rank):
        return SLURM_MASTER_ADDR
    if slurm and variable == "MASTER_PORT" and agreed_port(job) is None:
        return SLURM_MASTER_PORT
    if variable == "MASTER_ADDR" and not first_host(job):
        return FIND_HOST
    if variable == "RANK" and right_rank(job, rank) is None:
        return by_formula(job)
    return assigned(rank, variable, _value(job, rank, variable))


def _value(job: Job, rank: RankFacts, variable: str) -> str:
    """Return what a variable should have by the other ranks, or a formula that fails where a part of it is not set."""
    whole = len(job.ranks) == job.world_size
    here = len(job.ranks_on(job.node_of(rank))) if whole else rank.placement.local_world_size
    size = str(here or "${LOCAL_WORLD_SIZE:?}")
    match variable:
        case "MASTER_ADDR":
            return quote(first_host(job))
        case "MASTER_PORT":
            return str(usual_port(job))
        case "RANK":
            return str(right_rank(job, rank))
        case "WORLD_SIZE":
            return str(max(job.world_size or 0, len(job.ranks)))
        case "LOCAL_RANK":
            return "0" if size == "1" else f"$((${{RANK:?}} % {size}))"
        case "GROUP_RANK":
            return "0" if len(job.nodes) == 1 and size == str(job.world_size) else "${NODE_RANK:?}"
        case _:
            return size


def export_missing(job: Job, rank: RankFacts, names: Collection[str]) -> str:
    """Return the command that sets these variables for rank 0, and LOCAL_RANK if it is unset; what is set stays."""
    values = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    values["MASTER_PORT"] = free_port(job) or PORT
    lacking = {*names, *({"LOCAL_RANK"} - rank.environment.keys())}
    return "export " + " ".join(f"{name}={value}" for name, value in values.items() if name in lacking)
