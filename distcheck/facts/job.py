"""What was asked for, what came of it, and the merged facts of all nodes and ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property
from typing import Literal

from distcheck.facts.base import Amount, Count, Facts, Measured, Missing, Rank, Seconds, Whole
from distcheck.facts.isolation import Isolation
from distcheck.facts.network import PeerTrial
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.placement import _LARGEST_WORLD
from distcheck.facts.rank import ProcessFacts, RankFacts

Look = Literal["launch", "environment", "meeting", "peers", "node", "gpu", "collectives", "isolation"]


class Measurement(Facts, frozen=True):
    """One operation at one size: the time per call of every rank, in rank order, the median over its bursts."""

    op: str
    bytes: Count
    dtype: str
    iterations: Count
    """Calls in each burst."""
    seconds_by_rank: tuple[Measured, ...]
    group: str = "world"
    bursts: Count = 1
    uncertainty: Amount | None = None
    """By which share of itself the median of the ranks' mean may be off (95 %); None where bursts are too few."""
    at_least: Amount | None = None
    """The share of the median of the ranks' mean that it surely is (95 %); None where bursts are too few."""
    ended: Literal["steady", "time", "asked"] = "asked"
    """Why no more bursts followed: the median was known to 2 %, its time was over, or one was asked for."""


class Collectives(Facts, frozen=True):
    """What the collectives ran with and measured."""

    backend: str
    backend_reason: str
    torch: str = ""
    nccl: str = ""
    measurements: tuple[Measurement, ...] = ()
    first_figure_seconds: Seconds | None = None
    """From the start of the command to the first measurement."""
    ended: str = ""
    """Empty when everything ran, else why the run was ended early."""


class BaselineRow(Facts, frozen=True):
    """A figure of a run of before."""

    op: str
    dtype: str
    bytes: Count
    group: str
    seconds: Measured
    """The mean over the ranks."""
    uncertainty: Amount | None
    """By which share of itself it may be off; None where that was not known."""


class Baseline(Facts, frozen=True):
    """A run of before, to which this one is held."""

    file: str
    ranks_by_node: tuple[Count, ...]
    """How many ranks each node had, the largest number first."""
    gpus: dict[str, Count]
    """How many GPUs of each model the ranks took."""
    backend: str
    torch: str
    nccl: str
    rotate_root: bool
    rows: tuple[BaselineRow, ...]


Fate = Literal["reported", "unreachable", "no probe", "unreadable", "ended", "silent"]


class LaunchedNode(Facts, frozen=True):
    """What became of the probe, or the probes, that distcheck started on one node."""

    name: str
    """As the user or the scheduler names it."""
    ranks: tuple[Rank, ...]
    """The ranks that it was to have."""
    outcome: Fate
    """Its facts came home; or nobody could log in, Python or distcheck was not found, its facts were another version's,
    it ended before it told them, or it said nothing at all."""
    exit_code: Whole | None = None
    words: str = ""
    """What was said of it or by it on standard error, its last lines."""
    distcheck: str = ""
    """Its version, where it said it."""


class Launched(Facts, frozen=True):
    """How distcheck started the probes from outside the job."""

    engine: Literal["ssh", "slurm", "mpi"]
    command: tuple[str, ...]
    """The program that started them all, or with ssh the one that each node ran; without the assignment."""
    nodes: tuple[LaunchedNode, ...]
    exit_code: Whole | None = None
    """Of the program that started them all; None when it was ended, and with ssh."""
    words: str = ""
    """What that program said for itself, its last lines."""
    torn: Count = 0
    """Messages that did not come home whole."""
    interrupted: str = ""
    """The signal that ended the run before its time; empty when none did."""


class LeftOut(Facts, frozen=True):
    """A node that --need could do without."""

    name: str
    rules: tuple[str, ...]
    words: str
    """The first finding's message."""


class Asked(Facts, frozen=True):
    """What the user asked for; judging the job again later needs it."""

    command: str
    looks: tuple[Look, ...]
    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    started_here: bool = False
    """True when distcheck started the ranks itself (--nproc, or on other nodes)."""
    by_default: bool = False
    """True when nobody said how many ranks, and two were taken."""
    operations: tuple[str, ...] = ()
    sizes_bytes: tuple[Count, ...] = ()
    dtypes: tuple[str, ...] = ()
    rotate_root: bool = False
    """Whether the root of a broadcast is another rank at every call."""
    min_busbw_GBps: Amount | None = None  # noqa: N815 the unit's own spelling
    baseline: Baseline | None = None
    timeout_seconds: Seconds = 60.0
    join_timeout_seconds: Seconds = 20.0
    strict: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    export: bool = False
    """True when COMMAND is given the placement's RANK, MASTER_ADDR and so on."""
    program: str = ""
    """The file name of COMMAND's program; empty where there is no COMMAND."""
    rendezvous_file: str = ""
    """The path of a file:// that stands among COMMAND's words; empty where there is none."""
    batch_shell: bool = False
    """True when distcheck was started in the batch or salloc shell of a Slurm job, and not by srun."""
    gpus: Count | None = None
    """How many GPUs the node must have (`distcheck node --gpus`)."""
    need: Count | None = None
    """How many nodes suffice; None when all are needed."""

    @property
    def measures(self) -> bool:
        """Whether ranks are to run collectives."""
        return not {"collectives", "isolation"}.isdisjoint(self.looks)


