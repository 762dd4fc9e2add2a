"""The agents of torchrun, torch.distributed.launch and accelerate, and the worlds that they meant and got."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.rules.finding import Fault
from distcheck.rules.job.addresses import is_here
from distcheck.rules.job.settings import number, started_by_distcheck
from distcheck.rules.job.world import agents as by_agent
from distcheck.rules.job.world import is_complete
from distcheck.rules.wording import about, brief, once, same
from distcheck.selection.command import options_in, split
from distcheck.selection.nodelist import expand
from distcheck.selection.placement import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import Agent, RankFacts
    from distcheck.rules import Outcome

_ENDPOINT_PORT = 29400
"""torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"""
_CUT_WORDS = 40
"""A command line with this many arguments may be cut (`facts.Agent`)."""
_ACCELERATE = {
    "machine-rank": "node-rank",
    "num-machines": "nnodes",
    "main-process-ip": "master-addr",
    "main-process-port": "master-port",
}
"""accelerate's names of torchrun's options (accelerate/utils/launch.py)."""
_PROGRAMS = {"launch": "python -m torch.distributed.launch", "accelerate": "accelerate launch"}


class ElasticAgent(NamedTuple):
    """The torchelastic agent of a rank, as far as it is known."""

    job: Job
    rank: RankFacts
    """The first rank that it started, which speaks for all."""
    ranks: Sequence[RankFacts] = ()
    """All ranks that it started."""

    @property
    def facts(self) -> Agent | None:
        """Its program and command line, None if they are unknown."""
        return self.job.process_of(self.rank).agent

    @property
    def node(self) -> NodeFacts:
        """The node on which it runs."""
        return self.job.node_of(self.rank)

    @property
    def program(self) -> str:
        """Its program as the user types it, torchrun if unknown."""
        return _PROGRAMS.get(self.facts.program, "torchrun") if self.facts else "torchrun"

    @property
    def command(self) -> str:
        """Its command line as evidence."""
        return brief(f"{self.program} {' '.join(self.facts.arguments)}", 200) if self.facts else "not in sight"

    @property
    def options(self) -> Mapping[str, str]:
        """Its options, from its command line and PET_*; empty if it is unknown.

        Names are written with dashes; options without a value have ''. Abbreviations that argparse accepts are not
        recognised.
        """
        if self.facts is None:
            return {}
        words, accelerate = self.facts.arguments, self.facts.program == "accelerate"
        options = _options(words[accelerate and words[:1] == ("launch",) :])
        if accelerate:
            return {_ACCELERATE.get(name, name): value for name, value in options.items()}
        given = ((name, value) for name, value in self.rank.environment.items() if name.startswith("PET_") and value)
        return {**{name[4:].lower().replace("_", "-"): value for name, value in given}, **options}

    def restarted(self, options: Mapping[str, str]) -> str:
        """Return its command line, shell-quoted, with these options replaced.

        If the command line is unknown or cut, returns the PET_* variables for the same options
        (https://docs.pytorch.org/docs/stable/elastic/run.html); for ranks that distcheck started itself, its command.
        """
        if self.rank.placement.launcher == "distcheck" and options.keys() == {"nproc-per-node"}:
            return _started_by_distcheck(self.job, self.node, options["nproc-per-node"])
        if self.facts is None or len(self.facts.arguments) >= _CUT_WORDS:
            variables = (f"PET_{name.replace('-', '_').upper()}={value}" for name, value in options.items())
            return f"export {' '.join(variables)}"
        words, given = self.facts.arguments, dict(options)
        if self.facts.program == "accelerate":
            words = words[words[:1] == ("launch",) :]
            theirs = {torchruns: own for own, torchruns in _ACCELERATE.items()}
            given = {theirs.get(name, name): value for name, value in options.items()}
        kept, script = _without(words, given)
        if self.facts.program == "accelerate":  # documents its options with underscores
            given = {name.replace("-", "_"): value for name, value in given.items()}
        replaced = [f"--{name}={value}" if value else f"--{name}" for name, value in given.items()]
        return " ".join([self.program, *replaced, *map(shlex.quote, (*kept, *script))])

    def on_each_node(self, options: Mapping[str, str]) -> str:
        """Return the srun command that starts one agent per node with that node's rank."""
        numbers = {"nnodes": "$SLURM_NNODES", "node-rank": "$SLURM_NODEID", **options}
        return f"srun --ntasks-per-node=1 bash -c {shlex.quote(self.restarted(numbers))}"

    @property
    def exported(self) -> Mapping[str, str]:
        """The rank variables of its own environment, empty if unreadable."""
        return {} if self.facts is None or isinstance(self.facts.exported, Missing) else self.facts.exported.values

    @property
    def standalone(self) -> bool:
        """Whether it trains alone on purpose."""
        return "standalone" in self.options

    @property
    def rendezvous(self) -> str:
        """The name of its rendezvous backend, such as c10d or static; '' if it is unknown."""
        if self.facts is None:
            return ""
        return "c10d" if self.standalone else self.options.get("rdzv-backend") or "static"

    @property
    def endpoint(self) -> tuple[str, int]:
        """The host and port of --rdzv-endpoint: '' if not given, and torchrun's default."""
        host, colon, port = self.options.get("rdzv-endpoint", "").rpartition(":")
        return (host if colon else port).strip("[]"), integer(port) or _ENDPOINT_PORT

    @property
    def nnodes(self) -> tuple[int, int] | None:
        """The minimum and maximum of --nnodes, 1 and 1 if not given, None if unknown."""
        if self.facts is None or ("nnodes" not in self.options and (self.world or 1) > 1):
            return None  # set where distcheck cannot see it, such as accelerate's configuration file
        first, colon, last = self.options.get("nnodes", "1").partition(":")
        least, most = integer(first), integer(last if colon else first)
        return None if least is None or most is None else (least, most)

    @property
    def world(self) -> int | None:
        """How many agents its world has."""
        return number(self.rank, "GROUP_WORLD_SIZE")

    @property
    def step(self) -> tuple[int, int] | None:
        """On how many nodes srun started how many tasks in its step; 0 if unknown, None if srun did not start it."""
        if not in_step(self.rank):
            return None
        nodes, tasks = (number(self.rank, f"SLURM_STEP_NUM_{name}") for name in ("NODES", "TASKS"))
        return nodes or number(self.rank, "SLURM_NNODES") or 0, tasks or number(self.rank, "SLURM_NTASKS") or 0

    @property
    def step_nodes(self) -> int:
        """On how many nodes srun started agents, 0 if srun started none."""
        return self.step[0] if self.step else 0

    @property
    def wanted(self) -> int:
        """How many agents its world should have: the larger of the step and --nnodes."""
        return max(self.step_nodes, self.nnodes[1] if self.nnodes else 0)

    @property
    def ignored_master(self) -> str:
        """The exported MASTER_ADDR that torchrun ignores; '' if that is harmless.

        It is harmless on one node. The scheduler, a NODE_RANK or NNODES, or an exported WORLD_SIZE that differs from
        this world's show that more nodes were intended.
        """
        address = self.exported.get("MASTER_ADDR", "")
        if not address or is_here(address) or self.world != 1:
            return ""
        if self.options.keys() & {"master-addr", "rdzv-endpoint", "standalone"}:
            return ""
        nodes = self.step_nodes or number(self.rank, "NNODES") or 1
        size = integer(self.exported.get("WORLD_SIZE")) or 1
        several = nodes > 1 or (number(self.rank, "NODE_RANK") or 0) > 0
        return address if several or size not in {1, self.rank.placement.world_size} else ""

    @property
    def alone_in_step(self) -> bool:
        """Whether srun started agents on more nodes than its world has, without --standalone."""
        return bool(self.world) and (self.world or 0) < self.step_nodes and not self.standalone

    @property
    def one_per_task(self) -> bool:
        """Whether srun started several agents on a node, and the world lacks some of them."""
        nodes, tasks = self.step or (0, 0)
        known = self.facts is not None and not self.standalone
        return known and tasks > nodes > 0 and self.world not in {None, tasks}

    @property
    def lacks_id(self) -> bool:
        """Whether --rdzv-id was given and is empty."""
        return self.options.get("rdzv-id") == ""

    @property
    def meets_itself(self) -> bool:
        """Whether it met only itself in a c10d rendezvous because its endpoint is a loopback address."""
        here = is_here(self.endpoint[0]) and not self.standalone and not self.lacks_id
        return here and self.rendezvous == "c10d" and self.wanted > (self.world or 0)


@once
def agents_of(job: Job) -> list[ElasticAgent]:
    """Return the agents that started ranks of the job."""
    found = [ElasticAgent(job, ranks[0], ranks) for ranks in by_agent(job)]
    return [a for a in found if a.rank.placement.launcher == "torchrun" and not started_by_distcheck(job, a.rank)]


def ranks_of(agents: Iterable[ElasticAgent]) -> list[RankFacts]:
    """Return the ranks that these agents started."""
    return [rank for agent in agents for rank in agent.ranks]


def each_agent(job: Job, judge: Callable[[ElasticAgent], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of agents (``of=each_agent``), once for all agents of which it says the same.

    The evidence has the command line of the first of them.
    """
    said: dict[bytes | None, tuple[Fault | Missing, list[ElasticAgent]]] = {}
    for agent in agents_of(job):
        if (fault := judge(agent)) is not None:
            said.setdefault(same(fault), (fault, []))[1].append(agent)
    for fault, agents in said.values():
        evidence = {**(fault.evidence if isinstance(fault, Fault) else {}), "agent": agents[0].command}
        whole = msgspec.structs.replace(fault, evidence=evidence) if isinstance(fault, Fault) else fault
        yield from about(job, ranks_of(agents), whole)


@lru_cache(1 << 14)
def _options(words: tuple[str, ...]) -> Mapping[str, str]:
    return split(words).options


def _started_by_distcheck(job: Job, node: NodeFacts, nproc: str) -> str:
    """Return distcheck's own command with as many ranks per node; ``gpu``: one for each of its GPUs."""
    if nproc == "gpu":  # it counts the GPUs of its own node only
        nproc = str(len(node.gpus.devices)) if job.launched and isinstance(node.gpus, Gpus) else "auto"
    return f"distcheck {job.asked.command} --nproc {nproc}"


def _without(words: Sequence[str], options: Container[str]) -> tuple[list[str], list[str]]:
    """Return an agent's options without `options`, and the script with its arguments."""
    given = tuple(options_in(words))
    kept = [word for option in given if option.name not in options for word in option.words]
    return kept, list(words[sum(len(option.words) for option in given) :])


def own_id(job: Job, rank: RankFacts) -> str:
    """Return a rendezvous id unique to this job."""
    return "${SLURM_JOB_ID:?}" if "SLURM_JOB_ID" in rank.environment else f"job-{job.run[:8]}"


def in_step(rank: RankFacts) -> bool:
    """Whether srun started the agent: sbatch sets no SLURM_STEP_ID, salloc a reserved one."""
    return rank.environment.get("SLURM_STEP_ID", "4294967290") not in {"", "4294967290"}


def agents_met(job: Job) -> int | None:
    """Return how many agents' ranks make up the world, None if ranks of it are missing.

    GROUP_WORLD_SIZE is each agent's own view: its own --nnodes with the static rendezvous, and with c10d the
    number before or after another agent was dropped. WORLD_SIZE comes from rank 0's agent and is the same for all.
    """
    return len({a.rank.placement.node_rank for a in agents_of(job)}) if is_complete(job) else None


def outside(job: Job) -> tuple[str, ...]:
    """Return the nodes of the Slurm step that are in no world; none if ranks are missing."""
    agents = agents_of(job)
    lists = {a.rank.environment.get("SLURM_STEP_NODELIST", "") for a in agents if in_step(a.rank)}
    if not agents_met(job) or len(lists) != 1:
        return ()
    names, step = {a.node.name for a in agents}, expand(lists.pop())
    return tuple(node for node in step if node not in names) if names <= set(step) else ()


def too_few_met(job: Job) -> tuple[int, int] | None:
    """Return the world's agents and their minimum if all agents agree on it and fewer met."""
    ranges = {agent.nnodes for agent in agents_of(job)} - {None}
    here = agents_met(job)
    if len(ranges) != 1 or not here:
        return None
    least, _ = ranges.pop() or (0, 0)
    return (here, least) if here < least else None
