"""What distcheck measured and started, and the merged facts of all nodes and ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from distcheck.facts.asked import Asked
from distcheck.facts.base import Amount, Count, Facts, Measured, Missing, Rank, Seconds, Whole
from distcheck.facts.groups import GroupFigure
from distcheck.facts.hang import RunningJob
from distcheck.facts.history import History
from distcheck.facts.isolation import Isolation
from distcheck.facts.launch_command import Stated
from distcheck.facts.mesh import Mesh
from distcheck.facts.nccl import Ras
from distcheck.facts.network import PeerTrial
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.placement import _LARGEST_WORLD
from distcheck.facts.rank import ProcessFacts, RankFacts, Stage
from distcheck.facts.repeated import Repeated

if TYPE_CHECKING:
    from collections.abc import Iterable


class Measurement(Facts, frozen=True):
    """One operation at one size: each rank's median time per call, in rank order."""

    op: str
    bytes: Count
    dtype: str
    iterations: Count
    """Calls in each burst."""
    seconds_by_rank: tuple[Measured, ...]
    group: str = "world"
    bursts: Count = 1
    uncertainty: Amount | None = None
    """The relative uncertainty of the median of the ranks' mean (95 %); None with too few bursts."""
    at_least: Amount | None = None
    """The lower bound of the median of the ranks' mean, as a share of it (95 %); None with too few bursts."""
    ended: Literal["steady", "time", "asked"] = "asked"
    """Why no more bursts followed: the median was known to 2 %, its time was up, or one was requested."""


class Collectives(Facts, frozen=True):
    """The configuration and the measurements of the collectives."""

    backend: str
    torch: str = ""
    nccl: str = ""
    measurements: tuple[Measurement, ...] = ()
    first_figure_seconds: Seconds | None = None
    """From the start of the command to the first burst of the first size; more follow until the figure is steady."""
    ended: str = ""
    """Empty if everything ran, else why the run ended early."""
    ras: Ras | Missing | None = None
    """What NCCL's RAS said when a collective stalled; None if it was not asked."""
    diagnosed: Seconds | Missing | None = None
    """How long NCCL's own diagnostics took; None if they were not tried, as before NCCL 2.31."""
    mesh: Mesh | None = None
    """The mesh whose groups were measured, with all sizes; None without one."""
    groups: tuple[GroupFigure, ...] = ()
    """What was measured in the groups of the mesh."""


Fate = Literal["reported", "unreachable", "no probe", "unreadable", "ended", "silent"]


class LaunchedNode(Facts, frozen=True):
    """What happened to the probes that distcheck started on one node."""

    name: str
    """As the user or the scheduler names it."""
    ranks: tuple[Rank, ...]
    """The ranks assigned to it."""
    outcome: Fate
    """reported: its facts are here; unreachable: login failed; no probe: Python or distcheck not found; unreadable:
    facts of another version; ended: it ended before it sent facts; silent: no output at all."""
    exit_code: Whole | None = None
    words: str = ""
    """The last lines on standard error from it or about it."""
    distcheck: str = ""
    """Its version, if it sent it."""


class Launched(Facts, frozen=True):
    """How distcheck started the probes from outside the job."""

    engine: Literal["ssh", "slurm", "mpi"]
    command: tuple[str, ...]
    """The program that started all probes, or with ssh each node's command; without the assignment."""
    nodes: tuple[LaunchedNode, ...]
    exit_code: Whole | None = None
    """The exit code of the program that started all probes; None if it was killed, and with ssh."""
    words: str = ""
    """The last lines of that program's own output."""
    stated: Stated | None = None
    """What COMMAND states about its ranks, if its launcher starts them from outside too."""


class LeftOut(Facts, frozen=True):
    """A node that was left out because of --need."""

    name: str
    rules: tuple[str, ...]
    words: str
    """The first finding's message."""
    confirmed: bool = False
    """Whether one of these rules found the node confirmed bad."""
    node: str = ""
    """Its own name, if it reported; `name` is the user's or the scheduler's."""


class Wait(Facts, frozen=True):
    """The process that the leader heard last in a stage."""

    stage: Stage
    process: str
    """Its uid; the leader's own if all others were done before."""
    seconds: Seconds
    """How long after the last but one it was done."""
    silent: bool = False
    """Whether the leader gave up waiting for it."""