class Job(Facts, frozen=True, dict=True, gc=True):
    """The merged facts of all nodes and ranks: what rules judge and what ``--save`` writes."""

    distcheck: str
    run: str
    """Names this run; files of the same run can be merged."""
    asked: Asked
    schema: Count = 1
    seconds: Seconds = 0.0
    met: bool = False
    """Whether the roll call was held and closed; with one process there is nobody to meet and it is True."""
    nodes: tuple[NodeFacts, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    peers: tuple[PeerTrial, ...] = ()
    collectives: Collectives | Missing | None = None
    isolation: Isolation | Missing | None = None
    """None: nobody was searched for."""
    skipped: dict[str, str] = {}
    """Looks that were not taken, and why."""
    launched: Launched | None = None
    """How distcheck started the probes; None inside a launcher and on this machine."""
    left_out: tuple[LeftOut, ...] = ()
    """Nodes of the allocation that are not in this job because they were found bad and others suffice."""

    @cached_property
    def _process(self) -> dict[str, ProcessFacts]:
        return {p.uid: p for p in self.processes}

    @cached_property
    def _node(self) -> dict[str, NodeFacts]:
        return {n.key: n for n in self.nodes}

    @cached_property
    def _ranks_on(self) -> dict[str, tuple[RankFacts, ...]]:
        on: dict[str, list[RankFacts]] = {node.key: [] for node in self.nodes}
        for rank in self.ranks:
            on[self._process[rank.process].node].append(rank)
        return {key: tuple(ranks) for key, ranks in on.items()}

    def process_of(self, rank: RankFacts) -> ProcessFacts:
        """Return the process that speaks for a rank."""
        return self._process[rank.process]

    def node_of(self, rank: RankFacts) -> NodeFacts:
        """Return the node of a rank."""
        return self._node[self._process[rank.process].node]

    def ranks_on(self, node: NodeFacts) -> tuple[RankFacts, ...]:
        """Return the ranks on a node, in the order of `ranks`."""
        return self._ranks_on[node.key]

    @cached_property
    def node_names(self) -> dict[str, str]:
        """What each node, by its key, is called: its name, told apart where several share it."""
        by_name: defaultdict[str, list[NodeFacts]] = defaultdict(list)
        for node in self.nodes:
            by_name[node.name].append(node)
        return {
            node.key: node.name if len(namesakes) == 1 else f"{node.name} ({_difference(node, namesakes)})"
            for namesakes in by_name.values()
            for node in namesakes
        }

    @cached_property
    def world_size(self) -> int | None:
        """The world size that most ranks name, None when no rank names one."""
        sizes = Counter(r.placement.world_size for r in self.ranks if r.placement.world_size is not None)
        if sizes:
            return max(sizes, key=lambda size: (sizes[size], size))
        return sum(len(node.ranks) for node in self.launched.nodes) if self.launched else None

    @cached_property
    def made_for(self) -> Literal["nccl", "gloo"]:
        """The backend for which the nodes are made: NCCL (or RCCL) where there are GPUs, Gloo where there are none."""
        amd = any(n.accelerator == "amd" and isinstance(n.torch, TorchBuild) and n.torch.hip for n in self.nodes)
        return "nccl" if amd or any(n.accelerator == "nvidia" for n in self.nodes) else "gloo"

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world of which nobody spoke; empty when it is unknown or nobody was to be met.

        Of a world size that no job has, such as one with a digit too many, the first million are looked through.
        """
        if "meeting" not in self.asked.looks:
            return ()
        present = {r.placement.rank for r in self.ranks}
        return tuple(n for n in range(min(self.world_size or 0, _LARGEST_WORLD)) if n not in present)


def _difference(node: NodeFacts, namesakes: list[NodeFacts]) -> str:
    """Return the shortest that tells a node from those that share its name."""
    if len({str(n.boot_id)[:8] for n in namesakes}) == len(namesakes):
        return f"boot {_or_reason(node.boot_id)[:8]}"
    if len({str(n.network_namespace) for n in namesakes}) == len(namesakes):
        return f"net {_or_reason(node.network_namespace)}"
    return node.key


def _or_reason(fact: str | Missing) -> str:
    return "unknown" if isinstance(fact, Missing) else fact
