"""The options of torchrun's agents: command lines, PET_* and scheduler variables."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.rules.job.addresses import is_here
from distcheck.rules.job.settings import number, started_by_distcheck
from distcheck.rules.job.world import is_complete
from distcheck.rules.wording import brief
from distcheck.selection.command import options_in, split
from distcheck.selection.nodelist import expand
from distcheck.selection.placement import integer

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_ENDPOINT_PORT = 29400
"""torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"""
_CUT_WORDS = 40
"""A command line with this many arguments may be cut (`facts.Agent`)."""

# accelerate's option names and torchrun's (accelerate/utils/launch.py).
_ACCELERATE = {
    "machine-rank": "node-rank",
    "num-machines": "nnodes",
    "main-process-ip": "master-addr",
    "main-process-port": "master-port",
}


def by_agent(job: Job) -> list[RankFacts]:
    """Return the ranks that a torchelastic agent started."""
    return [r for r in job.ranks if r.placement.launcher == "torchrun" and not started_by_distcheck(job, r)]


def program(job: Job, rank: RankFacts) -> str:
    """Return the agent's program as the user types it, torchrun if unknown."""
    agent = job.process_of(rank).agent
    names = {"launch": "python -m torch.distributed.launch", "accelerate": "accelerate launch"}
    return names.get(agent.program, "torchrun") if agent else "torchrun"


def command(job: Job, rank: RankFacts) -> str:
    """Return the agent's command line as evidence."""
    agent = job.process_of(rank).agent
    return brief(f"{program(job, rank)} {' '.join(agent.arguments)}", 200) if agent else "not in sight"


def told(job: Job, rank: RankFacts) -> dict[str, str] | None:
    """Return the options of a rank's agent, from its command line and PET_*; None if unknown.

    Names are written with dashes; options without a value have ''. Abbreviations that argparse accepts are not
    recognised.
    """
    agent = job.process_of(rank).agent
    if agent is None:
        return None
    options = _options(agent.arguments[agent.program == "accelerate" and agent.arguments[:1] == ("launch",) :])
    if agent.program == "accelerate":
        return {_ACCELERATE.get(name, name): value for name, value in options.items()}
    variables = {k[4:].lower().replace("_", "-"): v for k, v in rank.environment.items() if k.startswith("PET_") and v}
    return {**variables, **options}


@lru_cache(1 << 14)
def _options(words: tuple[str, ...]) -> Mapping[str, str]:
    return split(words).options


def _started_by_distcheck(job: Job, rank: RankFacts, nproc: str) -> str:
    """Return distcheck's own command with as many ranks per node; ``gpu``: one for each of its GPUs."""
    gpus, launched = job.node_of(rank).gpus, job.launched
    if nproc == "gpu":  # it counts the GPUs of its own node only
        nproc = str(len(gpus.devices)) if launched and isinstance(gpus, Gpus) else "auto"
    return f"distcheck {job.asked.command} --nproc {nproc}"


def restarted(job: Job, rank: RankFacts, options: Mapping[str, str]) -> str:
    """Return the agent's command line, shell-quoted, with these options replaced.

    If the command line is unknown or cut, returns the PET_* variables for the same options
    (https://docs.pytorch.org/docs/stable/elastic/run.html); for ranks that distcheck started itself, its own command.
    """
    agent = job.process_of(rank).agent
    if rank.placement.launcher == "distcheck" and options.keys() == {"nproc-per-node"}:
        return _started_by_distcheck(job, rank, options["nproc-per-node"])
    if agent is None or len(agent.arguments) >= _CUT_WORDS:
        return "export " + " ".join(f"PET_{name.replace('-', '_').upper()}={value}" for name, value in options.items())
    words, given = agent.arguments, dict(options)
    if agent.program == "accelerate":
        words = words[words[:1] == ("launch",) :]
        theirs = {torchruns: own for own, torchruns in _ACCELERATE.items()}
        given = {theirs.get(name, name): value for name, value in options.items()}
    kept, script = _without(words, given)
    if agent.program == "accelerate":  # documents its options with underscores
        given = {name.replace("-", "_"): value for name, value in given.items()}
    replaced = [f"--{name}={value}" if value else f"--{name}" for name, value in given.items()]
    return " ".join([program(job, rank), *replaced, *map(shlex.quote, (*kept, *script))])