class Job(Facts, frozen=True, dict=True, gc=True):
    """The merged facts of all nodes and ranks: what rules judge and ``--save`` writes."""

    distcheck: str
    run: str
    """The name of this run; files of the same run can be merged."""
    asked: Asked
    schema: Count = 1
    seconds: Seconds = 0.0
    met: bool = False
    """Whether the roll call was held and closed; True for a single process."""
    nodes: tuple[NodeFacts, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    peers: tuple[PeerTrial, ...] = ()
    collectives: Collectives | Missing | None = None
    isolation: Isolation | Missing | None = None
    """None: no search was made."""
    skipped: dict[str, str] = {}
    """Looks that were skipped, and why."""
    launched: Launched | None = None
    """How distcheck started the probes; None inside a launcher and for local ranks."""
    left_out: tuple[LeftOut, ...] = ()
    """Nodes of the allocation that are left out because they are bad and the others suffice."""
    repeated: Repeated | None = None
    """A failed case, repeated with one setting changed at a time; None: nothing was repeated."""
    waits: tuple[Wait, ...] = ()
    """For whom the stages after the roll call waited."""
    history: History | Missing | None = None
    """What earlier runs found on these nodes; None without --history."""
    interrupted: Annotated[int, Meta(ge=0, le=64)] = 0
    """The number of the signal that ended the run early; 0 if none did."""
    hang: RunningJob | None = None
    """The running job that `distcheck hang` looked at; None for all other commands."""
    at: str = ""
    """When its facts were complete, as that host's clock says, with the time zone."""
    host: str = ""
    """Where they were put together: the node of rank 0's process, or the machine that started the probes."""

    @cached_property
    def _home(self) -> dict[str, tuple[ProcessFacts, NodeFacts]]:
        nodes = {n.key: n for n in self.nodes}
        return {p.uid: (p, nodes[p.node]) for p in self.processes if p.node in nodes}

    @cached_property
    def placed(self) -> tuple[tuple[RankFacts, ProcessFacts, NodeFacts], ...]:
        """Each rank with its process and its node, in the order of `ranks`; to look up many one by one takes longer."""
        return tuple([(rank, *self._home[rank.process]) for rank in self.ranks])

    @cached_property
    def _ranks_on(self) -> dict[str, tuple[RankFacts, ...]]:
        on: dict[str, list[RankFacts]] = {node.key: [] for node in self.nodes}
        for rank, _, node in self.placed:
            on[node.key].append(rank)
        return {key: tuple(ranks) for key, ranks in on.items()}

    def process_of(self, rank: RankFacts) -> ProcessFacts:
        """Return the process that reports for a rank."""
        return self._home[rank.process][0]

    def node_of(self, rank: RankFacts) -> NodeFacts:
        """Return the node of a rank."""
        return self._home[rank.process][1]

    def ranks_on(self, *nodes: NodeFacts) -> tuple[RankFacts, ...]:
        """Return the ranks on these nodes, node by node, in the order of `ranks`."""
        if len(nodes) == 1:
            return self._ranks_on[nodes[0].key]
        return tuple(rank for node in nodes for rank in self._ranks_on[node.key])

    @cached_property
    def node_names(self) -> dict[str, str]:
        """The display name of each node, by key: its name, with a suffix if several share it."""
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
        """The world size of most ranks; None if no rank has one."""
        told = usual_world_size(self.ranks)
        if told is not None:
            return told
        return sum(len(node.ranks) for node in self.launched.nodes) if self.launched else None

    @property
    def backend(self) -> str:
        """The backend that the ranks use: --backend, else the one that fits the nodes."""
        return self.made_for if self.asked.backend == "auto" else self.asked.backend

    @cached_property
    def made_for(self) -> Literal["nccl", "gloo"]:
        """The backend that fits the nodes: NCCL (or RCCL) with GPUs, Gloo without."""
        amd = any(n.accelerator == "amd" and isinstance(n.torch, TorchBuild) and n.torch.hip for n in self.nodes)
        return "nccl" if amd or any(n.accelerator == "nvidia" for n in self.nodes) else "gloo"

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that no process reported; empty if the world is unknown or there was no roll call.

        Of an absurd world size, such as one with a digit too many, only the first million are checked.
        """
        if "meeting" not in self.asked.looks:
            return ()
        present = {r.placement.rank for r in self.ranks}
        return tuple(n for n in range(min(self.world_size or 0, _LARGEST_WORLD)) if n not in present)


def usual_world_size(ranks: Iterable[RankFacts]) -> int | None:
    """Return the world size of most ranks, of several such the largest; None if no rank has one."""
    sizes = Counter(r.placement.world_size for r in ranks if r.placement.world_size is not None)
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else None


def _difference(node: NodeFacts, namesakes: list[NodeFacts]) -> str:
    """Return the shortest suffix that distinguishes a node from others of its name."""
    if len({str(n.boot_id)[:8] for n in namesakes}) == len(namesakes):
        return f"boot {_or_reason(node.boot_id)[:8]}"
    if len({str(n.network_namespace) for n in namesakes}) == len(namesakes):
        return f"net {_or_reason(node.network_namespace)}"
    return node.key


def _or_reason(fact: str | Missing) -> str:
    return "unknown" if isinstance(fact, Missing) else fact
