"""Commands of distcheck in fixes: they start the ranks on the nodes as the run did that gives them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from shlex import quote

import msgspec

from distcheck.facts.job import Job
from distcheck.facts.rank import Role
from distcheck.rules.finding import Fix
from distcheck.rules.wording import once
from distcheck.selection.nodelist import expand, folded

_LONGEST = 1000
"""Characters of a value; a longer one is left out, as one of several lines is."""
_STARTS_RANKS = re.compile(r"(?:\w+=\S+ )*distcheck (?:bandwidth|env|gate|gpu|isolate|net)\b")


def on_same_ranks(job: Job, fix: Fix) -> Fix:
    """Return a fix whose commands of distcheck start this run's ranks on its nodes, unless they name others."""
    return msgspec.structs.replace(fix, commands=tuple(_completed(job, command) for command in fix.commands))


def _completed(job: Job, command: str) -> str:
    start = _STARTS_RANKS.match(command)
    if start is None:
        return command
    rest = command[start.end() :]
    given = {word for word in rest.split() if word.startswith("--")}
    if "--hostfile" in given:
        given |= {"--hosts", "--nproc"}
    mesh = job.asked.mesh
    # The sizes alone would be read in torch's order.
    order = f" --mesh-order {quote(mesh.order)}" if mesh and mesh.order and "--mesh" in given else ""
    options = _options(job) | {"--mesh-order": order}
    return start[0] + "".join(option for name, option in options.items() if name not in given) + rest


@once
def _options(job: Job) -> dict[str, str]:
    """Return the options for the nodes and ranks, the probes that start there, and the backend, each with its value."""
    hosts, nproc = _nodes_and_ranks(job)
    backend = "" if job.asked.backend == "auto" else f" --backend {quote(job.asked.backend_name or job.asked.backend)}"
    return {"--hosts": hosts, "--nproc": nproc, **_by_hand(job), **_starting(job), "--backend": backend}


def _by_hand(job: Job) -> dict[str, str]:
    """Return the options that placed the process which reports, where no variable does."""
    if not job.ranks or job.asked.started_here:
        return {}
    leading = (r for r in job.ranks if job.process_of(r).role is Role.LEADER)
    first = next(leading, job.ranks[0])
    where, numbered = first.placement, first.placement.by_options
    given = {
        "RANK": where.rank if numbered else None,
        "WORLD_SIZE": where.world_size if numbered else None,
        "LOCAL_RANK": where.local_rank if numbered else None,
        "MASTER_ADDR": None if where.master_derived else where.master_addr,
        "MASTER_PORT": None if where.master_derived else where.master_port,
    }
    options = {
        f"--{name.lower().replace('_', '-')}": value for name, value in given.items() if name not in first.environment
    }
    return {option: f" {option} {quote(str(value))}" for option, value in options.items() if value is not None}


def _starting(job: Job) -> dict[str, str]:
    """Return the options without which no probe, or one with another Python, would start on the nodes of this run."""
    launched, asked = job.launched, job.asked
    if launched is None:
        return {}
    given = {"--launcher-args": "" if launched.engine == "ssh" else asked.launcher_args}
    given |= {"--env": asked.env, "--setup": asked.setup, "--python": asked.python}
    shown = {name: value for name, value in given.items() if value.isprintable() and 0 < len(value) <= _LONGEST}
    return {name: f" {name} {quote(value)}" for name, value in shown.items()}


def _nodes_and_ranks(job: Job) -> tuple[str, str]:
    """Return the options that choose nodes and ranks; each is '' where another launcher, or a default, chose them."""
    launched = job.launched
    if launched is None:
        own = job.asked.started_here and not job.asked.by_default
        return "", _nproc(set(Counter(rank.process for rank in job.ranks).values()) if own else set())
    if launched.engine == "slurm" and len(job.processes) > len(job.nodes):
        return "", ""  # srun starts a task for each rank
    names = [node.name for node in launched.nodes]
    numbers = set(_ranks_by_node(job).values())
    allocated = job.ranks[0].environment.get("SLURM_JOB_NODELIST", "") if job.ranks else ""
    whole = launched.engine == "slurm" and len(numbers) == 1 and len(expand(allocated)) <= len(names)
    return "" if whole else on_hosts(job, names), _nproc(numbers)


def _nproc(numbers: set[int]) -> str:
    number = numbers.pop() if len(numbers) == 1 else 0
    return f" --nproc {number}" if number else ""


@once
def _ranks_by_node(job: Job) -> dict[str, int]:
    return {node.name: len(node.ranks) for node in job.launched.nodes} if job.launched else {}


def on_hosts(job: Job, names: Sequence[str]) -> str:
    """Return the options that start ranks on these nodes with the launcher of this run.

    Where the run's nodes have unequal numbers of ranks, only a hostfile can give each node its own.
    """
    engine = job.launched.engine if job.launched else "ssh"
    launcher = "" if engine == "ssh" else f" --launcher {engine}"
    ranks = _ranks_by_node(job)
    if len(set(ranks.values())) > 1 and all(ranks.get(name) for name in names):
        alike = [(number, list(several)) for number, several in groupby(names, key=lambda name: ranks[name])]
        lines = " ".join(quote(f"{folded(several)} slots={number}") for number, several in alike)
        if len(lines) <= _LONGEST:
            return f"{launcher} --hostfile <(printf '%s\\n' {lines})"
    return f"{launcher} --hosts {quote(folded(names))}"