def agent_per_node(job: Job, rank: RankFacts, options: Mapping[str, str]) -> str:
    """Return the srun command that starts one agent per node with that node's rank."""
    numbers = {"nnodes": "$SLURM_NNODES", "node-rank": "$SLURM_NODEID", **options}
    return f"srun --ntasks-per-node=1 bash -c {shlex.quote(restarted(job, rank, numbers))}"


def own_id(job: Job, rank: RankFacts) -> str:
    """Return a rendezvous id unique to this job."""
    return "${SLURM_JOB_ID:?}" if "SLURM_JOB_ID" in rank.environment else f"job-{job.run[:8]}"


def _without(words: Sequence[str], options: Container[str]) -> tuple[list[str], list[str]]:
    """Return an agent's options without `options`, and the script with its arguments."""
    given = tuple(options_in(words))
    kept = [word for option in given if option.name not in options for word in option.words]
    return kept, list(words[sum(len(option.words) for option in given) :])


def exported(job: Job, rank: RankFacts) -> dict[str, str]:
    """Return the rank variables of the agent's own environment, empty if unreadable."""
    agent = job.process_of(rank).agent
    return {} if agent is None or isinstance(agent.exported, Missing) else agent.exported.values


def rendezvous(options: dict[str, str]) -> str:
    """Return the name of the rendezvous backend, such as c10d or static."""
    if "standalone" in options:
        return "c10d"
    return options.get("rdzv-backend") or "static"


def endpoint_host(options: dict[str, str]) -> str:
    """Return the host of --rdzv-endpoint, '' if not given."""
    host, colon, _ = options.get("rdzv-endpoint", "").rpartition(":")
    return (host if colon else options.get("rdzv-endpoint", "")).strip("[]")


def endpoint_port(options: dict[str, str]) -> int:
    """Return the port of --rdzv-endpoint, or torchrun's default 29400."""
    return integer(options.get("rdzv-endpoint", "").rpartition(":")[2]) or _ENDPOINT_PORT


def meets_here(options: dict[str, str]) -> bool:
    """Whether --rdzv-endpoint is a loopback address."""
    return bool(endpoint_host(options)) and is_here(endpoint_host(options))


def nodes_meant(job: Job, rank: RankFacts) -> tuple[int, int] | None:
    """Return the minimum and maximum of --nnodes, 1 and 1 if not given, None if unknown."""
    options = told(job, rank)
    if options is None or ("nnodes" not in options and (agents_in_world(rank) or 1) > 1):
        return None  # set where distcheck cannot see it, such as accelerate's configuration file
    first, colon, last = options.get("nnodes", "1").partition(":")
    least, most = integer(first), integer(last if colon else first)
    return None if least is None or most is None else (least, most)


def agents_in_world(rank: RankFacts) -> int | None:
    """Return how many agents the rank's world has."""
    return number(rank, "GROUP_WORLD_SIZE")


def nodes_of_step(rank: RankFacts) -> int | None:
    """Return on how many nodes srun started agents, None if srun started none."""
    if not in_step(rank):
        return None
    return number(rank, "SLURM_STEP_NUM_NODES") or number(rank, "SLURM_NNODES")


def tasks_of_step(rank: RankFacts) -> int | None:
    """Return how many tasks srun started in this step, None if srun started none."""
    return (number(rank, "SLURM_STEP_NUM_TASKS") or number(rank, "SLURM_NTASKS")) if in_step(rank) else None


def in_step(rank: RankFacts) -> bool:
    """Whether srun started the agent: sbatch sets no SLURM_STEP_ID, salloc a reserved one."""
    return rank.environment.get("SLURM_STEP_ID", "4294967290") not in {"", "4294967290"}


def ignored_master(job: Job, rank: RankFacts) -> str:
    """Return the exported MASTER_ADDR that torchrun ignores; '' if that is harmless.

    It is harmless on one node. The scheduler, a NODE_RANK or NNODES, or an exported WORLD_SIZE that differs from this
    world's show that more nodes were intended.
    """
    options, theirs = told(job, rank), exported(job, rank)
    address = theirs.get("MASTER_ADDR", "")
    if options is None or not address or is_here(address) or agents_in_world(rank) != 1:
        return ""
    if options.keys() & {"master-addr", "rdzv-endpoint", "standalone"}:
        return ""
    nodes = nodes_of_step(rank) or number(rank, "NNODES") or 1
    world = integer(theirs.get("WORLD_SIZE")) or 1
    several = nodes > 1 or (number(rank, "NODE_RANK") or 0) > 0 or world not in {1, rank.placement.world_size}
    return address if several else ""


def agents_met(job: Job) -> int | None:
    """Return how many agents' ranks make up the world, None if ranks of it are missing.

    GROUP_WORLD_SIZE is each agent's own view: its own --nnodes with the static rendezvous, and with c10d the
    number before or after another agent was dropped. WORLD_SIZE comes from rank 0's agent and is the same for all.
    """
    return len({r.placement.node_rank for r in by_agent(job)}) if is_complete(job) else None


def outside(job: Job) -> tuple[str, ...]:
    """Return the nodes of the Slurm step that are in no world; none if ranks are missing."""
    ranks = by_agent(job)
    lists = {r.environment.get("SLURM_STEP_NODELIST", "") for r in ranks if in_step(r)}
    if not agents_met(job) or len(lists) != 1:
        return ()
    names = {job.node_of(r).name for r in ranks}
    step = expand(lists.pop())
    return tuple(node for node in step if node not in names) if names <= set(step) else ()


def too_few_met(job: Job) -> tuple[int, int] | None:
    """Return the world's agents and their minimum if all agents agree on it and fewer met."""
    ranges = {meant for r in by_agent(job) if (meant := nodes_meant(job, r)) is not None}
    here = agents_met(job)
    if len(ranges) != 1 or not here:
        return None
    ((least, _),) = ranges
    return (here, least) if here < least else None


def alone_beside_others(job: Job, rank: RankFacts) -> bool:
    """Whether srun started agents on more nodes than the world has, without --standalone."""
    options = told(job, rank) or {}
    nodes, agents = nodes_of_step(rank), agents_in_world(rank)
    return bool(nodes and agents and agents < nodes and "standalone" not in options)


def one_per_task(job: Job, rank: RankFacts) -> bool:
    """Whether srun started several agents on a node, and the world lacks some of them."""
    tasks, nodes = tasks_of_step(rank), nodes_of_step(rank)
    options = told(job, rank)
    if tasks is None or nodes is None or options is None or "standalone" in options:
        return False
    return tasks > nodes and agents_in_world(rank) not in {None, tasks}


def lacks_id(job: Job, rank: RankFacts) -> bool:
    """Whether --rdzv-id was given and is empty."""
    options = told(job, rank)
    return options is not None and options.get("rdzv-id") == ""


def wanted(job: Job, rank: RankFacts) -> int:
    """Return how many agents a rank's world should have: the larger of the step and --nnodes."""
    _, most = nodes_meant(job, rank) or (0, 0)
    return max(nodes_of_step(rank) or 0, most)


def meets_itself(job: Job, rank: RankFacts) -> bool:
    """Whether a c10d agent met only itself because its endpoint is a loopback address."""
    options = told(job, rank)
    if options is None or lacks_id(job, rank) or "standalone" in options or not meets_here(options):
        return False
    return rendezvous(options) == "c10d" and wanted(job, rank) > (agents_in_world(rank) or 0)
